package propose

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/forge"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/test/gitserver"
)

// A pull request that no longer leads to the base branch ends, and the change is proposed again.
func TestMovedPullRequest(t *testing.T) {
	begin := func(t *testing.T) (*plant, *gateway) {
		pl, g := opened(t)
		return pl, g
	}
	for name, move := range map[string]func(pl *plant, g *gateway){
		"by a reviewer":               func(pl *plant, _ *gateway) { pl.hub.list[0].Base = "develop" },
		"by the spec":                 func(_ *plant, g *gateway) { g.settings.BaseBranch = "release" },
		"by the spec, and a new save": func(_ *plant, g *gateway) { g.settings.BaseBranch = "release"; g.save(`{"v":3}`) },
	} {
		t.Run(name, func(t *testing.T) {
			pl, g := begin(t)
			move(pl, g)
			g.settle(time.Hour)
			assert.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
			require.Len(t, pl.hub.list, 2)
			assert.Equal(t, forge.Closed, pl.hub.list[0].State)
			assert.Equal(t, g.settings.BaseBranch, pl.hub.list[1].Base)
			assert.Equal(t, pl.hub.list[1].URL, g.last.URL)
		})
	}
	t.Run("with a commit of the reviewer", func(t *testing.T) {
		pl, g := begin(t)
		pl.repo.Checkout("gateway-changes/plants/a")
		pl.repo.Commit("review")
		pl.hub.list[0].Base = "develop"
		g.settle(time.Hour)
		assert.Equal(t, v1alpha1.ProposalForeign, g.state(), "%+v", g.last)
		assert.Len(t, pl.hub.open(), 1)
	})
	t.Run("merged elsewhere", func(t *testing.T) {
		pl, g := begin(t)
		pl.hub.list[0].Base, pl.hub.list[0].State = "develop", forge.Merged
		g.settle(time.Hour)
		assert.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
		require.Len(t, pl.hub.open(), 1)
		assert.Equal(t, g.settings.BaseBranch, pl.hub.open()[0].Base)
	})
	t.Run("deleted", func(t *testing.T) {
		pl, g := begin(t)
		pl.hub.list = nil
		g.settle(time.Hour)
		assert.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
		assert.Len(t, pl.hub.open(), 1)
	})
	t.Run("shared", func(t *testing.T) {
		pl, _ := begin(t)
		b := pl.gateway("b")
		b.proposes(`{"v":2}`)
		pl.hub.list[0].Base = "develop"
		b.settle(time.Hour)
		require.Len(t, pl.hub.list, 2)
		assert.Equal(t, b.settings.Branch, pl.hub.list[1].Branch)
	})
}

// The text of a pull request does not prove that its branch has the change.
func TestCopiedText(t *testing.T) {
	pl, _ := opened(t)
	b := pl.gateway("b")
	pl.repo.Branch("copy", pl.repo.Tip("main"))
	pl.hub.list[0].Branch = "copy"
	b.proposes(`{"v":2}`)
	require.Len(t, pl.hub.open(), 2)
	assert.Equal(t, v1alpha1.ProposalOpen, b.state(), "%+v", b.last)
	assert.NotEmpty(t, pl.repo.Git("for-each-ref", "refs/heads/"+b.settings.Branch), "b keeps its branch")
}

// A server that deletes no branches leaves the branch of a gateway that follows the pull request of another one. The gateway's next change goes
// there.
func TestBranchOfSharedPullRequestStays(t *testing.T) {
	pl, _ := opened(t)
	b := pl.gateway("b")
	pl.repo.Git("config", "receive.denyDeletes", "true")
	b.proposes(`{"v":2}`)
	require.NotEmpty(t, pl.repo.Git("for-each-ref", "refs/heads/"+b.settings.Branch))
	pl.repo.Git("config", "receive.denyDeletes", "false")
	b.save(`{"v":3}`)
	b.settle(time.Hour)
	assert.Equal(t, v1alpha1.ProposalOpen, b.state(), "%+v", b.last)
	assert.Len(t, pl.hub.open(), 2)
}

