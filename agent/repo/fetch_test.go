package repo

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/test/gitserver"
)

// bothWays runs a test over HTTP and on the directory of the repository.
func bothWays(t *testing.T, test func(t *testing.T, g *site, r *Remote)) {
	t.Run("http", func(t *testing.T) {
		g := newSite(t)
		test(t, g, g.remote())
	})
	t.Run("directory", func(t *testing.T) {
		g := newSite(t)
		test(t, g, g.directory())
	})
}

func TestFetch(t *testing.T) {
	bothWays(t, func(t *testing.T, g *site, r *Remote) {
		first := g.Push("first", repotest.Views(60), gitserver.Script("run.sh", "#!/bin/sh\n"), gitserver.Symlink("l", "README.md"),
			gitserver.Submodule("sub", strings.Repeat("1", 40)), gitserver.Write("empty", ""))
		dir := t.TempDir()
		s := openStore(t, dir)

		res, stats := pull(t, s, r, "main")
		assert.Equal(t, Resolution{"refs/heads/main", first}, res)
		assert.Equal(t, FetchFirst, stats.Kind)
		repotest.RequireSame(t, g, s, first)

		_, stats = pull(t, s, r, "main")
		assert.Equal(t, FetchStats{Kind: FetchNone}, stats)

		second := g.Push("second", repotest.EditView(3, 1))
		_, stats = pull(t, s, r, "main")
		assert.Equal(t, FetchIncremental, stats.Kind)
		assert.Less(t, stats.Bytes, int64(2500))
		repotest.RequireSame(t, g, s, second)
		repotest.RequireSame(t, g, s, first)

		require.NoError(t, s.Close())
		s = openStore(t, dir)
		repotest.RequireSame(t, g, s, second)
		_, stats = pull(t, s, r, "main")
		assert.Equal(t, FetchStats{Kind: FetchNone}, stats)

		third := g.Push("third", gitserver.Delete("projects/p1"), gitserver.Write("projects/p1", "a file where a directory was"))
		_, stats = pull(t, s, r, "main")
		assert.Equal(t, FetchIncremental, stats.Kind)
		repotest.RequireSame(t, g, s, third)
	})
}

func TestOneFileCommitCost(t *testing.T) {
	g := newSite(t)
	g.Push("first", repotest.Views(1000))
	g.Repack()
	s, r := openStore(t, t.TempDir()), g.remote()
	pull(t, s, r, "main")
	for i := range 5 {
		g.Server.Forget()
		commit := g.Push("edit", repotest.EditView(10+i, 1))
		_, stats := pull(t, s, r, "main")
		assert.Equal(t, FetchIncremental, stats.Kind)
		served := g.Served()
		assert.Less(t, served.PackBytes, int64(1000+len(repotest.View(10+i, 1))))
		assert.Equal(t, 1, served.Advertisements, "one advertisement for each sync")
		assert.Equal(t, 1, served.UploadPacks)
		repotest.RequireSame(t, g, s, commit)
	}
}

func TestOlderBranchMergeCost(t *testing.T) {
	g := newSite(t)
	g.Push("first", repotest.Views(200))
	g.Branch("old", g.Head())
	s, r := openStore(t, t.TempDir()), g.remote()
	// The server must not send this history before the base commit.
	g.History(200, func(i int) string { return fmt.Sprintf("history/%d", i) }, func(i int) string {
		return strings.Repeat(fmt.Sprintf("%d %x\n", i, i*i*7919), 400)
	})
	g.Repack()
	pull(t, s, r, "main")
	g.Checkout("old")
	g.Push("on the old branch", repotest.EditView(7, 1))
	g.Checkout("main")
	merge := repotest.ParseID(t, g.Merge("merge", "old"))
	g.Server.Forget()
	_, stats := pull(t, s, r, "main")
	assert.Equal(t, FetchIncremental, stats.Kind)
	assert.Less(t, g.Served().PackBytes, int64(1000+len(repotest.View(7, 1))))
	repotest.RequireSame(t, g, s, merge)
}

