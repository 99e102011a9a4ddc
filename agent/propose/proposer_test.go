package propose

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/forge"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/test/gitserver"
)

const minute = time.Minute

// P2 of docs/internals/threats.md: whatever others do with the branch or the pull request, the agent force-pushes nothing, and says why it waits.
func TestProposal(t *testing.T) {
	t.Run("nothing has changed", func(t *testing.T) {
		pl := newPlant(t)
		g := pl.gateway("a")
		pl.server.Forget()
		g.settle(time.Hour)
		assert.Nil(t, g.last)
		assert.Zero(t, pl.server.Stats().Requests)
		assert.Zero(t, pl.hub.calls)
	})
	for _, style := range []string{"merge", "squash"} {
		t.Run("from a save to its "+style+" and back", func(t *testing.T) {
			pl := newPlant(t)
			g := pl.gateway("a")
			g.save(`{"v":2}`)
			g.step()
			assert.Equal(t, v1alpha1.ProposalSettling, g.state())
			assert.Empty(t, pl.hub.open())
			g.settle(minute)
			require.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
			open := pl.hub.open()
			require.Len(t, open, 1)
			assert.Equal(t, "a: 1 resource of line changed by maria", open[0].Title)
			assert.Equal(t, open[0].URL, g.last.URL)
			assert.Equal(t, `{"v":2}`, pl.repo.Content(open[0].Branch, "site/"+view+"view.json"))
			assert.Equal(t, "maria (Ignition)|maria@a.plants.invalid|Stoker", pl.repo.Git("log", "-1", "--format=%an|%ae|%cn", open[0].Branch))
			assert.Contains(t, pl.repo.Git("log", "-1", "--format=%(trailers)", open[0].Branch), "Stoker-Gateway: plants/a")

			pl.merge(style)
			assert.Zero(t, g.pull(), "the merge writes files")
			g.settle(minute)
			assert.Equal(t, v1alpha1.ProposalMerged, g.state())
			assert.Empty(t, pl.repo.Git("for-each-ref", "refs/heads/gateway-changes"), "the branch is not deleted")
			calls := pl.hub.calls
			g.settle(time.Hour)
			assert.Equal(t, calls, pl.hub.calls, "no further calls to the forge")
		})
	}
	t.Run("the branch does not include newer commits", func(t *testing.T) {
		pl, g := opened(t)
		pl.repo.Commit("second", gitserver.Write("unmapped/readme.md", "new"))
		g.pull()
		g.proposes(`{"v":3}`)
		assert.Equal(t, "not on the gateway", pl.repo.Content("gateway-changes/plants/a", "unmapped/readme.md"))
		assert.Len(t, pl.hub.open(), 1)
	})
	t.Run("undone after a sync of other files", func(t *testing.T) {
		pl, g := opened(t)
		pl.repo.Commit("second", gitserver.Write("site/projects/line/project.json", `{"title":"New"}`))
		require.NotZero(t, g.pull())
		g.settle(minute)
		g.undo()
		g.settle(minute)
		assert.Equal(t, v1alpha1.ProposalWithdrawn, g.state())
		assert.Empty(t, pl.hub.open())
	})
	t.Run("undone on the gateway", func(t *testing.T) {
		pl, g := opened(t)
		g.undo()
		g.settle(minute)
		assert.Equal(t, v1alpha1.ProposalWithdrawn, g.state())
		assert.Empty(t, pl.hub.open())
		assert.Empty(t, pl.repo.Git("for-each-ref", "refs/heads/gateway-changes"))
	})
	t.Run("overwritten by a sync is not undone", func(t *testing.T) {
		pl, g := opened(t)
		pl.repo.Commit("second", gitserver.Files(withView(t, `{"v":9}`)))
		require.NotZero(t, g.pull())
		g.settle(minute)
		assert.Equal(t, v1alpha1.ProposalOpen, g.state())
		assert.Len(t, pl.hub.open(), 1)
	})
	t.Run("a sync overwrites a part of the changes", func(t *testing.T) {
		pl := newPlant(t)
		g := pl.gateway("a")
		g.save(`{"v":2}`)
		g.disk.Write("config/resources/core/a/data.bin", "from a user")
		g.settle(minute)
		require.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
		pl.repo.Commit("second", gitserver.Files(withView(t, `{"v":9}`)))
		require.NotZero(t, g.pull())
		g.settle(minute)
		branch := "gateway-changes/plants/a"
		assert.Equal(t, "1", pl.repo.Git("rev-list", "--count", "main.."+branch), "no second push")
		g.restart()
		g.disk.Write("config/resources/core/a/data.bin", "more from a user")
		g.settle(2 * minute)
		assert.Equal(t, "2", pl.repo.Git("rev-list", "--count", "main.."+branch))
		assert.Equal(t, `{"v":2}`, pl.repo.Content(branch, "site/"+view+"view.json"), "the overwritten change is still proposed")
		assert.Equal(t, "more from a user", pl.repo.Content(branch, "site/config/resources/core/a/data.bin"))
		g.settle(20 * minute)
		assert.Equal(t, "2", pl.repo.Git("rev-list", "--count", "main.."+branch))
		g.save(`{"v":10}`)
		g.settle(2 * minute)
		assert.Equal(t, `{"v":10}`, pl.repo.Content(branch, "site/"+view+"view.json"), "a newer save replaces the change")
		assert.Len(t, pl.hub.open(), 1)
	})
	t.Run("closed is not proposed again, but another change is", func(t *testing.T) {
		pl, g := opened(t)
		require.NoError(t, pl.hub.Close(t.Context(), 1, ""))
		g.settle(20 * minute)
		assert.Equal(t, v1alpha1.ProposalClosed, g.state())
		g.restart()
		g.settle(time.Hour)
		require.Len(t, pl.hub.list, 1)
		g.proposes(`{"v":3}`)
		require.Len(t, pl.hub.list, 2)
		assert.Equal(t, v1alpha1.ProposalOpen, g.state())
	})
	t.Run("a foreign commit takes over the branch", func(t *testing.T) {
		pl, g := opened(t)
		pl.repo.Checkout("gateway-changes/plants/a")
		tip := pl.repo.Commit("review", gitserver.Write("unmapped/readme.md", "reviewed"))
		pl.repo.Checkout("main")
		g.save(`{"v":3}`)
		g.settle(20 * minute)
		assert.Equal(t, v1alpha1.ProposalForeign, g.state())
		assert.Equal(t, v1alpha1.ReasonBranchTaken, g.last.Reason)
		assert.Equal(t, tip, pl.repo.Git("rev-parse", "gateway-changes/plants/a"))
	})
	t.Run("an existing branch", func(t *testing.T) {
		pl := newPlant(t)
		g := pl.gateway("a")
		pl.repo.Branch("gateway-changes/plants/a", pl.repo.Head())
		g.proposes(`{"v":2}`)
		assert.Equal(t, v1alpha1.ReasonBranchTaken, g.last.Reason)
		assert.Empty(t, pl.hub.list)
	})
	t.Run("a branch of another gateway", func(t *testing.T) {
		pl := newPlant(t)
		other := pl.gateway("b")
		other.settings.Branch = "gateway-changes/plants/a"
		other.proposes(`{"v":7}`)
		g := pl.gateway("a")
		g.proposes(`{"v":2}`)
		assert.Equal(t, v1alpha1.ReasonBranchTaken, g.last.Reason)
		assert.Contains(t, g.last.Message, "plants/b")
	})
	t.Run("a changed record touches no other pull request", func(t *testing.T) {
		pl := newPlant(t)
		other := pl.gateway("b")
		other.proposes(`{"v":7}`)
		g := pl.gateway("a")
		g.proposes(`{"v":2}`)
		rec, err := loadRecord(g.notes)
		require.NoError(t, err)
		rec.Number = 1 // that of the other gateway
		require.NoError(t, rec.save(g.notes))
		title := pl.hub.list[0].Title
		g.restart()
		g.save(`{"v":3}`)
		g.settle(2 * minute)
		g.undo()
		g.settle(2 * minute)
		assert.Equal(t, forge.Open, pl.hub.list[0].State)
		assert.Equal(t, title, pl.hub.list[0].Title)
	})
	t.Run("the record after a restart", func(t *testing.T) {
		pl := newPlant(t)
		g := pl.gateway("a")
		assert.Nil(t, g.p.Recall(g.notes))
		g.proposes(`{"v":2}`)
		g.restart()
		shown := g.p.Recall(g.notes)
		require.NotNil(t, shown)
		assert.Equal(t, v1alpha1.ProposalOpen, shown.State)
	})
	t.Run("only the branch, without a forge", func(t *testing.T) {
		pl := newPlant(t)
		g := pl.gateway("a")
		g.settings.Forge = nil
		g.proposes(`{"v":2}`)
		assert.Equal(t, v1alpha1.ProposalPushed, g.state())
		assert.Equal(t, `{"v":2}`, pl.repo.Content("gateway-changes/plants/a", "site/"+view+"view.json"))
		pl.repo.ForcePush(pl.repo.Git("rev-parse", "gateway-changes/plants/a"))
		assert.Zero(t, g.pull())
		g.settle(minute)
		assert.Equal(t, v1alpha1.ProposalMerged, g.state())
	})
	t.Run("endless saves are proposed after ten minutes", func(t *testing.T) {
		pl := newPlant(t)
		g := pl.gateway("a")
		for i := range 13 { // a save every 50 seconds, for more than ten minutes
			g.save(fmt.Sprintf(`{"v":%d}`, 10+i))
			g.step()
			if g.p.work.runs() {
				<-g.p.Done()
				g.step()
			}
			g.clock = g.clock.Add(50 * time.Second)
			g.settings.Debounce = minute
		}
		assert.Len(t, pl.hub.open(), 1)
	})
	t.Run("at most six pushes an hour", func(t *testing.T) {
		pl := newPlant(t)
		g := pl.gateway("a")
		for i := range 10 {
			g.save(fmt.Sprintf(`{"v":%d}`, 10+i))
			g.settle(2 * minute)
		}
		assert.Equal(t, "6", pl.repo.Git("rev-list", "--count", "main..gateway-changes/plants/a"))
		g.settle(time.Hour)
		assert.Len(t, pl.hub.list, 1)
		assert.Equal(t, `{"v":19}`, pl.repo.Content("gateway-changes/plants/a", "site/"+view+"view.json"))
	})
	t.Run("refused changes push nothing", func(t *testing.T) {
		pl := newPlant(t)
		g := pl.gateway("a")
		g.settings.Guard.Content = func(io.Reader) (string, bool) { return "password", true }
		g.save(`{"v":2}`)
		pl.server.Forget()
		g.settle(time.Hour)
		assert.Equal(t, v1alpha1.ProposalRefused, g.state())
		assert.Equal(t, v1alpha1.ReasonChangesRefused, g.last.Reason)
		assert.Zero(t, pl.server.Stats().Requests)
	})
	t.Run("renew proposes again from the current commit", func(t *testing.T) {
		pl, g := opened(t)
		pl.repo.Commit("second", gitserver.Write("unmapped/readme.md", "new"))
		g.pull()
		_, _ = g.p.Step(t.Context(), &g.settings, Input{Notes: g.notes, Changed: g.changed(), Compared: g.clock, Renew: "now", Base: func() (Base, error) {
			return Base{Commit: g.commit, Root: g.root, Objects: g.store, Desired: g.desired, Manifest: g.manifest, State: g.disk, RootOf: g.store.RootTree,
				CommitText: func(ctx context.Context, id plan.ID) ([]byte, error) {
					return g.store.CommitText(ctx, g.settings.Remote, id)
				}}, nil
		}})
		g.settle(2 * minute)
		require.Len(t, pl.hub.list, 2)
		assert.Equal(t, forge.Closed, pl.hub.list[0].State)
		assert.Equal(t, "new", pl.repo.Content("gateway-changes/plants/a", "unmapped/readme.md"))
	})
}

