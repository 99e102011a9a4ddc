package propose

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/forge"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/test/gitserver"
)

// P1, P2 and P7 of docs/internals/threats.md: a proposal ends in the right way, also after failures, commits of other authors and forged records.
func TestEndOfProposal(t *testing.T) {
	t.Run("merged with a commit of the reviewer", func(t *testing.T) {
		pl, g := opened(t)
		pl.repo.Checkout("gateway-changes/plants/a")
		pl.repo.Commit("review", gitserver.Files(withView(t, `{"v":22}`)))
		pl.repo.Checkout("main")
		pl.merge("merge")
		pl.repo.Git("update-ref", "-d", "refs/heads/gateway-changes/plants/a")
		g.settle(10 * minute)
		assert.Equal(t, v1alpha1.ProposalMerged, g.state())
		assert.NotZero(t, g.pull())
		g.settle(20 * minute)
		assert.Equal(t, v1alpha1.ProposalMerged, g.state())
		g.save(`{"v":3}`)
		g.settle(20 * minute)
		assert.Equal(t, v1alpha1.ProposalOpen, g.state())
		assert.Len(t, pl.hub.open(), 1)
	})
	t.Run("new commits between merge and deployment", func(t *testing.T) {
		pl, g := opened(t)
		pl.merge("squash")
		pl.repo.Checkout("main")
		pl.repo.Commit("more", gitserver.Files(withView(t, `{"v":9}`)))
		g.pull()
		g.settle(20 * minute)
		assert.Equal(t, v1alpha1.ProposalMerged, g.state())
		g.save(`{"v":3}`)
		g.settle(20 * minute)
		assert.Len(t, pl.hub.open(), 1)
	})
	for name, behind := range map[string]bool{"the newest commit": false, "an older one": true} {
		t.Run("merged without a file that the reviewer restored, the gateway has "+name, func(t *testing.T) {
			const file = "config/resources/core/a/data.bin"
			pl := newPlant(t)
			g := pl.gateway("a")
			g.disk.Write(file, "from a user")
			g.proposes(`{"v":2}`)
			pl.repo.Checkout("gateway-changes/plants/a")
			pl.repo.Commit("review", gitserver.Delete("site/"+file))
			pl.repo.Checkout("main")
			pl.merge("squash")
			pl.repo.DeleteBranch("gateway-changes/plants/a")
			g.settle(20 * minute)
			require.Equal(t, v1alpha1.ProposalMerged, g.state())
			g.pull()
			if behind {
				pl.repo.Commit("newer", gitserver.Write("unmapped/readme.md", "new"))
			}
			g.settle(time.Hour)
			assert.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
			require.Len(t, pl.hub.open(), 1)
			assert.Equal(t, "site/"+file, pl.repo.Git("diff", "--name-only", "gateway-changes/plants/a^", "gateway-changes/plants/a"))
		})
	}
	t.Run("committed without the pull request", func(t *testing.T) {
		pl, g := opened(t)
		pl.merge("squash")
		pl.hub.list[0].State = forge.Open
		g.pull()
		g.settle(20 * minute)
		assert.Equal(t, v1alpha1.ProposalMerged, g.state())
		assert.Empty(t, pl.hub.open())
	})
	t.Run("merged after another merge brought a part", func(t *testing.T) {
		pl := newPlant(t)
		g := pl.gateway("a")
		g.disk.Write("config/resources/core/a/data.bin", "from a user")
		g.proposes(`{"v":2}`)
		pl.repo.Commit("of another gateway", gitserver.Files(withView(t, `{"v":2}`)), gitserver.Write("site/config/resources/core/b/data.bin", "new"))
		require.NotZero(t, g.pull())
		g.settle(minute)
		require.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
		pl.merge("squash")
		g.settle(20 * minute)
		assert.Equal(t, v1alpha1.ProposalMerged, g.state())
		assert.Empty(t, pl.hub.open(), "git has all of it, and the gateway only waits for the merge")
	})
	t.Run("merged and reverted before the gateway had it", func(t *testing.T) {
		pl, g := opened(t)
		pl.merge("squash")
		g.settle(20 * minute)
		require.Equal(t, v1alpha1.ProposalMerged, g.state())
		g.settle(20 * minute)
		require.Equal(t, v1alpha1.ProposalMerged, g.state(), "the gateway has not received it")
		pl.repo.Checkout("main")
		pl.repo.Commit("revert", gitserver.Files(withView(t, `{"v":1}`)))
		assert.Zero(t, g.pull())
		g.settle(time.Hour)
		assert.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
		assert.Len(t, pl.hub.open(), 1)
	})
	t.Run("a shared pull request is merged, not deployed", func(t *testing.T) {
		pl, _ := opened(t)
		b := pl.gateway("b")
		b.proposes(`{"v":2}`)
		require.Equal(t, v1alpha1.ProposalOpen, b.state())
		pl.merge("squash")
		b.settle(20 * minute)
		assert.NotEqual(t, v1alpha1.ProposalClosed, b.state(), "%+v", b.last)
		b.pull()
		b.settle(minute)
		assert.Equal(t, v1alpha1.ProposalMerged, b.state(), "%+v", b.last)
	})
	t.Run("another gateway opens a pull request first, and the forge fails", func(t *testing.T) {
		for call := 4; call < 7; call++ { // the first calls after Create
			pl := newPlant(t)
			b := pl.gateway("b")
			b.save(`{"v":2}`)
			// The other gateway creates a pull request after this agent has looked for one.
			h := &racing{failing: &failing{hub: pl.hub, at: call - 1, err: failure.New(v1alpha1.ReasonGitUnreachable, "down")}, pl: pl, t: t}
			b.settings.Forge = h
			b.settle(minute)
			b.settle(time.Hour)
			assert.Len(t, pl.hub.open(), 1, "call %d", call)
		}
	})
	t.Run("the reason stays until an attempt succeeds", func(t *testing.T) {
		pl, g := opened(t)
		g.settings.Forge = &broken{pl.hub}
		g.clock = g.clock.Add(10 * minute)
		g.step()
		<-g.p.Done()
		g.step()
		require.Equal(t, v1alpha1.ReasonAuthFailed, g.last.Reason)
		g.clock = g.clock.Add(10 * time.Second)
		g.step()
		assert.Equal(t, v1alpha1.ReasonAuthFailed, g.last.Reason)
	})
	t.Run("closed after a sync overwrote a file", func(t *testing.T) {
		pl := newPlant(t)
		g := pl.gateway("a")
		g.save(`{"v":2}`)
		g.disk.Write("config/resources/core/a/data.bin", "from a user")
		g.settle(minute)
		pl.repo.Commit("second", gitserver.Files(withView(t, `{"v":9}`)))
		g.pull()
		g.settle(minute)
		require.NoError(t, pl.hub.Close(t.Context(), 1, ""))
		g.settle(20 * minute)
		assert.Equal(t, v1alpha1.ProposalClosed, g.state())
		g.settle(20 * minute)
		assert.Len(t, pl.hub.list, 1)
	})
	t.Run("undone after an interrupted push", func(t *testing.T) {
		pl, g := interrupted(t)
		g.undo()
		g.settle(minute)
		assert.Equal(t, v1alpha1.ProposalWithdrawn, g.state())
		assert.Empty(t, pl.repo.Git("for-each-ref", "refs/heads/gateway-changes"))
	})
	t.Run("undone while the forge is unreachable", func(t *testing.T) {
		pl, g := opened(t)
		g.settings.Forge = &broken{pl.hub}
		g.undo()
		g.settle(minute)
		g.settings.Forge = pl.hub
		g.settle(time.Hour)
		assert.Empty(t, pl.hub.open(), "%v", g.state())
	})
	t.Run("undone before the record has the number", func(t *testing.T) {
		pl, g := opened(t)
		rec, err := loadRecord(g.notes)
		require.NoError(t, err)
		rec.Number, rec.URL = 0, ""
		require.NoError(t, rec.save(g.notes))
		g.restart()
		g.undo()
		g.settle(minute)
		assert.Equal(t, v1alpha1.ProposalWithdrawn, g.state())
		assert.Empty(t, pl.hub.open())
	})
	for name, forged := range map[string]record{
		"of an ended proposal": {LastState: v1alpha1.ProposalMerged},
		"of a withdrawn one":   {Branch: "gateway-changes/plants/a", Digest: "x", Files: map[plan.Path]proposed{}},
	} {
		t.Run("a forged record "+name+" deletes no branch", func(t *testing.T) {
			pl := newPlant(t)
			g := pl.gateway("a")
			pl.repo.Git("branch", "gateway-changes/plants/a", "main")
			pl.repo.Checkout("gateway-changes/plants/a")
			tip := pl.repo.Commit("people", gitserver.Write("unmapped/readme.md", "work"))
			pl.repo.Checkout("main")
			if forged.Branch == "" {
				forged.LastTip = repotest.ParseID(t, tip)
				g.save(`{"v":2}`)
			} else {
				forged.Tip = repotest.ParseID(t, tip)
			}
			require.NoError(t, forged.save(g.notes))
			g.settle(minute)
			assert.Equal(t, tip, pl.repo.Git("for-each-ref", "--format=%(objectname)", "refs/heads/gateway-changes/plants/a"))
			if forged.Branch == "" {
				assert.Equal(t, v1alpha1.ReasonBranchTaken, g.last.Reason)
			}
		})
	}
	for name, digest := range map[string]string{"without a digest": "", "with a digest": "x"} {
		t.Run("a forged record that names the base branch "+name, func(t *testing.T) {
			pl := newPlant(t)
			pl.repo.Git("symbolic-ref", "HEAD", "refs/heads/default") // git refuses to delete the branch of HEAD
			g := pl.gateway("a")
			g.proposes(`{"v":2}`)
			tip := pl.repo.Tip("gateway-changes/plants/a")
			pl.repo.Checkout("main")
			pl.repo.ForcePush(tip) // a fast-forward merge: the tip of main is a commit of the agent
			g.pull()
			g.settle(20 * minute)
			require.Equal(t, v1alpha1.ProposalMerged, g.state())
			require.NoError(t, (&record{Branch: "main", Tip: repotest.ParseID(t, tip), Digest: digest, FinalState: v1alpha1.ProposalMerged}).save(g.notes))
			g.restart()
			g.save(`{"v":3}`)
			g.settle(20 * minute)
			assert.Equal(t, tip, pl.repo.Tip("main"))
			assert.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
		})
	}
	t.Run("a forged record of an ended proposal keeps an open pull request", func(t *testing.T) {
		pl, g := opened(t)
		tip := pl.repo.Tip("gateway-changes/plants/a")
		require.NoError(t, (&record{LastTip: repotest.ParseID(t, tip), LastState: v1alpha1.ProposalMerged}).save(g.notes))
		g.restart()
		g.save(`{"v":3}`)
		g.settle(20 * minute)
		assert.Equal(t, tip, pl.repo.Tip("gateway-changes/plants/a"))
		assert.Equal(t, v1alpha1.ReasonBranchTaken, g.last.Reason)
		assert.Len(t, pl.hub.open(), 1)
	})
	t.Run("the owner of a shared pull request undoes the change", func(t *testing.T) {
		pl, a := opened(t)
		b := pl.gateway("b")
		b.proposes(`{"v":2}`)
		a.undo()
		a.settle(minute)
		b.settle(time.Hour)
		assert.Len(t, pl.hub.open(), 1, "b still has the change: %v", b.state())
	})
	t.Run("two changes become the same", func(t *testing.T) {
		pl := newPlant(t)
		a, b, follower := pl.gateway("a"), pl.gateway("b"), pl.gateway("c")
		a.proposes(`{"v":2}`)
		b.proposes(`{"v":3}`)
		follower.proposes(`{"v":3}`)
		require.Len(t, pl.hub.open(), 2)
		b.save(`{"v":2}`)
		b.settle(time.Hour)
		require.Len(t, pl.hub.open(), 1)
		follower.settle(time.Hour)
		assert.Len(t, pl.hub.open(), 2, "c has another change: %+v", follower.last)
	})
}

