package gitea

import (
	"fmt"
	"hash/fnv"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/forge"
)

// gate stands between an agent and Gitea. It holds requests, so that the agent can be killed while it waits for the answer.
type gate struct {
	*httptest.Server
	held chan chan struct{}

	mu    sync.Mutex
	holds func(*http.Request) bool
	after bool // Gitea has handled the request
	left  int
}

func newGate(t *testing.T, s *Server) *gate {
	to, err := url.Parse(s.url)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(to)
	g := &gate{held: make(chan chan struct{})}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		hold := g.left > 0 && g.holds(r)
		if hold {
			g.left--
		}
		after := g.after
		g.mu.Unlock()
		if !hold {
			proxy.ServeHTTP(w, r)
			return
		}
		if after {
			proxy.ServeHTTP(httptest.NewRecorder(), r)
		}
		killed := make(chan struct{})
		g.held <- killed
		<-killed
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(g.Close)
	return g
}

// prompt returns a name for a gateway that hardly waits before it creates a pull request. Gateways wait for others that made the same
// change, each for up to 15 s by its name.
func prompt(prefix string) string {
	for i := 0; ; i++ {
		name := fmt.Sprintf("%s-%d", prefix, i)
		h := fnv.New32a()
		_, _ = h.Write([]byte("standalone/" + name))
		if h.Sum32()%100 < 2 {
			return name
		}
	}
}

// TestKills: P1. It kills the agent twice at each step between a save and the pull request. At the end there is one pull request with one
// commit.
func TestKills(t *testing.T) {
	s := Start(t)
	token := s.Token("root", "write:repository", "write:issue")
	on := func(method, path, query string) func(*http.Request) bool {
		return func(r *http.Request) bool {
			return r.Method == method && strings.HasSuffix(r.URL.Path, path) && strings.Contains(r.URL.RawQuery, query)
		}
	}
	steps := []struct {
		name  string
		holds func(*http.Request) bool // nil: while the change settles
	}{
		{"the change settles", nil},
		{"the branch is looked up", on(http.MethodGet, "/info/refs", "service=git-receive-pack")},
		{"the push", on(http.MethodPost, "/git-receive-pack", "")},
		{"the ended pull requests are listed", on(http.MethodGet, "/pulls", "state=closed")},
		{"the open pull requests are listed", on(http.MethodGet, "/pulls", "state=open")},
		{"the labels are listed", on(http.MethodGet, "/labels", "")},
		{"the creation", on(http.MethodPost, "/pulls", "")},
	}
	for i, step := range steps {
		for _, after := range []bool{false, true} {
			if step.holds == nil && after {
				continue
			}
			t.Run(fmt.Sprintf("%s, handled %t", step.name, after), func(t *testing.T) {
				t.Parallel()
				name := fmt.Sprintf("site-%d-%t", i, after)
				at, first := s.Repository(name, site())
				g := newGate(t, s)
				g.holds, g.after, g.left = step.holds, after, 0
				l := prepare(t, g.URL, strings.Replace(at, s.url, g.URL, 1), prompt("line"), token)
				if step.holds == nil { // the change must still settle when save returns
					l.edit("debounce: 1s", "debounce: 10s")
				}
				l.run()
				l.synced(first)
				if step.holds != nil {
					g.mu.Lock()
					g.left = 2
					g.mu.Unlock()
				}
				l.save("saved in a Designer")
				assert.Positive(t, l.killUntilOpen(g, step.holds == nil))

				f := s.forge(at, token)
				branch := "gateway-changes/standalone/" + l.name
				list, err := f.ByHead(t.Context(), branch, "")
				require.NoError(t, err)
				require.Len(t, list, 1, "there must be one pull request in any state")
				assert.Equal(t, forge.Open, list[0].State)
				commit := s.must(http.MethodGet, "/repos/root/"+name+"/git/commits/"+list[0].Commit, nil)
				assert.Equal(t, first, commit["parents"].([]any)[0].(map[string]any)["sha"], "the branch must have one commit above the deployed one")
				assert.Len(t, s.list("/repos/root/"+name+"/branches"), 2)
			})
		}
	}
}

// killUntilOpen kills the agent and starts it again, at most twice, until the pull request is open. It returns the number of kills.
func (l *line) killUntilOpen(g *gate, settling bool) (kills int) {
	l.t.Helper()
	kill := func() {
		require.Error(l.t, l.logs.End(l.t, syscall.SIGKILL))
		kills++
	}
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); {
		select {
		case held := <-g.held:
			kill()
			close(held)
			l.run()
		case <-time.After(50 * time.Millisecond):
		}
		st, ok := l.now()
		switch {
		case !ok || st.Proposal == nil:
		case settling && kills < 2 && st.Proposal.State == "Settling":
			kill()
			l.run()
		case st.Proposal.State == "Open":
			return kills
		}
	}
	require.Fail(l.t, "no pull request is open")
	return kills
}
