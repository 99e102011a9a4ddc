package repo

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/test/gitserver"
)

var sha = strings.Repeat("0123456789", 4)

// F8, F5: ParseRef accepts the names that git accepts.
func TestParseRef(t *testing.T) {
	for _, good := range []string{"main", "v1.2.3", "feature/a-b_c", "refs/heads/main", "refs/tags/v1", "refs/pull/1/head", "HEAD", "ü", "a@b", "a.b",
		"deadbeef", sha[:39], sha + "0", "@x", "a{b}"} {
		t.Run(good, func(t *testing.T) {
			r, err := ParseRef(good)
			require.NoError(t, err, good)
			assert.Equal(t, good, r.String())
			_, isCommit := r.Commit()
			assert.False(t, isCommit)
		})
	}
	for _, bad := range []string{"", "-", "--upload-pack=x", "-b", "@", "a@{1}", "a..b", "refs/heads/../../x", "../x", "a.", ".a", "a/.b", "a.lock",
		"a.lock/b", "/a", "a/", "a//b", "a b", "a~1", "a^", "a^{}", "a:b", "+a:b", "a?", "a*", "a[b", `a\b`, "a\x00b", "a\nb", "a\x7f", "refs", "refs/x",
		"refs/heads/", strings.Repeat("0", 40), strings.Repeat("a", 2000)} {
		t.Run(fmt.Sprintf("%.40q", bad), func(t *testing.T) {
			_, err := ParseRef(bad)
			repotest.RequireReason(t, v1alpha1.ReasonRefNotFound, err)
		})
	}
	for _, id := range []string{sha, strings.ToUpper("abcdef" + sha[6:])} {
		t.Run(id, func(t *testing.T) {
			r, err := ParseRef(id)
			require.NoError(t, err)
			commit, isCommit := r.Commit()
			assert.True(t, isCommit)
			assert.Equal(t, strings.ToLower(id), commit.String())
			assert.Equal(t, strings.ToLower(id), r.String())
		})
	}
}

func FuzzParseRef(f *testing.F) {
	for _, s := range []string{"main", "refs/heads/a", "a..b", "a@{b", "x.lock", "-x", sha, "a/./b", "\x7f", "é", "refs/x/y"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRef(s)
		if err != nil {
			repotest.RequireReason(t, v1alpha1.ReasonRefNotFound, err)
			require.Less(t, len(err.Error()), 1500)
			return
		}
		again, err := ParseRef(r.String())
		require.NoError(t, err)
		require.Equal(t, r, again)
		_, isCommit := r.Commit()
		require.Equal(t, isCommit, syntax.IsCommit(s), "the rule of the API agrees")
		if !isCommit {
			require.False(t, strings.HasPrefix(s, "-") || strings.Contains(s, "..") || strings.ContainsAny(s, "\x00\n ~^:?*[\\"))
		}
	})
}

// There is no case for the name @: git allows the branch refs/heads/@, but @ alone means HEAD.
func TestParseRefAgreesWithGit(t *testing.T) {
	for _, s := range []string{"a", "a.b", "a..b", ".a", "a.lock", "a/b.lock/c", "a@{b", "a@b", "a\\b", "a~b", "a b", "a/", "//a", "é", "a\x01", "a-", "a.lockx"} {
		t.Run(fmt.Sprintf("%q", s), func(t *testing.T) {
			_, err := ParseRef(s)
			git := exec.CommandContext(t.Context(), "git", "check-ref-format", "refs/heads/"+s).Run()
			assert.Equal(t, git == nil, err == nil)
		})
	}
}

func TestResolve(t *testing.T) {
	bothWays(t, func(t *testing.T, g *site, r *Remote) {
		first := g.Push("first", repotest.Views(2))
		second := g.Push("second", repotest.EditView(1, 1))
		g.Tag("light", first.String())
		g.AnnotatedTag("v1.0.0", first.String())
		g.Git("tag", "-a", "-m", "x", "nested", g.Git("rev-parse", "v1.0.0"))
		g.Branch("both", first.String())
		g.Tag("both", second.String())
		g.Branch("feature/Display", first.String())
		g.Branch(sha, first.String()) // F8: a branch with the name of a commit
		g.Git("update-ref", "refs/pull/7/head", first.String())

		for ref, want := range map[string]Resolution{
			"main":             {"refs/heads/main", second},
			"refs/heads/main":  {"refs/heads/main", second},
			"HEAD":             {"refs/heads/main", second},
			"light":            {"refs/tags/light", first},
			"v1.0.0":           {"refs/tags/v1.0.0", first},
			"refs/tags/v1.0.0": {"refs/tags/v1.0.0", first},
			"nested":           {"refs/tags/nested", first},
			"refs/heads/both":  {"refs/heads/both", first},
			"refs/tags/both":   {"refs/tags/both", second},
			"refs/pull/7/head": {"refs/pull/7/head", first},
			first.String():     {"", first},
			sha:                {"", repotest.ParseID(t, sha)},
		} {
			t.Run(ref, func(t *testing.T) {
				got, err := r.Resolve(t.Context(), parseRef(t, ref))
				require.NoError(t, err, ref)
				assert.Equal(t, want, got, ref)
			})
		}

		_, err := r.Resolve(t.Context(), parseRef(t, "both"))
		repotest.RequireReason(t, v1alpha1.ReasonAmbiguousRef, err)
		assert.ErrorContains(t, err, "refs/heads/both")

		_, err = r.Resolve(t.Context(), Ref{})
		repotest.RequireReason(t, v1alpha1.ReasonRefNotFound, err)

		for ref, near := range map[string]string{
			"Main": `"main"`, "maim": `"main"`, "display": `"feature/Display"`, "v1.0.1": `"v1.0.0"`, "refs/heads/mian": `"main"`,
		} {
			t.Run(ref, func(t *testing.T) {
				_, err = r.Resolve(t.Context(), parseRef(t, ref))
				repotest.RequireReason(t, v1alpha1.ReasonRefNotFound, err)
				assert.ErrorContains(t, err, near, ref)
			})
		}
		_, err = r.Resolve(t.Context(), parseRef(t, "nothing-like-it"))
		repotest.RequireReason(t, v1alpha1.ReasonRefNotFound, err)
		assert.NotContains(t, err.Error(), "did you mean")
	})
}

