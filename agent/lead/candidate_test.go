package lead

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/metrics"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/test/program"
)

// candidate is an agent that may lead.
type candidate struct {
	*Lead
	wire *wire
	reg  *prometheus.Registry
	log  program.Log
	stop func()
}

// says waits until the log of the candidate contains a text.
func (c *candidate) says(t *testing.T, text string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(c.log.String(), text) }, tenfold, 10*time.Millisecond, text)
}

// synced starts a candidate in the pod gw-0, and makes the named gateways run its target.
func (s *site) synced(names ...string) *candidate {
	s.t.Helper()
	c := s.candidate("gw-0")
	s.runs(s.first, names...)
	return c
}

// candidate starts an agent for a pod of the site, with the rights of that pod.
func (s *site) candidate(pod string, change ...func(*Config)) *candidate {
	s.t.Helper()
	return s.candidateBy(&wire{counts: map[string]int{}, ahead: s.ahead}, pod, change...)
}

// candidateBy is like candidate, but uses the given wire, which may inject faults.
func (s *site) candidateBy(w *wire, pod string, change ...func(*Config)) *candidate {
	s.t.Helper()
	config := s.cluster.As(s.t, s.ns, "default", pod)
	c := &candidate{wire: w, reg: prometheus.NewRegistry()}
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { c.wire.next = rt; return c.wire })
	clients, err := kube.ConnectTo(config, "stoker-agent/test")
	require.NoError(s.t, err)
	cfg := Config{Namespace: s.ns, GatewaySync: "site", Pod: pod, Clients: clients, Log: slog.New(slog.NewTextHandler(&c.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Connect: connect, Metrics: measured{metrics.NewAgent(c.reg, "test", s.ns, "site", pod), metrics.NewFleet(c.reg, s.ns, "site")}}
	store, err := repo.Open(s.t.TempDir(), repo.StoreOptions{})
	require.NoError(s.t, err)
	cfg.Store = store
	for _, f := range change {
		f(&cfg)
	}
	c.Lead, err = New(cfg)
	require.NoError(s.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = c.Watch(ctx) })
	running.Go(func() { _ = c.Run(ctx) })
	c.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		_ = store.Close()
	})
	s.t.Cleanup(func() {
		c.stop()
		if s.t.Failed() {
			s.t.Logf("the log of %s:\n%s", pod, &c.log)
		}
	})
	return c
}

// leads waits until an agent leads, and returns its identity.
func (s *site) leads() string {
	s.t.Helper()
	var holder string
	require.Eventually(s.t, func() bool {
		t, err := s.targets().Get(s.t.Context(), "site")
		if err != nil {
			return false
		}
		holder = t.Spec.Lead.Holder
		return holder != ""
	}, tenfold, 10*time.Millisecond, "no agent leads")
	return holder
}

type measured struct {
	*metrics.Agent
	*metrics.Fleet
}

// token holds the tokens that Secrets would contain.
var token sync.Map // by repository

func connect(gs *v1alpha1.GatewaySync) (*repo.Remote, error) {
	u, err := repo.ParseURL(gs.Spec.Git.Repo)
	if err != nil {
		return nil, err
	}
	var auth repo.Auth
	if _, ok := token.Load(gs.Spec.Git.Repo); ok {
		auth.Token = func() (secret.String, error) {
			v, _ := token.Load(gs.Spec.Git.Repo)
			return secret.New(v.(string)), nil
		}
	}
	return repo.NewRemote(u, auth, repo.RemoteOptions{})
}

// wire counts the requests of a candidate by what they ask for, such as "GET synctargets", "PATCH status" and "WATCH syncreports". Tests can
// cut, freeze or delay it, make requests fail, and drop answers.
type wire struct {
	next http.RoundTripper

	mu      sync.Mutex
	counts  map[string]int
	times   map[string][]time.Time
	cut     bool
	frozen  chan struct{}
	failing map[string]int // requests to answer with 500 → remaining failures
	mute    map[string]int // requests that are carried out without an answer → remaining ones
	ahead   time.Duration  // offset of the API server's clock
	late    time.Duration  // how long an answer takes; the request is carried out at once
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	what := r.Method + " " + parts[len(parts)-1]
	if n := len(parts); n >= 2 && (parts[n-1] == "site" || r.Method == http.MethodPut || r.Method == http.MethodGet && parts[n-2] == "gatewaysyncs") {
		what = r.Method + " " + parts[n-2]
	}
	if r.URL.Query().Get("watch") != "" {
		what = "WATCH " + parts[len(parts)-1]
	}
	w.mu.Lock()
	w.counts[what]++
	if w.times == nil {
		w.times = map[string][]time.Time{}
	}
	w.times[what] = append(w.times[what], time.Now())
	cut, frozen, fails, late := w.cut, w.frozen, w.failing[what] > 0, w.late
	if fails {
		w.failing[what]--
	}
	mute := w.mute[what] > 0
	if mute {
		w.mute[what]--
	}
	w.mu.Unlock()
	if frozen != nil {
		<-frozen
	}
	if cut {
		return nil, errors.New("the wire is cut")
	}
	if fails {
		answer := httptest.NewRecorder()
		answer.Header().Set("Content-Type", "application/json")
		answer.WriteHeader(http.StatusInternalServerError)
		_, _ = answer.WriteString(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"etcdserver: leader changed","reason":"InternalError","code":500}`)
		return answer.Result(), nil
	}
	answer, err := w.next.RoundTrip(r)
	if err == nil && late > 0 && !backoff.Wait(r.Context(), late) {
		_ = answer.Body.Close()
		return nil, r.Context().Err()
	}
	if err == nil && mute {
		_ = answer.Body.Close()
		return nil, errors.New("the answer is lost")
	}
	if err == nil {
		answer.Header.Set("Date", time.Now().Add(w.ahead).UTC().Format(http.TimeFormat))
	}
	return answer, err
}

func (w *wire) answersLate(by time.Duration) { w.mu.Lock(); w.late = by; w.mu.Unlock() }

func (w *wire) cutIt() { w.mu.Lock(); w.cut = true; w.mu.Unlock() }

// freeze blocks all requests until the returned function is called. Blocked requests then continue, late.
func (w *wire) freeze() (thaw func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.frozen = make(chan struct{})
	return sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		close(w.frozen)
		w.frozen = nil
	})
}

func (w *wire) count(what string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counts[what]
}

// total counts all requests except watches.
func (w *wire) total() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for what, c := range w.counts {
		if !strings.HasPrefix(what, "WATCH") {
			n += c
		}
	}
	return n
}