// If the server deletes no branches, the agent says what to do before it proposes more.
func TestServerKeepsBranchOfEndedPullRequest(t *testing.T) {
	pl, g := opened(t)
	require.NoError(t, pl.hub.Close(t.Context(), 1, ""))
	pl.repo.Git("config", "receive.denyDeletes", "true")
	g.settle(20 * minute)
	require.Equal(t, v1alpha1.ProposalClosed, g.state())
	g.proposes(`{"v":3}`)
	assert.Equal(t, v1alpha1.ReasonBranchTaken, g.last.Reason, "%+v", g.last)
	assert.Contains(t, g.last.Message, "delete it")
}

func TestSignedProposal(t *testing.T) {
	const branch, name = "gateway-changes/plants/a", "spec.bidirectional.signing: key id of Secret sign"
	for _, key := range []repotest.SigningKey{repotest.NewSSHKey(t, "ed25519", ""), repotest.NewOpenPGPKey(t, "", nil)} {
		t.Run(string(key.Format), func(t *testing.T) {
			pl := newPlant(t)
			g := pl.gateway("a")
			g.settings.Sign = repo.NewSigner(key.Format, name, repotest.Token(key.Private))
			requireSigned := func(commits int) {
				t.Helper()
				list := strings.Fields(pl.repo.Git("rev-list", "main.."+branch))
				require.Len(t, list, commits)
				for _, commit := range list {
					require.NoError(t, key.Check(pl.repo.Git("cat-file", "commit", commit)+"\n"))
					require.NoError(t, key.Verify(t, pl.repo.Dir, commit))
				}
			}
			g.proposes(`{"v":2}`)
			require.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
			requireSigned(1)
			g.proposes(`{"v":3}`)
			requireSigned(2)
			// The trailers of a signed commit rebuild a lost record.
			g.notes.content = map[string][]byte{}
			g.restart()
			g.settle(2 * minute)
			require.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
			g.save(`{"v":4}`)
			g.settle(2 * minute)
			requireSigned(3)
			assert.Len(t, pl.hub.list, 1)
		})
	}
	t.Run("no push without a usable key", func(t *testing.T) {
		pl := newPlant(t)
		g := pl.gateway("a")
		text := repotest.NewSSHKey(t, "ed25519", "S3CR3T").Private
		g.settings.Sign = repo.NewSigner(v1alpha1.SigningSSH, name, func() (secret.String, error) { return secret.New(text), nil })
		g.save(`{"v":2}`)
		g.settle(20 * minute)
		assert.Equal(t, v1alpha1.ReasonAuthFailed, g.last.Reason)
		assert.Contains(t, g.last.Message, name+" is protected by a passphrase")
		assert.Contains(t, g.last.Message, "put an ssh private key without a passphrase there")
		assert.Empty(t, pl.repo.Git("for-each-ref", "refs/heads/gateway-changes"))
		assert.Empty(t, pl.hub.list)

		key := repotest.NewSSHKey(t, "ed25519", "")
		text = key.Private
		g.settle(time.Hour)
		assert.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
		assert.Empty(t, g.last.Reason)
		require.NoError(t, key.Check(pl.repo.Git("cat-file", "commit", branch)+"\n"))
	})
}

