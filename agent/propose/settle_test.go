package propose

import (
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/test/gitserver"
)

// TestDebounce: the debounce runs from the save, as far as the file system reports it.
func TestDebounce(t *testing.T) {
	for name, tc := range map[string]struct {
		saved time.Duration // how long before the comparison; -1 if there was no file event
		want  v1alpha1.ProposalState
	}{
		"no file event":       {-1, v1alpha1.ProposalSettling},
		"recent event":        {time.Second, v1alpha1.ProposalSettling},
		"older event":         {minute, v1alpha1.ProposalPushing},
		"event in the future": {-minute, v1alpha1.ProposalSettling},
	} {
		t.Run(name, func(t *testing.T) {
			g := newPlant(t).gateway("a")
			g.save(`{"v":2}`)
			if tc.saved != -1 {
				g.event(tc.saved)
			}
			g.step()
			assert.Equal(t, tc.want, g.state())
			g.settle(minute)
			assert.Equal(t, v1alpha1.ProposalOpen, g.state())
		})
	}
}

// TestContentIsReleased: the files of an open proposal are not held in memory, and another push reads them again.
func TestContentIsReleased(t *testing.T) {
	pl, g := opened(t)
	require.NotNil(t, g.p.seen.built)
	assert.Nil(t, g.p.seen.built.Draft)
	assert.Nil(t, g.p.seen.built.edits)
	assert.Len(t, g.p.seen.built.Files, 3)

	g.p.kept.Number = 0 // the pull request is opened again
	g.step()
	g.settle(minute)
	assert.Equal(t, v1alpha1.ProposalOpen, g.state())
	assert.Len(t, pl.hub.open(), 1)
}

// P8 of docs/internals/threats.md: what a sync may replace depends on the changes that are on the disk now, not on those of an earlier comparison.
func TestStateDescribesChanges(t *testing.T) {
	const file, other = view + "view.json", "projects/line/project.json"
	g := newPlant(t).gateway("a")
	g.save(`{"v":2}`)
	assert.False(t, g.p.Describes(g.disk, file), "no step has seen it")
	g.settle(minute)
	require.True(t, g.p.Proposal().Safe())
	assert.True(t, g.p.Describes(g.disk, file))
	assert.True(t, g.p.Describes(g.disk, file, view+"resource.json"), "a sync replaces both")
	assert.False(t, g.p.Describes(g.disk, file, other))
	g.save(`{"v":3}`)
	assert.False(t, g.p.Describes(g.disk, file), "it was saved again")
	g.settle(minute)
	require.True(t, g.p.Proposal().Safe())
	assert.True(t, g.p.Describes(g.disk, file))
	g.standby = true
	g.step()
	assert.True(t, g.p.Describes(g.disk, other), "a standby node proposes nothing")
}

// P8 of docs/internals/threats.md: a failure of the forge does not hide that a newer change is not pushed.
func TestUnpushedChangeAfterFailedPoll(t *testing.T) {
	pl, g := opened(t)
	pl.hub.mu.Lock()
	pl.hub.fail = failure.New(v1alpha1.ReasonGitUnreachable, "the forge is down")
	pl.hub.mu.Unlock()
	g.clock = g.clock.Add(10 * minute)
	g.step()
	<-g.p.Done()
	g.save(`{"v":3}`)
	g.clock = g.clock.Add(2 * minute)
	g.event(minute)
	g.step()
	require.Equal(t, v1alpha1.ReasonGitUnreachable, g.last.Reason)
	g.step()
	assert.Equal(t, v1alpha1.ProposalPushing, g.state())
	assert.False(t, g.p.Proposal().Safe())
	g.settle(minute)
	assert.Equal(t, v1alpha1.ProposalOpen, g.state())
}

// P8 of docs/internals/threats.md: a sync that the agent did not survive has replaced the change, which no user has undone. The branch has the only
// copy.
func TestOverwrittenBeforeRestart(t *testing.T) {
	for name, syncs := range map[string]int{"one sync": 1, "after a sync that the agent survived": 2} {
		t.Run(name, func(t *testing.T) {
			pl, g := opened(t)
			if syncs == 2 {
				pl.repo.Commit("elsewhere", gitserver.Write("unmapped/readme.md", "text"))
				g.pull()
				g.synced = true
				g.settle(minute)
			}
			pl.repo.Commit("second", gitserver.Files(withView(t, `{"v":9}`)))
			require.NotZero(t, g.pull())
			g.synced = false
			g.restart()
			g.settle(minute)
			assert.Equal(t, v1alpha1.ProposalOpen, g.state())
			assert.Len(t, pl.hub.open(), 1)
			assert.NotEmpty(t, pl.repo.Git("for-each-ref", "refs/heads/gateway-changes"))
		})
	}
}

