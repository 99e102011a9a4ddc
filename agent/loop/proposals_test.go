package loop

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/propose"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
)

// P8: a change that was saved after the last comparison is not replaced because an earlier one was merged. If the agent cannot propose it,
// the sync does not wait forever.
func TestConflictWithUnseenChange(t *testing.T) {
	const saved, debounce = `{"title": "mine"}`, 10 * time.Minute
	for _, strategy := range []v1alpha1.ConflictStrategy{v1alpha1.StrategyGitWins, v1alpha1.StrategyGatewayWins} {
		for name, problem := range map[string]error{"can propose": nil, "cannot propose": errors.New("the pod does not mount the credential")} {
			t.Run(string(strategy)+", "+name, func(t *testing.T) {
				d := deliveredTwice(t, func(string) {})
				d.edit = func(o *Order) {
					o.Profile.Bidirectional = &v1alpha1.BidirectionalSpec{Enabled: true, ConflictStrategy: strategy}
					o.ProposalSettings = &propose.Settings{
						Identity: propose.Identity{Namespace: "plants", Gateway: "g"}, Branch: "gateway-changes/plants/g", BaseBranch: "main", Provider: "none",
						Debounce: debounce, Limits: propose.Limits{FileBytes: 1 << 20, TotalBytes: 1 << 20, Files: 10}, Remote: o.Connections.Remote, Problem: problem,
						Watches: func(string) bool { return true },
						Guard: propose.Guard{
							Path:    func(string, plan.Path) (string, bool) { return "", false },
							Content: func(string, []byte) (string, bool) { return "", false },
						},
					}
				}
				require.NoError(t, d.loop.Engine.Notes().SetNote("proposal", []byte(`{"lastState": "Merged"}`)))
				d.commit("three")
				require.True(t, d.loop.proposals.proposer.Ended())

				file := filepath.Join(d.data, titled)
				require.NoError(t, os.WriteFile(file, []byte(saved), 0o644))
				next := d.push("four")
				for began := d.now; d.now.Sub(began) < debounce-time.Minute; { // sequence: the sync stays held until a change would be pushed
					s := d.turn()
					require.Equal(t, sync.Held, s.Phase, s.Line())
					require.Equal(t, v1alpha1.ReasonConflictDetected, s.Reason)
				}
				content, err := os.ReadFile(file)
				require.NoError(t, err)
				assert.Equal(t, saved, string(content))
				if problem == nil {
					assert.Equal(t, v1alpha1.ProposalSettling, d.loop.State().Proposal.State)
					return
				}
				for range 10 { // sequence: until the sync no longer waits
					d.turn()
				}
				d.runs(next, "four")
			})
		}
	}
}
