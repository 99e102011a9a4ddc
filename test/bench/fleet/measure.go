package fleet

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gitserver"
)

// window has the figures between two marks.
type window struct {
	duration     time.Duration // the whole window
	verified     time.Duration // from the start until the last status reported the commit
	counts       map[*agent]counts
	leads        map[*agent]bool // the leads at its beginning
	leadsChanged bool            // the leads changed
	git          gitserver.Stats
	cpu          time.Duration // of this process
}

// mark has the counters at a moment.
type mark struct {
	at     time.Time
	counts map[*agent]counts
	leads  map[*agent]bool
	git    gitserver.Stats
	cpu    time.Duration
}

func (b *testbed) mark() mark {
	m := mark{at: time.Now(), counts: map[*agent]counts{}, leads: b.leads(), git: b.git.Stats(), cpu: cpuTime()}
	for _, a := range b.agents {
		m.counts[a] = a.traffic.counts()
	}
	return m
}

func (b *testbed) since(was mark) window {
	now := b.mark()
	w := window{duration: now.at.Sub(was.at), counts: map[*agent]counts{}, leads: was.leads, leadsChanged: !maps.Equal(was.leads, now.leads), cpu: now.cpu - was.cpu}
	for a, c := range now.counts {
		w.counts[a] = c.since(was.counts[a])
	}
	w.git = gitserver.Stats{Requests: now.git.Requests - was.git.Requests, Advertisements: now.git.Advertisements - was.git.Advertisements,
		UploadPacks: now.git.UploadPacks - was.git.UploadPacks, PackBytes: now.git.PackBytes - was.git.PackBytes, Out: now.git.Out - was.git.Out}
	return w
}

// cpuTime returns the CPU time of this process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// residentMemory returns the memory of this process after it returned what it can; 0 if the system does not report it.
func residentMemory() int64 {
	debug.FreeOSMemory()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	if fields := strings.Fields(string(b)); len(fields) > 1 {
		if pages, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
			return pages * int64(os.Getpagesize())
		}
	}
	return 0
}

// result has all measurements of a size.
type result struct {
	size       size
	first      window // from the start of all agents
	syncs      []window
	idle       window
	memory     int64 // bytes per agent
	goroutines int   // per agent
}

// lockRequests has the requests by which a lead renews its lock in the SyncTarget.
var lockRequests = map[string]bool{"get synctargets": true, "update synctargets": true}

// confirmRequest is the write by which a lead changes or confirms a status.
const confirmRequest = "patch gatewaysyncs/status"

// allowedConfirms returns how many confirmations a GatewaySync may have in the window.
func (w window) allowedConfirms() int { return int(w.duration/v1alpha1.ConfirmEvery) + 1 }

// busyRequests counts the requests other than watches, locks and confirmations.
func (w window) busyRequests() (n int) {
	for _, c := range w.counts {
		for what, times := range c.requests {
			if !lockRequests[what] && what != confirmRequest && !strings.HasPrefix(what, watching+" ") {
				n += times
			}
		}
	}
	return n
}

const (
	// calm is how long nothing must happen before and after a sync.
	calm = 3 * time.Second
	// calmTimeout is the timeout of the wait for calm.
	calmTimeout = 2 * time.Minute
)