// P8 of docs/internals/threats.md: a sync that replaces a change while the agent asks the forge does not end the proposal, because no user has undone
// the change.
func TestOverwrittenDuringPoll(t *testing.T) {
	pl, g := opened(t)
	pl.repo.Commit("second", gitserver.Files(withView(t, `{"v":9}`)))
	g.clock = g.clock.Add(2 * pollEvery)
	pl.hub.mu.Lock()
	g.step()
	require.True(t, g.p.work.runs())
	require.NotZero(t, g.pull())
	g.step()
	pl.hub.mu.Unlock()
	g.settle(minute)
	assert.Equal(t, v1alpha1.ProposalOpen, g.state())
	assert.Len(t, pl.hub.open(), 1)
}

// TestPullRequestBody: lists of Azure DevOps have only the first 400 characters of a body, so it starts with the change.
func TestPullRequestBody(t *testing.T) {
	long := Identity{strings.Repeat("n", 63), strings.Repeat("g", 253)}
	c := &Changes{Files: []File{{Path: "projects/line/project.json", Op: Modified}}, Digest: strings.Repeat("0a", 32)}
	text := []rune(body(long, c, plan.ID{1}))
	assert.Greater(t, len(text), 400)
	assert.Equal(t, c.Digest, digestOf(string(text[:400])))
}

// TestInterruptedPush: after a restart, a push counts only if the record says that it succeeded. Otherwise a sync would replace the change.
func TestInterruptedPush(t *testing.T) {
	g := newPlant(t).gateway("a")
	r := record{Branch: g.settings.Branch, Digest: strings.Repeat("0a", 32), Pending: plan.ID{1}, Files: map[plan.Path]proposed{"a": {Path: "b"}}}
	require.NoError(t, r.save(g.notes))
	g.restart()
	shown := g.p.Recall(g.notes)
	require.NotNil(t, shown)
	assert.Equal(t, v1alpha1.ProposalPushing, shown.State)
	assert.False(t, g.p.Proposal().Safe())
}

// The spec may name a credential that the pod does not mount. The user learns that before the first change.
func TestProblemWithoutChanges(t *testing.T) {
	g := newPlant(t).gateway("a")
	problem := failure.New(v1alpha1.ReasonPodRestartNeeded, "restart the pod")
	g.settings.Problem = problem
	g.step()
	require.NotNil(t, g.last)
	assert.Equal(t, v1alpha1.ReasonPodRestartNeeded, g.last.Reason)
	assert.Empty(t, g.last.State, "there is no proposal")

	g.proposes(`{"v":2}`)
	assert.Equal(t, v1alpha1.ReasonPodRestartNeeded, g.last.Reason)
	assert.Empty(t, g.last.State, "nothing is pushed")
	assert.False(t, g.p.Proposal().Safe())
	assert.False(t, g.p.Proposal().Settled())

	g.settings.Problem = nil
	g.settle(minute)
	assert.Equal(t, v1alpha1.ProposalOpen, g.state())
	assert.Empty(t, g.last.Reason)

	g.settings.Problem = problem
	g.step()
	assert.Equal(t, v1alpha1.ProposalOpen, g.state(), "the pull request stays")
	assert.Equal(t, v1alpha1.ReasonPodRestartNeeded, g.last.Reason)
}

// A forge that does not know the repository for a moment delays a proposal by seconds, and one that never knows it gets few requests.
func TestPauseAfterUnknownRepository(t *testing.T) {
	err := failure.New(v1alpha1.ReasonUnsupportedRepository, "no such repository")
	assert.Less(t, pauseAfter(err, v1alpha1.ReasonUnsupportedRepository, 1), 5*time.Second)
	assert.Greater(t, pauseAfter(err, v1alpha1.ReasonUnsupportedRepository, 2), 45*time.Second)
	assert.Greater(t, pauseAfter(err, v1alpha1.ReasonAuthFailed, 1), 45*time.Second)
}

// replacing returns a Proposer, and a function that asks it whether a sync may replace a change. rec is the record of the proposal, after the time
// since replacing was called, and described what Describes reports of the change.
func replacing(t *testing.T, strategy v1alpha1.ConflictStrategy, debounce time.Duration) (*Proposer, func(rec record, after time.Duration, described bool) error) {
	began := time.Now()
	now := began
	p, n := New(slog.New(slog.DiscardHandler), func() time.Time { return now }), &notes{content: map[string][]byte{}}
	return p, func(rec record, after time.Duration, described bool) error {
		require.NoError(t, rec.save(n))
		p.kept.loaded = false
		require.NotNil(t, p.Recall(n))
		now = began.Add(after)
		return p.Replace(&Settings{Debounce: debounce}, strategy, []string{"projects/line/project.json"}, described)
	}
}