// F16: the history is whatever the server serves now.
func TestFetchFollowsRewrittenHistory(t *testing.T) {
	bothWays(t, func(t *testing.T, g *site, r *Remote) {
		a := g.Push("a", repotest.Views(20))
		b := g.Push("b", repotest.EditView(1, 1))
		s := openStore(t, t.TempDir())
		pull(t, s, r, "main")

		t.Run("force push to an older commit", func(t *testing.T) {
			g.ForcePush(a.String())
			res, _ := pull(t, s, r, "main")
			assert.Equal(t, a, res.Commit)
			repotest.RequireSame(t, g, s, a)
		})
		t.Run("forward again, without a fetch", func(t *testing.T) {
			g.ForcePush(b.String())
			_, stats := pull(t, s, r, "main")
			assert.Equal(t, FetchNone, stats.Kind)
			repotest.RequireSame(t, g, s, b)
		})
		t.Run("rewritten history", func(t *testing.T) {
			orphan := repotest.ParseID(t, g.Orphan("unrelated", repotest.Views(5), gitserver.Write("new.txt", "new")))
			res, _ := pull(t, s, r, "main")
			assert.Equal(t, orphan, res.Commit)
			repotest.RequireSame(t, g, s, orphan)
		})
		t.Run("moved tag", func(t *testing.T) {
			g.Tag("v1", a.String())
			res, _ := pull(t, s, r, "v1")
			assert.Equal(t, Resolution{"refs/tags/v1", a}, res)
			g.AnnotatedTag("v1", b.String())
			res, _ = pull(t, s, r, "v1")
			assert.Equal(t, Resolution{"refs/tags/v1", b}, res, "an annotated tag resolves to its commit")
			repotest.RequireSame(t, g, s, b)
		})
		t.Run("a deleted branch is RefNotFound, and the store keeps its commit", func(t *testing.T) {
			g.Branch("gone", b.String())
			pull(t, s, r, "gone")
			g.DeleteBranch("gone")
			_, err := r.Resolve(t.Context(), parseRef(t, "gone"))
			assert.True(t, failure.Is(err, v1alpha1.ReasonRefNotFound), "%v", err)
			repotest.RequireSame(t, g, s, b)
		})
	})
}