// settle waits until, for as long as calm, no agent sends a request other than watches, renewals of locks and confirmations.
func (b *testbed) settle(ctx context.Context, calm time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, calmTimeout)
	defer cancel()
	was, since := b.mark(), time.Now()
	for time.Since(since) < calm {
		if err := sleep(ctx, calm/10); err != nil {
			w := b.since(was)
			return fmt.Errorf("the fleet does not come to rest within %s: %w: %v", calmTimeout, err, w.sum(allAgents).requests)
		}
		if b.since(was).busyRequests() > 0 {
			was, since = b.mark(), time.Now()
		}
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// measure starts a fleet and measures the first sync, an idle time, and a number of syncs of one changed file.
func (b *testbed) measure(ctx context.Context, of size, rounds int, idle, within time.Duration) (r result, err error) {
	r.size = of
	memory, goroutines, began := residentMemory(), runtime.NumGoroutine(), b.emptyMark()
	if err := b.start(ctx); err != nil {
		return r, err
	}
	if err := b.waitVerifiedWithin(ctx, within, b.repo.Head(), ""); err != nil {
		return r, err
	}
	verified := time.Since(began.at)
	if err := b.settle(ctx, calm); err != nil {
		return r, err
	}
	r.first = b.since(began)
	r.first.verified = verified
	r.memory, r.goroutines = (residentMemory()-memory)/int64(of.total()), (runtime.NumGoroutine()-goroutines)/of.total()
	quiet := b.mark()
	if err := sleep(ctx, idle); err != nil {
		return r, err
	}
	r.idle = b.since(quiet)
	for n := range rounds {
		w, err := b.round(ctx, n+1, within)
		if err != nil {
			return r, fmt.Errorf("sync %d: %w", n+1, err)
		}
		r.syncs = append(r.syncs, w)
	}
	return r, nil
}

// emptyMark returns the mark before any agent runs.
func (b *testbed) emptyMark() mark {
	return mark{at: time.Now(), counts: map[*agent]counts{}, leads: map[*agent]bool{}, git: b.git.Stats(), cpu: cpuTime()}
}

// round measures one sync: a commit, and the annotation that requests it.
func (b *testbed) round(ctx context.Context, n int, within time.Duration) (window, error) {
	commit, err := b.commit(n)
	if err != nil {
		return window{}, err
	}
	began := b.mark()
	request := time.Now().UTC().Format(time.RFC3339Nano)
	if err := b.requestSync(ctx, request); err != nil {
		return window{}, err
	}
	if err := b.waitVerifiedWithin(ctx, within, commit, request); err != nil {
		return window{}, err
	}
	verified := time.Since(began.at)
	if err := b.settle(ctx, calm); err != nil {
		return window{}, err
	}
	w := b.since(began)
	w.verified = verified
	return w, nil
}

// waitVerifiedWithin is waitVerified with a timeout.
func (b *testbed) waitVerifiedWithin(ctx context.Context, within time.Duration, commit, request string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, within, errors.New("too slow"))
	defer cancel()
	return b.waitVerified(ctx, commit, request)
}

// selector selects agents.
type selector func(w window, a *agent) bool

func allAgents(window, *agent) bool     { return true }
func followers(w window, a *agent) bool { return !w.leads[a] }
func leaders(w window, a *agent) bool   { return w.leads[a] }

// number returns how many agents a selector selects.
func (w window) number(of selector) (n int) {
	for a := range w.counts {
		if of(w, a) {
			n++
		}
	}
	return n
}

// sum adds up the counts of the selected agents.
func (w window) sum(of selector) counts {
	s := counts{requests: map[string]int{}, refused: map[string]int{}, events: map[string]int{}}
	for a, c := range w.counts {
		if !of(w, a) {
			continue
		}
		for _, m := range []struct{ to, from map[string]int }{{s.requests, c.requests}, {s.refused, c.refused}, {s.events, c.events}} {
			for k, n := range m.from {
				m.to[k] += n
			}
		}
		s.in, s.out = s.in+c.in, s.out+c.out
	}
	return s
}

// counts is the traffic between one agent and the API server.
type counts struct {
	requests map[string]int // "update syncreports", including refused ones
	refused  map[string]int // by status: "409 update synctargets"
	events   map[string]int // from watches, by resource
	in, out  int64          // bytes on the wire, with TLS and compression
}

// since returns the difference to an earlier count.
func (c counts) since(was counts) counts {
	minus := func(a, b map[string]int) map[string]int {
		d := map[string]int{}
		for k, n := range a {
			if n -= b[k]; n > 0 {
				d[k] = n
			}
		}
		return d
	}
	return counts{minus(c.requests, was.requests), minus(c.refused, was.refused), minus(c.events, was.events), c.in - was.in, c.out - was.out}
}

