package propose

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/test/gitserver"
)

// TestDebounce: the debounce runs from the save, as far as the file system reports it.
func TestDebounce(t *testing.T) {
	for name, tc := range map[string]struct {
		saved time.Duration // before the comparison; negative if there was no file event
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
	pl := newPlant(t)
	g := pl.gateway("a")
	g.save(`{"v":2}`)
	g.settle(minute)
	require.Equal(t, v1alpha1.ProposalOpen, g.state())
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

// P8: what a sync may replace depends on the changes that are on the disk now, not on those of an earlier comparison.
func TestStateDescribesChanges(t *testing.T) {
	const file, other = view + "view.json", "projects/line/project.json"
	g := newPlant(t).gateway("a")
	g.save(`{"v":2}`)
	assert.False(t, g.p.Describes(g.disk, file), "no step has seen it")
	g.settle(minute)
	require.True(t, g.p.Proposal().Safe())
	assert.True(t, g.p.Describes(g.disk, file))
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

// P8: a failure of the forge does not hide that a newer change is not pushed.
func TestUnpushedChangeAfterFailedPoll(t *testing.T) {
	pl := newPlant(t)
	g := pl.gateway("a")
	g.save(`{"v":2}`)
	g.settle(minute)
	require.Equal(t, v1alpha1.ProposalOpen, g.state())
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

// P8: a sync that overwrites a change while the agent asks the forge does not undo it.
// A sync that the agent did not survive has replaced the change, which no user has undone: the branch has the only copy.
func TestOverwrittenBeforeRestart(t *testing.T) {
	for name, again := range map[string]int{"one sync": 1, "two syncs, known and unknown": 2} {
		t.Run(name, func(t *testing.T) {
			pl := newPlant(t)
			g := pl.gateway("a")
			g.save(`{"v":2}`)
			g.settle(minute)
			if again == 2 {
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

func TestOverwrittenDuringPoll(t *testing.T) {
	pl := newPlant(t)
	g := pl.gateway("a")
	g.save(`{"v":2}`)
	g.settle(minute)
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