// TestSameChangeOnReplicas lets five gateways save the same at the same time.
func TestSameChangeOnReplicas(t *testing.T) {
	pl := newPlant(t)
	var all []*gateway
	for i := range 5 {
		g := pl.gateway(fmt.Sprintf("replica-%d", i))
		g.save(`{"v":2}`)
		g.step()
		g.clock = g.clock.Add(minute)
		all = append(all, g)
	}
	for _, g := range all {
		g.step() // all push at once
	}
	for _, g := range all {
		g.settle(minute)
		assert.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
	}
	open := pl.hub.open()
	require.Len(t, open, 1)
	for _, g := range all {
		assert.Equal(t, open[0].URL, g.last.URL)
	}
	assert.Len(t, strings.Fields(pl.repo.Git("for-each-ref", "--format=%(refname)", "refs/heads/gateway-changes")), 1)
	pl.merge("squash")
	for _, g := range all {
		assert.Zero(t, g.pull())
		g.settle(minute)
		assert.Equal(t, v1alpha1.ProposalMerged, g.state())
	}
}

// P1 of docs/internals/threats.md: calls of the forge, pushes and writes of the record fail, with and without a restart of the agent: there is one
// pull request at the end.
func TestProposalSurvivesFailures(t *testing.T) {
	down := failure.New(v1alpha1.ReasonGitUnreachable, "the forge is down")
	for _, restart := range []bool{false, true} {
		for call := range 5 {
			t.Run(fmt.Sprintf("call %d of the forge fails, restart %t", call, restart), func(t *testing.T) {
				pl := newPlant(t)
				g := pl.gateway("a")
				h := &failing{hub: pl.hub, at: call, err: down}
				g.settings.Forge = h
				g.proposes(`{"v":2}`)
				if restart {
					g.restart()
				}
				g.settle(20 * minute)
				assert.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
				assert.Len(t, pl.hub.list, 1)
			})
		}
	}
	t.Run("the server has lost the deployed commit", func(t *testing.T) {
		pl := newPlant(t)
		g := pl.gateway("a")
		pl.repo.Orphan("rewritten", gitserver.Files(withView(t, `{"v":1}`)))
		pl.repo.Git("reflog", "expire", "--expire=now", "--all")
		pl.repo.Git("gc", "--quiet", "--prune=now")
		g.proposes(`{"v":2}`)
		require.Equal(t, v1alpha1.ReasonPushRejected, g.last.Reason, "%+v", g.last)
		g.pull()
		g.proposes(`{"v":3}`)
		assert.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
	})
	t.Run("the answer to a creation is lost", func(t *testing.T) {
		pl := newPlant(t)
		g := pl.gateway("a")
		pl.hub.lose = true
		g.proposes(`{"v":2}`)
		g.restart()
		g.settle(20 * minute)
		assert.Equal(t, v1alpha1.ProposalOpen, g.state())
		assert.Len(t, pl.hub.list, 1)
	})
	t.Run("the record cannot be written", func(t *testing.T) {
		pl := newPlant(t)
		g := pl.gateway("a")
		g.save(`{"v":2}`)
		g.step()
		g.notes.mu.Lock()
		g.notes.fail = errors.New("the disk is full")
		g.notes.mu.Unlock()
		g.settle(minute)
		assert.Empty(t, pl.repo.Git("for-each-ref", "refs/heads/gateway-changes"), "no push without a record")
		g.notes.mu.Lock()
		g.notes.fail = nil
		g.notes.mu.Unlock()
		g.settle(time.Hour)
		assert.Len(t, pl.hub.open(), 1)
	})
	t.Run("the agent ends between a push and its record", func(t *testing.T) {
		pl, g := interrupted(t)
		g.settings.Forge = pl.hub
		g.settle(20 * minute)
		assert.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
		assert.Len(t, pl.hub.open(), 1)
		assert.Equal(t, "1", pl.repo.Git("rev-list", "--count", "main..gateway-changes/plants/a"))
	})
	t.Run("the answer to a push is lost, and the next change is refused", func(t *testing.T) {
		pl := newPlant(t)
		g := pl.gateway("a")
		g.save(`{"v":2}`)
		g.settle(minute)
		before, err := loadRecord(g.notes)
		require.NoError(t, err)
		g.save(`{"v":3}`)
		g.settle(5 * minute)
		rec, err := loadRecord(g.notes)
		require.NoError(t, err)
		require.NotEqual(t, before.Tip, rec.Tip)
		rec.Pending, rec.Tip, rec.TextDigest = rec.Tip, before.Tip, before.TextDigest
		require.NoError(t, rec.save(g.notes))
		g.restart()
		guard := g.settings.Guard
		g.settings.Guard.Content = func(io.Reader) (string, bool) { return "a password", true }
		g.save(`{"v":"password"}`)
		g.settle(20 * minute)
		assert.Equal(t, v1alpha1.ProposalRefused, g.state(), "%+v", g.last)
		g.settings.Guard = guard
		g.save(`{"v":4}`)
		g.settle(20 * minute)
		assert.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
		assert.JSONEq(t, `{"v":4}`, pl.repo.Git("show", "gateway-changes/plants/a:site/"+view+"view.json"))
	})
}

