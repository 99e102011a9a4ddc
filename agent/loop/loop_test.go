package loop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/propose"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/metrics"
)

// wants is a Source that returns a fixed Decision.
type wants struct {
	decision Decision
	then     func() // called once by the next Decide; nil for nothing
}

func (w *wants) Decide(context.Context, bool) Decision {
	if then := w.then; then != nil {
		w.then = nil
		then()
	}
	return w.decision
}

func (w *wants) Changed() <-chan struct{} { return nil }

// newLoop returns a loop whose clock begins in 2026 and is advanced by the test.
func newLoop(t *testing.T, s sync.Config, c Config) (*Loop, *time.Time) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	if s.DataDir == "" {
		s.DataDir = t.TempDir()
	}
	s.Log = slog.New(slog.DiscardHandler)
	c.Name, c.Gateway, c.Log, c.Now, c.Engine = "follow", "g", s.Log, func() time.Time { return now }, sync.New(s)
	c.Metrics = metrics.NewAgent(prometheus.NewRegistry(), "v", "n", "s", "g")
	t.Cleanup(func() { assert.NoError(t, c.Engine.Close()) })
	return New(c), &now
}

var allowUnseeded = disk.Options{AllowUnseeded: true}

// orderOf returns an order to deliver commit id.
func orderOf(id byte) *Order {
	return &Order{Task: sync.Task{Target: sync.Target{Commit: plan.ID{id}, Ref: "main"}}}
}

// C3: work that is due but not allowed does not make the loop spin.
func TestBlockedLoopDoesNotSpin(t *testing.T) {
	l, now := newLoop(t, sync.Config{}, Config{}) // not seeded, so each sync ends early
	src := &wants{decision: Decision{Order: orderOf(1)}}
	pause := l.Iterate(t.Context(), src, false)
	assert.Equal(t, v1alpha1.ReasonWaitingForGateway, l.State().Reason)
	assert.Less(t, pause, 3*time.Second, "the sync is retried")

	proposing := *src.decision.Order
	proposes(&proposing, v1alpha1.StrategyGitWins, time.Minute, nil)
	for name, decision := range map[string]Decision{
		"do not touch, with changes":   {Order: &proposing, DoNotTouch: true},
		"no target":                    {Problems: []Problem{{v1alpha1.ReasonWaitingForLead, "no agent leads"}}},
		"do not touch":                 {Order: src.decision.Order, DoNotTouch: true},
		"no commit":                    {Order: &Order{Task: sync.Task{Target: sync.Target{Ref: "main"}}}},
		"do not touch, with a problem": {Order: src.decision.Order, DoNotTouch: true, Problems: []Problem{{v1alpha1.ReasonPodRestartNeeded, "too new"}}},
	} {
		t.Run(name, func(t *testing.T) {
			*now = now.Add(time.Hour)
			src.decision, l.proposalDue = decision, *now
			for range 3 {
				assert.GreaterOrEqual(t, l.Iterate(t.Context(), src, false), time.Second, name)
				*now = now.Add(time.Minute)
			}
		})
	}
	src.decision = Decision{Due: now.Add(-time.Hour)}
	assert.GreaterOrEqual(t, l.Iterate(t.Context(), src, false), minPause)
}

// The agent polls a gateway that takes minutes to start many times. The first error among the answers counts as a first failure, with
// a short retry delay.
func TestNewFailureResetsBackoff(t *testing.T) {
	l, now := newLoop(t, sync.Config{}, Config{})
	o := orderOf(1)
	pause := func(reason v1alpha1.Reason) time.Duration {
		l.recordOutcome(o, &sync.Report{Phase: v1alpha1.GatewayError, Reason: reason})
		return l.attempt.due.Sub(*now)
	}
	for range 20 {
		assert.Less(t, pause(v1alpha1.ReasonWaitingForGateway), 20*time.Second)
	}
	assert.Less(t, pause(v1alpha1.ReasonGatewayUnreachable), 2*time.Second)
	assert.Less(t, pause(v1alpha1.ReasonWaitingForGateway), 5*time.Second)
	for range 20 {
		pause(v1alpha1.ReasonGatewayUnreachable)
	}
	assert.Greater(t, pause(v1alpha1.ReasonGatewayUnreachable), time.Minute, "the same failure backs off")
}

// A sync before the first start of a gateway ends when the gateway has to start.
func TestDeadlineOfFirstStart(t *testing.T) {
	l, _ := newLoop(t, sync.Config{Disk: allowUnseeded}, Config{})
	o := orderOf(1)
	o.Until, o.BeforeStart, o.Admit = time.Now(), true, func(ctx context.Context) (string, error) { return "", ctx.Err() }
	l.Iterate(t.Context(), &wants{decision: Decision{Order: o}}, false)
	s := l.State()
	assert.Equal(t, v1alpha1.GatewayPending, s.Phase)
	assert.Equal(t, v1alpha1.ReasonProgressing, s.Reason)
	assert.Equal(t, "the gateway starts first; the sync continues then", s.Message)
}

