// Package serve runs the HTTP servers of the binaries with the bounds that every server needs.
package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"time"

	"stoker.io/stoker/internal/limit"
)

// maxHeader is the largest request header in bytes; no route needs more.
const maxHeader = 16 << 10

// maxAddressConnections limits the open connections of one address, unless Bounds says otherwise. API servers, kubelets and Prometheus
// need a few each. There is no limit for all addresses together: with one, idle connections of many addresses would keep probes waiting.
const maxAddressConnections = 128

// drain is how long requests may take to finish on shutdown unless Bounds says otherwise.
const drain = 2 * time.Second

// Server is a listening HTTP server.
type Server struct {
	l     net.Listener
	srv   *http.Server
	drain time.Duration
}

// Bounds are the limits of a server that untrusted clients reach.
type Bounds struct {
	// TLS is nil for plain HTTP.
	TLS *tls.Config
	// MaxBody is the largest body in bytes.
	MaxBody int64
	// Body is how long reading a request may take. Idle is how long a connection may stay open without a request.
	Body, Idle time.Duration
	// Drain is how long requests may take to finish on shutdown.
	Drain time.Duration
	// Log receives the connection errors of net/http at debug level. If it is nil, net/http logs each of them itself.
	Log *slog.Logger
	// Connections limits the open connections.
	Connections limit.Limits
}

// ListenBounded is Listen for requests of untrusted clients. It serves HTTP/1 only: a connection carries one request at a time,
// so a limit on connections also limits requests.
func ListenBounded(ctx context.Context, addr string, h http.Handler, b Bounds) (*Server, error) {
	s, err := listen(ctx, addr, h, b.TLS, b.MaxBody, b.Connections)
	if err != nil {
		return nil, err
	}
	s.srv.ReadTimeout, s.srv.IdleTimeout, s.drain = b.Body, b.Idle, b.Drain
	s.srv.Protocols = &http.Protocols{}
	s.srv.Protocols.SetHTTP1(true)
	if b.Log != nil {
		s.srv.ErrorLog = slog.NewLogLogger(b.Log.Handler(), slog.LevelDebug)
	}
	return s, nil
}

// Listen opens addr ("host:port"; port 0 picks a free one) for h. Requests are served once Run is called.
func Listen(ctx context.Context, addr string, h http.Handler) (*Server, error) {
	return listen(ctx, addr, h, nil, 1<<20, limit.Limits{MaxEach: maxAddressConnections})
}

// ListenTLS is Listen over TLS, for requests with a body of at most maxBody bytes.
func ListenTLS(ctx context.Context, addr string, h http.Handler, config *tls.Config, maxBody int64) (*Server, error) {
	return listen(ctx, addr, h, config, maxBody, limit.Limits{MaxEach: maxAddressConnections})
}

func listen(ctx context.Context, addr string, h http.Handler, config *tls.Config, maxBody int64, connections limit.Limits) (*Server, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	return &Server{l: limit.Listener(l, connections), drain: drain, srv: &http.Server{
		Handler:           http.MaxBytesHandler(h, maxBody),
		TLSConfig:         config,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       15 * time.Second,
		WriteTimeout:      60 * time.Second,
		IdleTimeout:       60 * time.Second,
		MaxHeaderBytes:    maxHeader,
	}}, nil
}

// Addr returns the address that the server listens on, with the port that was picked.
func (s *Server) Addr() string { return s.l.Addr().String() }

// ignoreClosed drops the error that Serve returns after Shutdown.
func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Run serves until ctx is done, gives open requests time to finish, and closes the server. Call it once.
func (s *Server) Run(ctx context.Context) error {
	done := make(chan error, 1)
	go func() {
		if s.srv.TLSConfig != nil {
			done <- s.srv.ServeTLS(s.l, "", "") // TLSConfig holds the certificate
			return
		}
		done <- s.srv.Serve(s.l)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.drain)
	defer cancel()
	err := s.srv.Shutdown(stop)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.srv.Close()
	}
	return errors.Join(err, ignoreClosed(<-done))
}

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
