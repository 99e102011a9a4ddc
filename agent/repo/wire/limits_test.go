package wire

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/agent/repo/store"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/httpclient"
	"stoker.io/stoker/test/gitserver"
)

// F11: a server cannot make the client read without limit.
func TestAdvertisementLimits(t *testing.T) {
	g := newSite(t)
	g.Push("first", repotest.Views(1))
	for i := range 30 {
		g.Tag(fmt.Sprintf("t%d", i), g.Head())
	}
	for name, o := range map[string]Options{
		"too many refs":  {MaxRefs: 20},
		"too many bytes": {MaxBytes: 500},
	} {
		t.Run(name+" is LimitExceeded", func(t *testing.T) {
			_, err := newClient(t, g.url(), Auth{}, o).Resolve(t.Context(), "main")
			repotest.RequireReason(t, v1alpha1.ReasonLimitExceeded, err)
		})
	}
	t.Run("a pack of too many bytes is LimitExceeded", func(t *testing.T) {
		r := newClient(t, g.url(), Auth{}, Options{MaxBytes: 10_000})
		g.Push("big", repotest.Views(300))
		res, err := r.Resolve(t.Context(), "main")
		require.NoError(t, err)
		_, err = openStore(t, store.Options{}).Fetch(t.Context(), r, res.Commit, res.Ref)
		repotest.RequireReason(t, v1alpha1.ReasonLimitExceeded, err)
	})
}

// A server that lists shallow commits without end would fill the memory before the pack begins.
func TestNegotiationLimit(t *testing.T) {
	g := newSite(t)
	commit := g.Push("first", repotest.Views(1))
	var sent atomic.Int64
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			fmt.Fprintf(w, "001e# service=git-upload-pack\n0000%s0000", pktLine(commit.String()+" refs/heads/main\x00shallow allow-reachable-sha1-in-want\n"))
			return
		}
		w.Header().Set("Content-Type", "application/x-git-upload-pack-result")
		lines := strings.Repeat(pktLine("shallow "+commit.String()), 1000)
		for range 2 * maxNegotiation / len(lines) {
			n, err := io.WriteString(w, lines)
			if sent.Add(int64(n)); err != nil {
				return
			}
		}
	}))
	defer front.Close()
	_, err := openStore(t, store.Options{}).Fetch(t.Context(), newClient(t, parseURL(t, front.URL+"/site.git"), Auth{}, Options{}), commit, "refs/heads/main")
	repotest.RequireReason(t, v1alpha1.ReasonLimitExceeded, err)
	assert.Greater(t, sent.Load(), int64(maxNegotiation))
}

func pktLine(text string) string { return fmt.Sprintf("%04x%s", len(text)+4, text) }

// C17: with a guard, no address of a user leads to the program's own pod or to the metadata of a cloud, over any protocol, and nothing
// says what answers there.
func TestGuard(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			assert.Fail(t, "the program connected")
			_ = conn.Close()
		}
	}()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	_, key, err := gitserver.NewApp(7, 42, "plant", "site")
	require.NoError(t, err)
	app := &GitHubApp{AppID: 7, InstallationID: 42, APIBaseURL: "http://127.0.0.1:" + port, Key: repotest.Token(key)}
	for address, auth := range map[string]Auth{
		"http://127.0.0.1:PORT/plant/site.git":          {},
		"http://localhost:PORT/plant/site.git":          {},
		"http://[::ffff:127.0.0.1]:PORT/plant/site.git": {},
		"https://127.0.0.1:PORT/plant/site.git":         {},
		"http://169.254.169.254/plant/site.git":         {},
		"ssh://git@127.0.0.1:PORT/plant/site.git":       {Key: repotest.Token(key), InsecureIgnoreHostKey: true},
		"http://git.invalid/plant/site.git":             {App: app},
	} {
		t.Run(address, func(t *testing.T) {
			_, err := newClient(t, parseURL(t, strings.ReplaceAll(address, "PORT", port)), auth, Options{Guard: httpclient.NewGuard()}).Resolve(t.Context(), "main")
			require.True(t, failure.Is(err, v1alpha1.ReasonUnsupportedRepository), "%v", err)
			assert.ErrorContains(t, err, "which Stoker does not contact for a user")
		})
	}
	t.Run("through a proxy", func(t *testing.T) {
		g := newSite(t)
		g.Push("first", repotest.Views(3))
		proxy := newProxy(t, g.Server.URL(""))
		repotest.ProxyEnvironment(t, map[string]string{"HTTP_PROXY": proxy.URL})
		guarded := func(address string) *testClient {
			return newClient(t, parseURL(t, address), Auth{}, Options{Guard: httpclient.NewGuard()})
		}
		for name, address := range map[string]string{"metadata": "http://169.254.169.254/plant/site.git", "the proxy itself": proxy.URL + "/site.git"} {
			t.Run(name, func(t *testing.T) {
				_, err := guarded(address).Resolve(t.Context(), "main")
				require.True(t, failure.Is(err, v1alpha1.ReasonUnsupportedRepository), "%v", err)
				assert.Empty(t, proxy.hosts())
			})
		}
		t.Run("a git host", func(t *testing.T) { // the guard would refuse the address of the proxy
			pull(t, openStore(t, store.Options{}), guarded("http://git.example/site.git"), "main")
			assert.Contains(t, proxy.hosts(), "GET git.example")
		})
	})
}

// trickle sends 10 bytes every 50 seconds, just enough for each window of the test.
type trickle struct{}

func (trickle) Read([]byte) (int, error) {
	time.Sleep(50 * time.Second)
	return 10, nil
}

func TestWatchdog(t *testing.T) {
	start := func(ctx context.Context) (context.Context, *watchdog, func()) {
		return watch(ctx, time.Hour, 10, time.Minute) // at most an hour, and at least 10 bytes in each minute
	}
	t.Run("a window without bytes is a stall", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, dog, stop := start(t.Context())
			defer stop()
			dog.startWait()
			<-ctx.Done()
			assert.ErrorIs(t, context.Cause(ctx), errStalled)
		})
	})
	t.Run("a trickle is enough until the total time is over", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, dog, stop := start(t.Context())
			defer stop()
			began := time.Now()
			trickles := &receivedBody{ReadCloser: io.NopCloser(trickle{}), x: &exchange{dog: dog}, remaining: 1 << 20, limit: 1 << 20}
			for ctx.Err() == nil {
				_, err := trickles.Read(make([]byte, 100))
				require.NoError(t, err)
			}
			assert.ErrorIs(t, context.Cause(ctx), errDeadline)
			assert.GreaterOrEqual(t, time.Since(began), time.Hour)
		})
	})
	t.Run("time without a read is not a stall", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, dog, stop := start(t.Context())
			defer stop()
			endWait := dog.startWait()
			endWait()
			time.Sleep(50 * time.Minute)
			assert.NoError(t, ctx.Err())
		})
	})
}

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

// fetched describes the result of a Fetch.
type fetched struct {
	Condition store.Condition // of the store before the fetch
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
