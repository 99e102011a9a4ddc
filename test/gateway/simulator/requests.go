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

// RequestLog keeps the newest requests, and counts all.
type RequestLog struct {
	mu         sync.Mutex
	list       []*Request
	counts     map[string]int // by "METHOD /path"
	violations []string
}

func (l *RequestLog) add(r Request) *Request {
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

func (l *RequestLog) finish(r *Request, status int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.Status = status
}

func (l *RequestLog) addViolation(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.violations) < maxRequests {
		l.violations = append(l.violations, what)
	}
}

// List lists the requests, oldest first; at least the newest 5,000.
func (l *RequestLog) List() []Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]Request, 0, len(l.list))
	for _, r := range l.list {
		list = append(list, *r)
	}
	return list
}

// Count returns the number of requests to a route, for example "POST /data/api/v1/scan/projects", whatever was
// answered.
func (l *RequestLog) Count(route string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts[route]
}

// Counts returns the number of requests to each route.
func (l *RequestLog) Counts() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.counts)
}

// Violations lists the requests that Options.Strict refused.
func (l *RequestLog) Violations() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.violations)
}

// Reset drops all requests and violations.
func (l *RequestLog) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list, l.counts, l.violations = nil, map[string]int{}, nil
}