// TestBranchBeginsAgain: a change to something that a newer commit brought cannot be a commit on top of the branch, whose merge would drop it.
func TestBranchBeginsAgain(t *testing.T) {
	const project, added, branch = "projects/line/project.json", "projects/line/scripts/new.py", "gateway-changes/plants/a"
	for name, tc := range map[string]struct {
		change  func(g *gateway)
		deleted string
	}{
		"a file of the newer commit is deleted":  {func(g *gateway) { g.disk.Remove(added) }, added},
		"a file is as in the first commit again": {func(g *gateway) { g.disk.Write(project, `{"title":"Line"}`) }, ""},
		"the agent lost its cache of objects": {func(g *gateway) {
			store, err := repo.Open(t.TempDir(), repo.StoreOptions{})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, store.Close()) })
			g.store = store
			g.pull()
			g.restart()
			g.save(`{"v":3}`)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			pl, g := opened(t)
			pl.repo.Commit("second", gitserver.Write("site/"+project, `{"title":"New"}`), gitserver.Write("site/"+added, "new"))
			g.pull()
			g.settle(minute)
			tc.change(g)
			g.settle(time.Hour)
			assert.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
			require.Len(t, pl.hub.list, 2)
			assert.Equal(t, forge.Closed, pl.hub.list[0].State)
			assert.Equal(t, pl.repo.Tip("main"), pl.repo.Git("rev-parse", branch+"^"), "the branch begins at another commit")
			assert.Equal(t, tc.deleted == "", pl.repo.Git("ls-tree", "-r", "--name-only", branch, "site/"+added) != "")
			pl.merge("squash")
			assert.Zero(t, g.pull())
			g.settle(minute)
			assert.Equal(t, v1alpha1.ProposalMerged, g.state())
		})
	}
	t.Run("with a file that a sync overwrote", func(t *testing.T) {
		pl := newPlant(t)
		g := pl.gateway("a")
		g.disk.Write(project, `{"title":"of a user"}`)
		g.proposes(`{"v":2}`)
		pl.repo.Commit("second", gitserver.Files(withView(t, `{"v":9}`)), gitserver.Write("site/"+added, "new"))
		require.NotZero(t, g.pull())
		g.settle(minute)
		g.disk.Remove(added)
		g.settle(minute)
		assert.Equal(t, v1alpha1.ReasonChangesRefused, g.last.Reason)
		assert.Contains(t, g.last.Message, added)
		assert.Len(t, pl.hub.open(), 1, "the branch has the only copy of the view")
	})
}

// TestWhoseTip: git says whether the tip of the branch is that of another author, and a forge can be late.
func TestWhoseTip(t *testing.T) {
	const branch = "gateway-changes/plants/a"
	t.Run("a push that failed lands later", func(t *testing.T) {
		pl, g := opened(t)
		first := pl.repo.Tip(branch)
		g.save(`{"v":3}`)
		g.settle(5 * minute)
		late := pl.repo.Tip(branch)
		require.NotEqual(t, first, late)
		rec, err := loadRecord(g.notes)
		require.NoError(t, err)
		rec.Tip, rec.Pending = repotest.ParseID(t, first), plan.ID{1} // of the next attempt
		require.NoError(t, rec.save(g.notes))
		g.restart()
		g.settle(20 * minute)
		assert.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
		g.save(`{"v":4}`)
		g.settle(20 * minute)
		assert.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
		assert.Equal(t, `{"v":4}`, pl.repo.Content(branch, "site/"+view+"view.json"))
	})
	t.Run("a first push that failed lands later, after another save", func(t *testing.T) {
		pl, g := opened(t)
		rec, err := loadRecord(g.notes)
		require.NoError(t, err)
		rec.Tip, rec.Pending, rec.Number = plan.ID{}, plan.ID{1}, 0
		require.NoError(t, rec.save(g.notes))
		g.restart()
		g.save(`{"v":3}`)
		g.settle(20 * minute)
		assert.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
		assert.Equal(t, `{"v":3}`, pl.repo.Content(branch, "site/"+view+"view.json"))
		assert.Len(t, pl.hub.list, 1)
	})
	t.Run("the forge shows an older commit", func(t *testing.T) {
		pl, g := opened(t)
		g.settings.Forge = &behind{pl.hub}
		g.settle(20 * minute)
		assert.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
	})
	t.Run("the forge shows the first digits", func(t *testing.T) {
		pl, g := opened(t)
		pl.hub.short = true
		g.settle(20 * minute)
		require.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
		pl.repo.Checkout(branch)
		pl.repo.Commit("review")
		pl.repo.Checkout("main")
		g.settle(20 * minute)
		assert.Equal(t, v1alpha1.ProposalForeign, g.state(), "%+v", g.last)
	})
	t.Run("the commit of another author is removed", func(t *testing.T) {
		pl, g := opened(t)
		own := pl.repo.Tip(branch)
		pl.repo.Checkout(branch)
		pl.repo.Commit("review")
		pl.repo.Checkout("main")
		g.settle(20 * minute)
		require.Equal(t, v1alpha1.ProposalForeign, g.state())
		pl.repo.Branch(branch, own)
		g.settle(20 * minute)
		assert.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
	})
}

// behind is a forge that shows another commit than the newest one of a branch.
type behind struct{ *hub }