// traffic is an agent's own connection to the API server, as in a pod. It counts the traffic.
type traffic struct {
	pool *http.Transport
	next http.RoundTripper

	in, out atomic.Int64
	delay   atomic.Int64 // how long an answer is held back, in nanoseconds; the request is carried out at once
	mu      sync.Mutex
	total   counts
}

// newTraffic returns a connection to the server of config, which has its authority.
func newTraffic(config *rest.Config) (*traffic, error) {
	authority := config.CAData
	if len(authority) == 0 {
		var err error
		if authority, err = os.ReadFile(config.CAFile); err != nil {
			return nil, err
		}
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		return nil, fmt.Errorf("%s has no certificate of its authority", config.Host)
	}
	t := &traffic{total: counts{requests: map[string]int{}, refused: map[string]int{}, events: map[string]int{}}}
	dialer := net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
	t.pool = utilnet.SetTransportDefaults(&http.Transport{ // as in client-go
		TLSHandshakeTimeout: 10 * time.Second, MaxIdleConnsPerHost: 25,
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &countedConn{c, t}, nil
		},
	})
	t.next = t.pool
	return t, nil
}

// config returns the configuration of a client with this token.
func (t *traffic) config(host, token string) *rest.Config {
	return &rest.Config{Host: host, BearerToken: token, Transport: t}
}

type countedConn struct {
	net.Conn
	traffic *traffic
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.traffic.in.Add(int64(n))
	return n, err
}

func (c *countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.traffic.out.Add(int64(n))
	return n, err
}

// RoundTrip implements http.RoundTripper.
func (t *traffic) RoundTrip(r *http.Request) (*http.Response, error) {
	verb, resource := classify(r.Method, r.URL)
	what := verb + " " + resource
	t.mu.Lock()
	t.total.requests[what]++
	t.mu.Unlock()
	res, err := t.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if err := sleep(r.Context(), time.Duration(t.delay.Load())); err != nil {
		return nil, errors.Join(err, res.Body.Close())
	}
	if res.StatusCode >= http.StatusBadRequest {
		t.mu.Lock()
		t.total.refused[fmt.Sprintf("%d %s", res.StatusCode, what)]++
		t.mu.Unlock()
	}
	if verb == watching && strings.HasPrefix(res.Header.Get("Content-Type"), "application/json") {
		res.Body = &eventCounter{res.Body, t, resource}
	}
	return res, nil
}

// eventCounter counts the events of a watch: in JSON every event is a line.
type eventCounter struct {
	io.ReadCloser
	traffic  *traffic
	resource string
}

func (e *eventCounter) Read(p []byte) (int, error) {
	n, err := e.ReadCloser.Read(p)
	if lines := bytes.Count(p[:n], []byte{'\n'}); lines > 0 {
		e.traffic.mu.Lock()
		e.traffic.total.events[e.resource] += lines
		e.traffic.mu.Unlock()
	}
	return n, err
}

func (t *traffic) counts() counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	return counts{maps.Clone(t.total.requests), maps.Clone(t.total.refused), maps.Clone(t.total.events), t.in.Load(), t.out.Load()}
}

func (t *traffic) close() { t.pool.CloseIdleConnections() }

const watching = "watch"

// classify names a request like a role: verb, and resource with subresource.
func classify(method string, u *url.URL) (verb, resource string) {
	parts := strings.Split(strings.Trim(u.Path, "/"), "/")
	skip := 3 // apis, group, version
	if parts[0] == "api" {
		skip = 2
	}
	parts = parts[min(skip, len(parts)):]
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	if len(parts) == 0 {
		return strings.ToLower(method), u.Path
	}
	resource = parts[0]
	if len(parts) > 2 {
		resource += "/" + parts[2]
	}
	switch {
	case method == http.MethodGet && (u.Query().Get("watch") == "true" || u.Query().Get("watch") == "1"):
		return watching, resource
	case method == http.MethodGet && len(parts) == 1:
		return "list", resource
	case method == http.MethodPost:
		return "create", resource
	case method == http.MethodPut:
		return "update", resource
	}
	return strings.ToLower(method), resource
}