func TestFetchByCommitID(t *testing.T) {
	t.Run("any commit of the history", func(t *testing.T) {
		bothWays(t, func(t *testing.T, g *site, r *Remote) {
			old := g.Push("old", repotest.Views(10))
			g.Push("new", repotest.EditView(1, 1))
			s := openStore(t, t.TempDir())
			res, _ := pull(t, s, r, old.String())
			assert.Equal(t, Resolution{"", old}, res)
			repotest.RequireSame(t, g, s, old)
		})
	})
	t.Run("a server that refuses ids: fetch through the branch", func(t *testing.T) {
		g := newSite(t)
		old := g.Push("old", repotest.Views(10))
		g.History(100, func(int) string { return "more.txt" }, strconv.Itoa)
		g.Server.Refuse(gitserver.SHAWants)
		s := openStore(t, t.TempDir())
		stats, err := s.Fetch(t.Context(), g.remote(), old, "refs/heads/main")
		require.NoError(t, err)
		assert.Equal(t, FetchFirst, stats.Kind)
		repotest.RequireSame(t, g, s, old)
	})
	t.Run("a commit that is not in the branch is RefNotFound", func(t *testing.T) {
		g := newSite(t)
		g.Push("main", repotest.Views(3))
		g.Checkout("other")
		other := repotest.ParseID(t, g.Orphan("other", repotest.Views(4)))
		g.Server.Refuse(gitserver.SHAWants)
		g.DeleteBranch("other")
		s := openStore(t, t.TempDir())
		_, err := s.Fetch(t.Context(), g.remote(), other, "main")
		assert.True(t, failure.Is(err, v1alpha1.ReasonRefNotFound), "%v", err)
		_, err = s.Fetch(t.Context(), g.remote(), other, "")
		assert.True(t, failure.Is(err, v1alpha1.ReasonRefNotFound), "%v", err)
		_, err = s.Fetch(t.Context(), g.remote(), other, "nowhere")
		assert.True(t, failure.Is(err, v1alpha1.ReasonRefNotFound), "%v", err)
		assert.Empty(t, repotest.PackFiles(t, s, packExt), "the store keeps no useless pack")
	})
	t.Run("a server that refuses ids: fetch a bare id through any ref", func(t *testing.T) {
		g := newSite(t)
		old := g.Push("old", repotest.Views(10))
		g.History(100, func(int) string { return "more.txt" }, strconv.Itoa)
		g.Checkout("other")
		side := repotest.ParseID(t, g.Orphan("side", repotest.Views(4)))
		g.Push("later", repotest.EditView(1, 1))
		g.Checkout("third")
		tagged := repotest.ParseID(t, g.Orphan("tagged", repotest.Views(5)))
		g.AnnotatedTag("v1", g.Push("v1", repotest.EditView(2, 1)).String())
		g.DeleteBranch("third")
		g.Server.Refuse(gitserver.SHAWants)
		for name, id := range map[string]plan.ID{"main": old, "branch": side, "tag": tagged} {
			t.Run(name, func(t *testing.T) {
				s := openStore(t, t.TempDir())
				_, err := s.Fetch(t.Context(), g.remote(), id, "")
				require.NoError(t, err)
				repotest.RequireSame(t, g, s, id)
			})
		}
	})
	t.Run("the search is bounded", func(t *testing.T) {
		g := newSite(t)
		old := g.Push("old", repotest.Views(10))
		g.Push("new", repotest.Views(300))
		g.Server.Refuse(gitserver.SHAWants)
		s := openStore(t, t.TempDir())
		_, err := s.Fetch(t.Context(), newRemote(t, g.url(), Auth{}, RemoteOptions{SearchBytes: 5000}), old, "main")
		repotest.RequireReason(t, v1alpha1.ReasonLimitExceeded, err)
		assert.Empty(t, repotest.PackFiles(t, s, ""))
	})
	t.Run("a commit that does not exist is RefNotFound", func(t *testing.T) {
		bothWays(t, func(t *testing.T, g *site, r *Remote) {
			g.Push("first", repotest.Views(3))
			s := openStore(t, t.TempDir())
			_, err := s.Fetch(t.Context(), r, plan.ID{1, 2, 3}, "")
			assert.True(t, failure.Is(err, v1alpha1.ReasonRefNotFound), "%v", err)
		})
	})
	t.Run("the id of a tree or tag", func(t *testing.T) {
		bothWays(t, func(t *testing.T, g *site, r *Remote) {
			commit := g.Push("first", repotest.Views(3))
			tree := repotest.ParseID(t, g.Git("rev-parse", commit.String()+"^{tree}"))
			g.Tag("tree", tree.String())
			tag := repotest.ParseID(t, g.AnnotatedTag("v1", commit.String()))
			s := openStore(t, t.TempDir())
			res, err := r.Resolve(t.Context(), parseRef(t, "tree"))
			require.NoError(t, err, "an advertisement does not show the kind of an object")
			_, err = s.Fetch(t.Context(), r, res.Commit, res.Ref)
			assert.True(t, failure.Is(err, v1alpha1.ReasonRefNotFound), "%v", err)
			assert.ErrorContains(t, err, "is a tree, not a commit")
			_, err = s.Fetch(t.Context(), r, tag, "")
			assert.True(t, failure.Is(err, v1alpha1.ReasonRefNotFound), "%v", err)
			assert.ErrorContains(t, err, "is a tag, not a commit")
		})
	})
}

