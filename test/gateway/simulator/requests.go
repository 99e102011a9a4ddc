package simulator

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// Request is a request that the gateway got. It is counted when it arrives, so that a client that has its answer finds
// it counted.
type Request struct {
	At     time.Time `json:"at"`
	Method string    `json:"method"`
	Path   string    `json:"path"`
	Query  string    `json:"query,omitempty"`
	Status int       `json:"status"` // 0 while it is not answered, and where the connection was reset
	// Token is the name of the token that came along, "" for none.
	Token string `json:"token,omitempty"`
	TLS   bool   `json:"tls,omitempty"`
}

const maxRequests = 10_000

// requestLog keeps the newest requests, and a count of all.
type requestLog struct {
	mu         sync.Mutex
	list       []*Request
	counts     map[string]int // "METHOD /path"
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

func (l *requestLog) violate(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.violations) < maxRequests {
		l.violations = append(l.violations, what)
	}
}

// Requests lists what was asked, the oldest first: the newest 5,000 at least.
func (g *Gateway) Requests() []Request {
	g.requests.mu.Lock()
	defer g.requests.mu.Unlock()
	list := make([]Request, 0, len(g.requests.list))
	for _, r := range g.requests.list {
		list = append(list, *r)
	}
	return list
}

// Count is how often a route was asked, for example "POST /data/api/v1/scan/projects", whatever was answered.
func (g *Gateway) Count(route string) int {
	g.requests.mu.Lock()
	defer g.requests.mu.Unlock()
	return g.requests.counts[route]
}

// Counts is how often each route was asked.
func (g *Gateway) Counts() map[string]int {
	g.requests.mu.Lock()
	defer g.requests.mu.Unlock()
	return maps.Clone(g.requests.counts)
}

// Violations lists what Options.Strict refused.
func (g *Gateway) Violations() []string {
	g.requests.mu.Lock()
	defer g.requests.mu.Unlock()
	return slices.Clone(g.requests.violations)
}

// ResetRequests forgets all requests and violations.
func (g *Gateway) ResetRequests() {
	g.requests.mu.Lock()
	defer g.requests.mu.Unlock()
	g.requests.list, g.requests.counts, g.requests.violations = nil, map[string]int{}, nil
}