// broken is a forge that refuses the agent's credential, except for creating and updating pull requests.
type broken struct{ *hub }

func (b *broken) err() error { return failure.New(v1alpha1.ReasonAuthFailed, "expired") }
func (b *broken) ByHead(_ context.Context, _, _ string) ([]forge.PullRequest, error) {
	return nil, b.err()
}
func (b *broken) Get(_ context.Context, _ int64) (forge.PullRequest, error) {
	return forge.PullRequest{}, b.err()
}
func (b *broken) Open(_ context.Context, _ string) ([]forge.PullRequest, error) {
	return nil, b.err()
}
func (b *broken) Close(_ context.Context, _ int64, _ string) error { return b.err() }

// racing is a forge on which the gateway a proposes the same change just before the first Create.
type racing struct {
	*failing
	pl   *plant
	t    *testing.T
	done bool
}

func (r *racing) Create(ctx context.Context, d forge.Draft) (forge.PullRequest, error) {
	if !r.done {
		r.done = true
		a := r.pl.gateway("a")
		a.proposes(`{"v":2}`)
	}
	return r.failing.Create(ctx, d)
}

func TestUnreadablePullRequest(t *testing.T) {
	pl := newPlant(t)
	g := pl.gateway("a")
	g.settings.Forge = &hidden{hub: pl.hub}
	g.proposes(`{"v":2}`)
	assert.Equal(t, v1alpha1.ReasonAuthFailed, g.last.Reason, "%+v", g.last)
}

// hidden is a forge that has a pull request of the branch, but refuses to list it.
type hidden struct {
	*hub
	created bool
}

func (h *hidden) Create(context.Context, forge.Draft) (forge.PullRequest, error) {
	h.created = true
	return forge.PullRequest{}, forge.ErrExists
}

func (h *hidden) ByHead(ctx context.Context, branch, base string) ([]forge.PullRequest, error) {
	if h.created {
		return nil, failure.New(v1alpha1.ReasonAuthFailed, "expired")
	}
	return h.hub.ByHead(ctx, branch, base)
}

func TestMergedExecutableBit(t *testing.T) {
	g := newPlant(t).gateway("a")
	const source = plan.Path("site/projects/line/project.json")
	e, err := lookup(g.store, g.root, source)
	require.NoError(t, err)
	for _, exec := range []bool{false, true} {
		t.Run(fmt.Sprintf("executable %t", exec), func(t *testing.T) {
			rec := record{Digest: "d", Files: map[plan.Path]proposed{source: {ID: e.ID, Exec: exec}}}
			merged, err := rec.inGit(Base{Commit: g.commit, Root: g.root, Objects: g.store})
			require.NoError(t, err)
			assert.Equal(t, !exec, merged, "the file in git is not executable")
		})
	}
}