func TestFetchFromLimitedServers(t *testing.T) {
	for name, refused := range map[string][]gitserver.Feature{
		"no thin packs": {gitserver.Thin},
		"Azure DevOps, which demands multi_ack_detailed": {gitserver.SingleAck},
		"Azure DevOps, without ids":                      {gitserver.SingleAck, gitserver.SHAWants, gitserver.Filter},
		"no shallow":                                     {gitserver.Shallow},
		"neither thin packs nor shallow":                 {gitserver.Thin, gitserver.Shallow},
		"no optional feature":                            {gitserver.Thin, gitserver.Shallow, gitserver.Filter, gitserver.SHAWants},
	} {
		t.Run(name, func(t *testing.T) {
			g := newSite(t)
			g.Push("first", repotest.Views(30))
			g.Push("second", repotest.EditView(2, 1))
			g.Server.Refuse(refused...)
			s, r := openStore(t, t.TempDir()), g.remote()
			pull(t, s, r, "main")
			third := g.Push("third", repotest.EditView(3, 1))
			pull(t, s, r, "main")
			repotest.RequireSame(t, g, s, third)
		})
	}
	t.Run("advertised, but refused", func(t *testing.T) {
		g := newSite(t)
		g.Push("first", repotest.Views(30))
		s, r := openStore(t, t.TempDir()), g.remote()
		pull(t, s, r, "main")
		second := g.Push("second", repotest.EditView(2, 1))
		res, err := r.Resolve(t.Context(), parseRef(t, "main"))
		require.NoError(t, err)
		g.Server.Refuse(gitserver.Shallow) // after the advertisement
		stats, err := s.Fetch(t.Context(), r, res.Commit, res.Ref)
		require.NoError(t, err)
		assert.Equal(t, FetchRenewed, stats.Kind)
		repotest.RequireSame(t, g, s, second)
	})
}

func TestBranchMovesBeforeFetch(t *testing.T) {
	g := newSite(t)
	first := g.Push("first", repotest.Views(10))
	s, r := openStore(t, t.TempDir()), g.remote()
	res, err := r.Resolve(t.Context(), parseRef(t, "main"))
	require.NoError(t, err)
	g.Push("second", repotest.EditView(1, 1))
	_, err = s.Fetch(t.Context(), r, res.Commit, res.Ref)
	require.NoError(t, err, "the fetch asks for the resolved commit, not for the branch")
	repotest.RequireSame(t, g, s, first)
}

// F6: nothing in a repository is ever executed. The agent starts no process, because it does not import os/exec; a test of the
// import rules checks this.
func TestHostileRepositoryConfig(t *testing.T) {
	bothWays(t, func(t *testing.T, g *site, r *Remote) {
		canary := filepath.Join(t.TempDir(), "canary")
		touch := "touch " + canary
		hook := filepath.Join(g.Dir, "hooks", "post-checkout")
		require.NoError(t, os.MkdirAll(filepath.Dir(hook), 0o755))
		require.NoError(t, os.WriteFile(hook, []byte("#!/bin/sh\n"+touch+"\n"), 0o755))
		commit := g.Push("hostile",
			gitserver.Write(".gitattributes", "* filter=x diff=x merge=x\n"),
			gitserver.Write(".gitmodules", "[submodule \"a\\r\"]\n\tpath = sub\r\n\turl = ext::sh -c '"+touch+"'\n\tupdate = !"+touch+"\n"),
			gitserver.Submodule("sub", strings.Repeat("2", 40)),
			gitserver.Script("hooks/post-checkout", "#!/bin/sh\n"+touch+"\n"))
		for _, conf := range []string{"filter.x.smudge", "filter.x.process", "core.fsmonitor", "core.sshCommand", "credential.helper",
			"uploadpack.packObjectsHook", "core.gitProxy", "core.alternateRefsCommand", "core.askPass"} {
			if conf != "uploadpack.packObjectsHook" || r.URL().Local() {
				g.Git("config", conf, touch)
			}
		}
		s := openStore(t, t.TempDir())
		pull(t, s, r, "main")
		_, err := os.Stat(canary)
		require.ErrorIs(t, err, os.ErrNotExist)
		root, err := s.RootTree(commit)
		require.NoError(t, err)
		assert.Len(t, repotest.WalkTree(t, s, root, ""), 5)
	})
}

// F11: only the limits of a whole pack bound a file, because most files of a repository are not mapped to a gateway. DeltaBytes bounds only
// deltas and their bases, which need space beside the packs.
func TestLargeBlobs(t *testing.T) {
	bothWays(t, func(t *testing.T, g *site, r *Remote) {
		commit := g.Push("first", repotest.Views(3), gitserver.Write("large", strings.Repeat("large", 20_000)))
		s := openStoreWith(t, t.TempDir(), StoreOptions{Limits: Limits{DeltaBytes: 9000}})
		pull(t, s, r, "main")
		repotest.RequireSame(t, g, s, commit)
	})
}