// TestLostRecord lets the agent lose its record while its branch is on the server.
func TestLostRecord(t *testing.T) {
	branch := "gateway-changes/plants/a"
	lose := func(t *testing.T) (*plant, *gateway) {
		pl, g := opened(t)
		require.Len(t, pl.hub.open(), 1)
		g.notes.content = map[string][]byte{}
		g.restart()
		return pl, g
	}
	t.Run("the same changes: the branch is adopted", func(t *testing.T) {
		pl, g := lose(t)
		tip := pl.repo.Git("rev-parse", branch)
		g.settle(2 * minute)
		assert.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
		assert.Equal(t, tip, pl.repo.Git("rev-parse", branch))
		assert.Len(t, pl.hub.list, 1)
		g.save(`{"v":3}`)
		g.settle(2 * minute)
		assert.Equal(t, `{"v":3}`, pl.repo.Content(branch, "site/"+view+"view.json"))
		assert.Equal(t, "2", pl.repo.Git("rev-list", "--count", "main.."+branch))
		pl.merge("squash")
		assert.Zero(t, g.pull())
		g.settle(minute)
		assert.Equal(t, v1alpha1.ProposalMerged, g.state())
	})
	t.Run("other changes: the branch stays", func(t *testing.T) {
		pl, g := lose(t)
		tip := pl.repo.Git("rev-parse", branch)
		g.save(`{"v":3}`)
		g.settle(2 * minute)
		assert.Equal(t, v1alpha1.ReasonBranchTaken, g.last.Reason)
		assert.Equal(t, tip, pl.repo.Git("rev-parse", branch))
		assert.Len(t, pl.hub.open(), 1)
	})
	t.Run("closed pull request: the branch starts again", func(t *testing.T) {
		pl, g := lose(t)
		require.NoError(t, pl.hub.Close(t.Context(), 1, ""))
		g.save(`{"v":3}`)
		g.settle(2 * minute)
		assert.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
		assert.Len(t, pl.hub.open(), 1)
		assert.Equal(t, "1", pl.repo.Git("rev-list", "--count", "main.."+branch))
	})
	t.Run("an amended commit belongs to its author", func(t *testing.T) {
		pl, g := lose(t)
		tip := pl.repo.Git("commit-tree", branch+"^{tree}", "-p", branch+"^", "-m", pl.repo.Git("log", "-1", "--format=%B", branch))
		pl.repo.Branch(branch, tip)
		g.settle(2 * minute)
		assert.Equal(t, v1alpha1.ReasonBranchTaken, g.last.Reason)
		assert.Equal(t, tip, pl.repo.Git("rev-parse", branch))
	})
}
