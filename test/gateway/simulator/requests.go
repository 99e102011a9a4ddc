package simulator

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// Request is a request to the gateway. It is counted on arrival, so that a client that has its answer finds it counted.
type Request struct {
	At     time.Time `json:"at"`
	Method string    `json:"method"`
	Path   string    `json:"path"`
	Query  string    `json:"query,omitempty"`
	Status int       `json:"status"` // 0 until it is answered, and after a connection reset
	// Token is the name of the request's token, or "".
	Token string `json:"token,omitempty"`
	TLS   bool   `json:"tls,omitempty"`
}

const maxRequests = 10_000

// requestLog keeps the newest requests, and counts all.
type requestLog struct {
	mu         sync.Mutex
	list       []*Request
	counts     map[string]int // by "METHOD /path"
	violations []string
}

func (l *requestLog) add(r Request) *Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.list) >= maxRequests {
		l.list = slices.Clone(l.list[maxRequests/2:])
	}
	l.list = append(l.list, &r)
	route := r.Method + " " + r.Path
	if _, known := l.counts[route]; known || len(l.counts) < maxRequests {
		l.counts[route]++
	}
	return &r
}

func (l *requestLog) finish(r *Request, status int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.Status = status
}

func (l *requestLog) addViolation(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.violations) < maxRequests {
		l.violations = append(l.violations, what)
	}
}

// Requests lists the requests, oldest first; at least the newest 5,000.
func (g *Gateway) Requests() []Request {
	g.requests.mu.Lock()
	defer g.requests.mu.Unlock()
	list := make([]Request, 0, len(g.requests.list))
	for _, r := range g.requests.list {
		list = append(list, *r)
	}
	return list
}

// Count returns the number of requests to a route, for example "POST /data/api/v1/scan/projects", whatever was
// answered.
func (g *Gateway) Count(route string) int {
	g.requests.mu.Lock()
	defer g.requests.mu.Unlock()
	return g.requests.counts[route]
}

// Counts returns the number of requests to each route.
func (g *Gateway) Counts() map[string]int {
	g.requests.mu.Lock()
	defer g.requests.mu.Unlock()
	return maps.Clone(g.requests.counts)
}

// Violations lists the requests that Options.Strict refused.
func (g *Gateway) Violations() []string {
	g.requests.mu.Lock()
	defer g.requests.mu.Unlock()
	return slices.Clone(g.requests.violations)
}

// ResetRequests drops all requests and violations.
func (g *Gateway) ResetRequests() {
	g.requests.mu.Lock()
	defer g.requests.mu.Unlock()
	g.requests.list, g.requests.counts, g.requests.violations = nil, map[string]int{}, nil
}
