package loop

import (
	"context"
	"errors"
	"io"
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

// proposes makes an order propose all changes to git. problem is why the agent cannot.
func proposes(o *Order, strategy v1alpha1.ConflictStrategy, debounce time.Duration, problem error) {
	o.Profile.Bidirectional = &v1alpha1.BidirectionalSpec{Enabled: true, ConflictStrategy: strategy}
	o.ProposalSettings = &propose.Settings{
		Identity: propose.Identity{Namespace: "plants", Gateway: "g"}, Branch: "gateway-changes/plants/g", BaseBranch: "main", Provider: "none",
		Debounce: debounce, Limits: propose.Limits{FileBytes: 1 << 20, TotalBytes: 1 << 20, Files: 10}, Remote: o.Connections.Remote, Problem: problem,
		Watches: func(string) bool { return true },
		Guard: propose.Guard{
			Path:    func(string, plan.Path) (string, bool) { return "", false },
			Content: func(io.Reader) (string, bool) { return "", false },
		},
	}
}

// pushed is the record of a proposal of the delivered file whose branch was pushed.
const pushed = `{"branch": "gateway-changes/plants/g", "tip": "1111111111111111111111111111111111111111", "digest": "x", "files": {"` + titled + `":
	{"path": "` + titled + `", "op": "modified", "id": "2222222222222222222222222222222222222222"}}}`

// P8: a change that was saved after the last comparison is not replaced because an earlier one was merged. If the agent cannot propose it,
// the sync does not wait forever.
func TestConflictWithUnseenChange(t *testing.T) {
	const saved, debounce = `{"title": "mine"}`, 10 * time.Minute
	for _, strategy := range []v1alpha1.ConflictStrategy{v1alpha1.StrategyGitWins, v1alpha1.StrategyGatewayWins} {
		for name, problem := range map[string]error{"can propose": nil, "cannot propose": errors.New("the pod does not mount the credential")} {
			t.Run(string(strategy)+", "+name, func(t *testing.T) {
				d := deliveredTwice(t, func(string) {})
				d.edit = func(o *Order) { proposes(o, strategy, debounce, problem) }
				d.note(`{"lastState": "Merged"}`)
				d.commit("three")
				require.True(t, d.loop.proposer.Proposal().Ended())

				d.save(saved)
				next := d.push("four")
				for began := *d.now; d.now.Sub(began) < debounce-time.Minute; { // sequence: the sync stays held until a change would be pushed
					s := d.turn()
					require.Equal(t, v1alpha1.GatewayHeld, s.Phase, s.Line())
					require.Equal(t, v1alpha1.ReasonConflictDetected, s.Reason)
				}
				d.has(saved)
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

// P8: a sync that replaces a change because it cannot be proposed reports what it wrote, and does not withdraw the pushed proposal.
func TestReplacedUnseenChange(t *testing.T) {
	const debounce = 10 * time.Minute
	d := deliveredTwice(t, func(string) {})
	problem := errors.New("the pod does not mount the credential")
	d.edit = func(o *Order) { proposes(o, v1alpha1.StrategyGitWins, debounce, problem) }
	d.note(pushed)
	d.commit("three")
	require.True(t, d.loop.proposer.Proposal().Safe())

	d.save(`{"title": "mine"}`)
	next := d.push("four")
	for began := *d.now; d.now.Sub(began) < debounce+2*time.Minute; { // sequence: until the sync no longer waits
		d.turn()
	}
	d.runs(next, "four")
	files := d.loop.State().Report.Files
	assert.Equal(t, 1, files.Modified)
	assert.Equal(t, 1, files.Saved)

	problem = nil
	d.commit("five")
	for range 3 { // sequence: the proposer has all the time that it needs
		d.turn()
	}
	assert.Equal(t, v1alpha1.ProposalPushed, d.loop.State().Proposal.State)
}

// P8: a repair does not undo a change that the agent cannot propose, however long that takes.
func TestRepairLeavesUnseenChange(t *testing.T) {
	const saved = `{"title": "mine"}`
	d := deliveredTwice(t, func(string) {})
	problem := errors.New("the pod does not mount the credential")
	d.edit = func(o *Order) {
		proposes(o, v1alpha1.StrategyGitWins, 10*time.Minute, problem)
		o.Profile.DriftPolicy, o.ProposalSettings.RepairClosed = v1alpha1.DriftRepair, true
	}
	d.note(`{"lastState": "Closed"}`)
	next := d.commit("three")
	d.save(saved)
	for began := *d.now; d.now.Sub(began) < 2*time.Hour; { // sequence: repairs are due
		d.turn()
	}
	require.True(t, d.loop.proposer.Proposal().Settled(), "an earlier pull request was closed")
	d.has(saved)
	assert.Positive(t, d.loop.State().Drift.Files, "the change is reported")

	d.src.decision.Order.ProposalSettings.Problem = nil
	d.compare()
	d.turn()
	assert.Equal(t, v1alpha1.ProposalSettling, d.loop.State().Proposal.State)
	assert.Equal(t, next, d.loop.State().Commit)
}

// onClosed: repair replaces the change whose pull request was closed. Other drift is a matter of driftPolicy.
func TestClosedRepairLeavesOtherChanges(t *testing.T) {
	const saved = `{"title": "mine"}`
	for policy, want := range map[v1alpha1.DriftPolicy]string{v1alpha1.DriftReport: saved, v1alpha1.DriftRepair: `{"title": "three"}`} {
		t.Run(string(policy), func(t *testing.T) {
			d, watched := deliveredTwice(t, func(string) {}), true
			d.edit = func(o *Order) {
				proposes(o, v1alpha1.StrategyGitWins, 10*time.Minute, errors.New("the pod does not mount the credential"))
				o.Profile.DriftPolicy, o.ProposalSettings.RepairClosed = policy, true
				o.ProposalSettings.Watches = func(string) bool { return watched }
			}
			d.note(`{"lastState": "Closed"}`)
			d.commit("three")
			file := filepath.Join(d.data, titled)
			require.NoError(t, os.WriteFile(file, []byte(saved), 0o755))
			require.NoError(t, os.Chmod(file, 0o755))
			d.turn() // the proposer sees a change, so it knows onClosed
			watched = false
			for range 5 { // sequence: repairs are due
				d.turn()
			}
			require.True(t, d.loop.proposer.Proposal().RepairsClosed())
			d.has(want)
			if policy == v1alpha1.DriftReport {
				assert.Zero(t, d.loop.drift.repairs, "a repair that changes nothing would be repeated")
			}

			require.NoError(t, os.WriteFile(file, []byte(`{"title": "three"}`), 0o755))
			require.NoError(t, os.Chmod(file, 0o755))
			d.compare()
			d.turn()
			st, err := os.Stat(file)
			require.NoError(t, err)
			assert.Equal(t, policy == v1alpha1.DriftReport, st.Mode()&0o100 != 0, "a mode is a change, too")
		})
	}
}

// The merge of a pull request brings what the gateway has already. The sync writes no file, and the drift ends with it.
func TestDriftEndsWithMerge(t *testing.T) {
	d := deliveredTwice(t, func(string) {})
	d.edit = func(o *Order) { proposes(o, v1alpha1.StrategyGitWins, time.Nanosecond, nil) }
	d.commit("three")
	d.save(`{"title": "mine"}`)
	d.compare()
	d.loop.Iterate(t.Context(), d.src, false)
	require.Equal(t, 1, d.loop.State().Drift.Files)
	merge := d.push("mine")
	d.loop.Iterate(t.Context(), d.src, true)
	d.runs(merge, "mine")
	assert.Zero(t, d.loop.State().Drift.Files)
}

// failing is a context in which the first comparison fails.
type failing struct {
	context.Context
	asked int
}

func (f *failing) Err() error {
	if f.asked++; f.asked == 2 { // the first question is whether to compare at all
		return errors.New("the disk does not answer")
	}
	return nil
}

// P8: a sync replaced a change, and the comparison after it failed. No user has undone the change: the branch has the only copy.
func TestFailedComparisonAfterSync(t *testing.T) {
	d := deliveredTwice(t, func(string) {})
	d.edit = func(o *Order) { proposes(o, v1alpha1.StrategyGitWins, time.Hour, nil) }
	d.note(pushed)
	d.commit("three")
	file := filepath.Join(d.data, titled)
	require.NoError(t, os.WriteFile(file, []byte(`{"title": "mine"}`), 0o644))
	d.compare()
	require.Equal(t, v1alpha1.ProposalSettling, d.turn().Proposal.State)

	require.NoError(t, os.WriteFile(file, []byte(`{"title": "three"}`), 0o644))
	d.loop.recordOutcome(d.src.decision.Order, &sync.Report{Phase: v1alpha1.GatewaySynced, Reason: v1alpha1.ReasonSynced, Files: sync.Counts{Modified: 1}})
	require.False(t, d.loop.compare(&failing{Context: t.Context()}))
	d.loop.propose(t.Context())
	d.compare()
	assert.Equal(t, v1alpha1.ProposalPushed, d.turn().Proposal.State)
}
