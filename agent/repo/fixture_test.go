package repo

import (
	"testing"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/test/gitserver"
)

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
