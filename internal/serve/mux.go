package serve

import (
	"maps"
	"net/http"
	"slices"
)

// Mux serves a table of routes. Patterns lets a test try every route, including those that are added after the test was
// written.
type Mux struct {
	mux    *http.ServeMux
	routes map[string]http.HandlerFunc
}

// NewMux returns a Mux for routes; the keys are patterns of http.ServeMux.
func NewMux(routes map[string]http.HandlerFunc) *Mux {
	m := &Mux{mux: http.NewServeMux(), routes: routes}
	for pattern, serve := range routes {
		m.mux.HandleFunc(pattern, serve)
	}
	return m
}

// ServeHTTP implements http.Handler.
func (m *Mux) ServeHTTP(w http.ResponseWriter, r *http.Request) { m.mux.ServeHTTP(w, r) }

// Patterns returns the patterns of all routes, sorted.
func (m *Mux) Patterns() []string { return slices.Sorted(maps.Keys(m.routes)) }