func (b *behind) Get(ctx context.Context, n int64) (forge.PullRequest, error) {
	pr, err := b.hub.Get(ctx, n)
	pr.Commit = strings.Repeat("0a", 20)
	return pr, err
}

// TestBranchWithoutPullRequest: the agent follows a branch that has no pull request.
func TestBranchWithoutPullRequest(t *testing.T) {
	const branch = "gateway-changes/plants/a"
	pushed := func(t *testing.T) (*plant, *gateway) {
		pl := newPlant(t)
		g := pl.gateway("a")
		g.settings.Forge = nil
		g.proposes(`{"v":2}`)
		require.Equal(t, v1alpha1.ProposalPushed, g.state())
		return pl, g
	}
	review := func(pl *plant) {
		pl.repo.Checkout(branch)
		pl.repo.Commit("review")
		pl.repo.Checkout("main")
	}
	t.Run("deleted", func(t *testing.T) {
		pl, g := pushed(t)
		pl.repo.DeleteBranch(branch)
		g.settle(20 * minute)
		assert.Equal(t, v1alpha1.ProposalClosed, g.state(), "%+v", g.last)
		g.proposes(`{"v":3}`)
		assert.Equal(t, v1alpha1.ProposalPushed, g.state())
	})
	t.Run("merged and deleted", func(t *testing.T) {
		pl, g := pushed(t)
		pl.repo.ForcePush(pl.repo.Tip(branch))
		pl.repo.DeleteBranch(branch)
		g.settle(20 * minute)
		assert.Equal(t, v1alpha1.ProposalPushed, g.state(), "%+v", g.last)
		g.pull()
		g.settle(minute)
		assert.Equal(t, v1alpha1.ProposalMerged, g.state())
	})
	t.Run("with a commit of another author", func(t *testing.T) {
		pl, g := pushed(t)
		own := pl.repo.Tip(branch)
		review(pl)
		g.settle(20 * minute)
		require.Equal(t, v1alpha1.ProposalForeign, g.state())
		pl.repo.Branch(branch, own)
		g.settle(20 * minute)
		assert.Equal(t, v1alpha1.ProposalPushed, g.state())
	})
	t.Run("with a commit of another author, who opens the pull request", func(t *testing.T) {
		pl, g := pushed(t)
		review(pl)
		g.settle(20 * minute)
		g.settings.Forge = pl.hub
		_, err := pl.hub.Create(t.Context(), forge.Draft{Branch: branch, Base: "main"})
		require.NoError(t, err)
		g.settle(20 * minute)
		assert.Equal(t, int64(1), g.last.Number)
		require.NoError(t, pl.hub.Close(t.Context(), 1, ""))
		g.settle(20 * minute)
		assert.Equal(t, v1alpha1.ProposalClosed, g.state())
	})
}

// TestNumberOfPullRequest: without a valid number, the agent does not ask again at once.
func TestNumberOfPullRequest(t *testing.T) {
	t.Run("in the record", func(t *testing.T) {
		pl, g := opened(t)
		rec, err := loadRecord(g.notes)
		require.NoError(t, err)
		rec.Number = -1
		require.NoError(t, rec.save(g.notes))
		g.restart()
		g.settle(minute)
		assert.Equal(t, v1alpha1.ProposalOpen, g.state(), "%+v", g.last)
		assert.Len(t, pl.hub.list, 1)
	})
	t.Run("of the forge", func(t *testing.T) {
		pl := newPlant(t)
		g := pl.gateway("a")
		g.settings.Forge = &unnumbered{pl.hub}
		g.proposes(`{"v":2}`)
		assert.Equal(t, v1alpha1.ReasonGitUnreachable, g.last.Reason, "%+v", g.last)
	})
}

// unnumbered is a forge without numbers.
type unnumbered struct{ *hub }

func (u *unnumbered) Create(ctx context.Context, d forge.Draft) (forge.PullRequest, error) {
	pr, err := u.hub.Create(ctx, d)
	pr.Number = 0
	return pr, err
}

func (u *unnumbered) ByHead(ctx context.Context, branch, base string) ([]forge.PullRequest, error) {
	list, err := u.hub.ByHead(ctx, branch, base)
	for i := range list {
		list[i].Number = 0
	}
	return list, err
}