func TestEmptyRepository(t *testing.T) {
	bothWays(t, func(t *testing.T, g *site, r *Remote) {
		_, err := r.Resolve(t.Context(), parseRef(t, "main"))
		repotest.RequireReason(t, v1alpha1.ReasonRefNotFound, err)
		assert.ErrorContains(t, err, "is empty")
		s := openStore(t, t.TempDir())
		_, err = s.Fetch(t.Context(), r, plan.ID{1}, "main")
		repotest.RequireReason(t, v1alpha1.ReasonRefNotFound, err)

		first := g.Push("first", repotest.Views(2)) // the fetch works once the repository has a commit
		res, _ := pull(t, s, r, "main")
		assert.Equal(t, first, res.Commit)
	})
}

func TestEmptyRepositoryOverSSH(t *testing.T) {
	_, err := shellRemote(t, repotest.NewShellSite(t, gitserver.SSHOptions{})).Resolve(t.Context(), parseRef(t, "main"))
	repotest.RequireReason(t, v1alpha1.ReasonRefNotFound, err)
	assert.ErrorContains(t, err, "is empty")
}

// F8: hostile ref names of a fake server do no harm.
func TestHostileRefNames(t *testing.T) {
	g := newSite(t)
	g.Push("first", repotest.Views(1))
	g.Branch("mainxx", g.Head())
	g.Server.Inject(gitserver.Rewrite(func(b []byte) []byte {
		return []byte(strings.Replace(string(b), "refs/heads/mainxx", "refs/heads/../..x", 1))
	}).On(gitserver.Advertisement))
	_, err := g.remote().Resolve(t.Context(), parseRef(t, "mainx"))
	repotest.RequireReason(t, v1alpha1.ReasonRefNotFound, err)
	assert.NotContains(t, err.Error(), "..")
	assert.ErrorContains(t, err, `"main"`)
}

// The on-disk layout of a store, defined by package store.
const (
	packDir    = "objects/pack"
	packExt    = ".pack"
	indexExt   = ".idx"
	partialExt = ".promisor"
	tipFile    = "refs/stoker/tip"
	tempPrefix = "tmp-"
)

// site is a repository behind a git server with fault injection.
type site struct {
	*repotest.Site
	t testing.TB
}

func newSite(t testing.TB) *site { return newSiteWith(t, gitserver.Options{}) }

func newSiteWith(t testing.TB, o gitserver.Options, initArgs ...string) *site {
	t.Helper()
	return &site{repotest.NewSite(t, o, initArgs...), t}
}

func (s *site) url() URL { return parseURL(s.t, s.Address()) }

func (s *site) remote() *Remote { return newRemote(s.t, s.url(), Auth{}, RemoteOptions{}) }

// directory returns a remote that reads the repository's directory.
func (s *site) directory() *Remote {
	return newRemote(s.t, parseURL(s.t, s.Dir), Auth{}, RemoteOptions{})
}

// blobOf returns the id of a file of a commit.
func (s *site) blobOf(commit plan.ID, path string) plan.ID { return blobOf(s.t, s, commit, path) }

func blobOf(t testing.TB, g repotest.Git, commit plan.ID, path string) plan.ID {
	t.Helper()
	return repotest.ParseID(t, g.Git("rev-parse", commit.String()+":"+path))
}

// shellRemote returns the remote of a repository behind an ssh server.
func shellRemote(t testing.TB, g *repotest.ShellSite) *Remote {
	t.Helper()
	return newRemote(t, parseURL(t, g.Address()), Auth{Key: repotest.Token(g.Key), KnownHosts: g.KnownHosts}, RemoteOptions{})
}

func parseURL(t testing.TB, s string) URL {
	t.Helper()
	u, err := ParseURL(s)
	require.NoError(t, err)
	return u
}

func parseRef(t testing.TB, s string) Ref {
	t.Helper()
	r, err := ParseRef(s)
	require.NoError(t, err)
	return r
}

func newRemote(t testing.TB, u URL, a Auth, o RemoteOptions) *Remote {
	t.Helper()
	r, err := NewRemote(u, a, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

func openStore(t testing.TB, dir string) *Store { return openStoreWith(t, dir, StoreOptions{}) }

func openStoreWith(t testing.TB, dir string, o StoreOptions) *Store {
	t.Helper()
	s, err := Open(dir, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// pull resolves and fetches, as one sync does.
func pull(t testing.TB, s *Store, r *Remote, ref string) (Resolution, FetchStats) {
	t.Helper()
	res, err := r.Resolve(t.Context(), parseRef(t, ref))
	require.NoError(t, err)
	stats, err := s.Fetch(t.Context(), r, res.Commit, res.Ref)
	require.NoError(t, err)
	return res, stats
}

func TestMain(m *testing.M) { repotest.Main(m) }