// I3: a continuous dry run may run beside an agent, or after a crash: it locks, repairs and writes nothing.
func TestContinuousDryRunWritesNothing(t *testing.T) {
	l, now := newLoop(t, sync.Config{Disk: allowUnseeded}, Config{DryRun: true})
	o := orderOf(1)
	l.recordOutcome(o, &sync.Report{Phase: v1alpha1.GatewayPending, Reason: v1alpha1.ReasonDryRun, DryRun: true})
	for range 3 {
		*now = now.Add(time.Hour)
		assert.GreaterOrEqual(t, l.Iterate(t.Context(), &wants{decision: Decision{Order: o}}, false), time.Second)
	}
	there, err := os.ReadDir(l.Engine.DataDir)
	require.NoError(t, err)
	assert.Empty(t, there)
	assert.Nil(t, l.State().Drift)
}

// The agents poll the role of both nodes of a redundant pair once a period. This does not prevent drift checks.
func TestPairNodeIsPolled(t *testing.T) {
	l, now := newLoop(t, sync.Config{}, Config{Period: time.Minute})
	o := orderOf(1)
	// sequence: one period after the other
	for _, phase := range []v1alpha1.GatewaySyncState{v1alpha1.GatewaySynced, v1alpha1.GatewayStandby, v1alpha1.GatewayStandby} {
		l.recordOutcome(o, &sync.Report{Phase: phase, Reason: v1alpha1.ReasonSynced, Paired: true})
		assert.Equal(t, now.Add(time.Minute), l.attempt.due)
		assert.Equal(t, time.Date(2026, 1, 1, 0, 1, 0, 0, time.UTC), l.drift.due)
		*now = now.Add(time.Minute)
	}
	l.recordOutcome(orderOf(2), &sync.Report{Phase: v1alpha1.GatewaySynced, Reason: v1alpha1.ReasonSynced})
	assert.True(t, l.attempt.due.IsZero(), "a gateway without a peer is not polled")
	assert.Equal(t, now.Add(time.Minute), l.drift.due)
}

// A save in the gateway is found after syncPeriod, also if the agent was restarted while the sync is held.
func TestDriftAfterRestartDuringHold(t *testing.T) {
	data := t.TempDir()
	d, err := disk.Open(data, allowUnseeded)
	require.NoError(t, err)
	require.NoError(t, d.CorrectCommit("main", plan.ID{1}))
	require.NoError(t, d.Close())
	l, now := newLoop(t, sync.Config{DataDir: data, Disk: allowUnseeded}, Config{})
	o := orderOf(2)
	o.Profile.SyncPeriod = 5 * time.Second
	l.Iterate(t.Context(), &wants{decision: Decision{Order: o, DoNotTouch: true}}, false)
	assert.Equal(t, now.Add(5*time.Second), l.drift.due)
}

func TestHistoryIsBounded(t *testing.T) {
	var s publishedState
	for i := range 50 {
		s.addHistory(&sync.Report{Target: plan.ID{byte(i)}, Reason: v1alpha1.ReasonSynced, Files: sync.Counts{Added: 1}})
	}
	assert.Len(t, s.current.History, maxHistory)
	assert.Equal(t, plan.ID{49}, s.current.History[0].Commit)
	failed := &sync.Report{Target: plan.ID{50}, Reason: v1alpha1.ReasonScanFailed, Message: "no"}
	s.addHistory(failed)
	s.addHistory(failed)
	assert.Equal(t, plan.ID{49}, s.current.History[1].Commit)
}

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

// The alert about drift ignores gateways with proposed files.
func TestProposalFiles(t *testing.T) {
	for name, c := range map[string]struct {
		proposal          *v1alpha1.Proposal // nil: bidirectional is off
		proposed, refused int
	}{
		"open":               {&v1alpha1.Proposal{State: v1alpha1.ProposalOpen, Number: 1, Files: 2}, 2, 0},
		"pushed":             {&v1alpha1.Proposal{State: v1alpha1.ProposalPushed, Files: 2}, 2, 0},
		"merged":             {&v1alpha1.Proposal{State: v1alpha1.ProposalMerged, Number: 1, Files: 2}, 2, 0},
		"another author":     {&v1alpha1.Proposal{State: v1alpha1.ProposalForeign, Number: 1, Files: 2}, 2, 0},
		"the branch is used": {&v1alpha1.Proposal{State: v1alpha1.ProposalForeign, Files: 2}, 0, 0},
		"closed":             {&v1alpha1.Proposal{State: v1alpha1.ProposalClosed, Number: 1, Files: 2}, 0, 0},
		"the push fails":     {&v1alpha1.Proposal{State: v1alpha1.ProposalPushing, Files: 2}, 0, 0},
		"settling":           {&v1alpha1.Proposal{State: v1alpha1.ProposalSettling, Files: 2}, 0, 0},
		"refused":            {&v1alpha1.Proposal{State: v1alpha1.ProposalRefused, Number: 1, Files: 2, Refused: 3}, 0, 3},
		"none":               {nil, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			l, reg := deliveredTwice(t, func(string) {}).loop, prometheus.NewRegistry()
			l.Metrics = metrics.NewAgent(reg, "v", "n", "s", "g")
			l.Metrics.ProposalFiles("proposed", 9)
			if l.proposal = c.proposal; c.proposal == nil {
				l.propose(t.Context())
			} else {
				measureProposal(l.Metrics, l.proposal)
			}
			want := fmt.Sprintf("# HELP stoker_bidirectional_files Files that were changed on the gateway, by state of their proposal.\n"+
				"# TYPE stoker_bidirectional_files gauge\nstoker_bidirectional_files{state=%q} %d\nstoker_bidirectional_files{state=%q} %d\n",
				"proposed", c.proposed, "refused", c.refused)
			require.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(want), "stoker_bidirectional_files"))
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
