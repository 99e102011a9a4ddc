package wire

import (
	"context"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/agent/repo/store"
	"stoker.io/stoker/test/gitserver"
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

func (s *site) client() *testClient { return newClient(s.t, s.url(), Auth{}, Options{}) }

func parseURL(t testing.TB, s string) URL {
	t.Helper()
	u, err := ParseURL(s)
	require.NoError(t, err)
	return u
}

// testClient is a Client that resolves refs.
type testClient struct{ *Client }

func newClient(t testing.TB, u URL, a Auth, o Options) *testClient {
	t.Helper()
	c := NewClient(u, a, o)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return &testClient{c}
}

type resolution struct {
	Ref    string
	Commit plan.ID
}

// Resolve finds the commit of a branch or tag.
func (c *testClient) Resolve(ctx context.Context, name string) (resolution, error) {
	refs, err := c.Refs(ctx)
	if err != nil {
		return resolution{}, err
	}
	full, commit, ok := refs.lookupShort(name)
	if !ok {
		return resolution{}, fmt.Errorf("there is no %s", name)
	}
	return resolution{full, commit}, nil
}

// testStore is a store that fetches as package repo does.
type testStore struct{ *store.Store }

func openStore(t testing.TB, o store.Options) *testStore {
	t.Helper()
	s := store.New(t.TempDir(), o)
	require.NoError(t, s.Open())
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return &testStore{s}
}

// WriteBlob implements plan.Objects.
func (s *testStore) WriteBlob(w io.Writer, id plan.ID) (int64, error) { return s.ReadBlob(w, id) }

// fetched describes the result of a Fetch. store.Ready means an incremental fetch.
type fetched struct {
	Condition store.Condition
	Bytes     int64
	Objects   int
}

// Fetch fetches a commit that was found in ref.
func (s *testStore) Fetch(ctx context.Context, c *testClient, commit plan.ID, ref string) (fetched, error) {
	f, err := s.Begin(commit)
	if err != nil {
		return fetched{}, err
	}
	defer f.Close()
	if f.Condition() == store.Ready {
		f.Base = s.Tip()
	}
	in, err := c.Fetch(ctx, f, ref)
	if err != nil {
		return fetched{}, err
	}
	return fetched{f.Condition(), f.Bytes, in.Objects}, f.Publish(in, f.Base.IsZero())
}

// pull resolves and fetches, as one sync does.
func pull(t testing.TB, s *testStore, c *testClient, ref string) (resolution, fetched) {
	t.Helper()
	res, err := c.Resolve(t.Context(), ref)
	require.NoError(t, err)
	stats, err := s.Fetch(t.Context(), c, res.Commit, res.Ref)
	require.NoError(t, err)
	return res, stats
}

func TestMain(m *testing.M) { repotest.Main(m) }