var (
	mergedRecord = record{LastState: v1alpha1.ProposalMerged}
	pushedRecord = record{Branch: "gateway-changes/plants/g", Tip: plan.ID{1}, Digest: "x"}
)

// P8 of docs/internals/threats.md: the wait for a change begins with that change, and not with an earlier one that the sync was allowed to replace.
func TestWaitForUnseenChange(t *testing.T) {
	for strategy, rec := range map[v1alpha1.ConflictStrategy]record{v1alpha1.StrategyGitWins: pushedRecord, v1alpha1.StrategyGatewayWins: mergedRecord} {
		t.Run(string(strategy), func(t *testing.T) {
			const debounce, limit = time.Minute, time.Minute + pushGrace
			_, replace := replacing(t, strategy, debounce)
			require.NoError(t, replace(rec, 0, true))
			later := time.Hour // an open Designer has held the sync until then
			require.ErrorAs(t, replace(rec, later, false), &UnseenError{})
			require.NoError(t, replace(rec, later+limit, false))
			require.NoError(t, replace(rec, later+limit+time.Second, false), "one wait is enough")
		})
	}
}

// While a pull request is open, the sync waits for it, so the time of an earlier wait does not count for a change that is saved later.
func TestWaitForUnseenChangeAfterOpenPullRequest(t *testing.T) {
	const debounce, limit = time.Minute, time.Minute + pushGrace
	_, replace := replacing(t, v1alpha1.StrategyGatewayWins, debounce)
	require.Error(t, replace(mergedRecord, 0, false))
	err := replace(pushedRecord, limit/2, true)
	require.Error(t, err)
	assert.NotErrorAs(t, err, &UnseenError{}, "no comparison helps")
	require.Error(t, replace(mergedRecord, time.Hour, false), "the wait begins again")
	require.NoError(t, replace(mergedRecord, time.Hour+limit, false))
}

// Commits that come faster than the wait ends do not make it longer. A sync that ran in between ends it.
func TestWaitOfNewOrders(t *testing.T) {
	const limit = time.Minute + pushGrace
	unpushed := record{Branch: pushedRecord.Branch, Digest: "x", Pending: plan.ID{1}}
	p, replace := replacing(t, v1alpha1.StrategyGitWins, time.Minute)
	for _, after := range []time.Duration{0, limit / 2, limit - 1} { // sequence: three orders
		p.Starts(true)
		require.Error(t, replace(unpushed, after, true))
	}
	p.Starts(true)
	require.NoError(t, replace(unpushed, limit, true))
	p.Starts(true)
	require.Error(t, replace(unpushed, limit, true), "the change is another one")
	p.Starts(false) // and asks nothing, because the change was undone
	p.Starts(true)
	require.Error(t, replace(unpushed, time.Hour, true))
}

// A directory that cannot be read keeps new files from being proposed, which a user must learn. Other changes are proposed.
func TestUnreadableDirectory(t *testing.T) {
	_, g := opened(t)
	g.walkErr = fs.ErrPermission
	g.event(0)
	g.save(`{"v":3}`)
	g.settle(2 * minute)
	assert.Equal(t, v1alpha1.ProposalOpen, g.state())
	assert.Equal(t, v1alpha1.ReasonWriteFailed, g.last.Reason)
	assert.Equal(t, `{"v":3}`, g.plant.repo.Content("gateway-changes/plants/a", "site/"+view+"view.json"))
	g.standby = true // it walks no more
	g.settle(time.Hour)
	assert.Empty(t, g.last.Reason, "%+v", g.last)
	g.standby, g.walkErr = false, nil
	g.settle(time.Hour)
	assert.Empty(t, g.last.Reason)
}

// The record can be forged: what a sync overwrote is described by what git has, and counts for the limits.
func TestForgedOverwrittenFiles(t *testing.T) {
	pl, g := opened(t)
	rec, err := loadRecord(g.notes)
	require.NoError(t, err)
	blob := repotest.ParseID(t, pl.repo.Git("rev-parse", "main:unmapped/readme.md"))
	for i := range 3 {
		name := fmt.Sprintf("projects/line/scripts/%d.py", i)
		rec.Files[plan.Path("site/"+name)] = proposed{Path: name, Op: "added\n\nStoker-Change: x", ID: blob, Overwritten: true}
	}
	require.NoError(t, rec.save(g.notes))
	g.restart()
	g.save(`{"v":3}`)
	g.settle(2 * minute)
	assert.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
	assert.NotContains(t, pl.repo.Git("log", "-1", "--format=%B", "gateway-changes/plants/a"), "Stoker-Change: x")
	g.settings.Limits.Files = 5
	g.save(`{"v":4}`)
	g.settle(2 * minute)
	assert.Equal(t, v1alpha1.ProposalRefused, g.state(), "%+v", g.last)
}
