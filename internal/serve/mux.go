package serve

import (
	"maps"
	"net/http"
	"slices"
)

// Mux serves a table of routes and nothing else. Its Patterns let a test try every route that there is, those too that are
// added after the test was written.
type Mux struct {
	mux    *http.ServeMux
	routes map[string]http.HandlerFunc
}

// NewMux serves routes by their patterns, which are those of http.ServeMux.
func NewMux(routes map[string]http.HandlerFunc) *Mux {
	m := &Mux{mux: http.NewServeMux(), routes: routes}
	for pattern, serve := range routes {
		m.mux.HandleFunc(pattern, serve)
	}
	return m
}

// ServeHTTP implements http.Handler.
func (m *Mux) ServeHTTP(w http.ResponseWriter, r *http.Request) { m.mux.ServeHTTP(w, r) }

// Patterns returns what is served, sorted.
func (m *Mux) Patterns() []string { return slices.Sorted(maps.Keys(m.routes)) }
