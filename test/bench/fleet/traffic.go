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
	"strings"
	"sync"
	"sync/atomic"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

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
