// Package serve runs the HTTP servers of the binaries with the bounds that every server needs.
package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// maxHeader bounds the header of a request; nothing that is served here needs more.
const maxHeader = 16 << 10

// Server is a listening HTTP server.
type Server struct {
	l   net.Listener
	srv *http.Server
}

// Listen opens addr ("host:port"; port 0 picks a free one) for h. It serves once Run is called.
func Listen(ctx context.Context, addr string, h http.Handler) (*Server, error) {
	return listen(ctx, addr, h, nil, 1<<20)
}

// ListenTLS is Listen over TLS, for requests with a body of at most maxBody bytes.
func ListenTLS(ctx context.Context, addr string, h http.Handler, config *tls.Config, maxBody int64) (*Server, error) {
	return listen(ctx, addr, h, config, maxBody)
}

func listen(ctx context.Context, addr string, h http.Handler, config *tls.Config, maxBody int64) (*Server, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	return &Server{l: l, srv: &http.Server{
		Handler:           http.MaxBytesHandler(h, maxBody),
		TLSConfig:         config,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       15 * time.Second,
		WriteTimeout:      60 * time.Second,
		IdleTimeout:       60 * time.Second,
		MaxHeaderBytes:    maxHeader,
	}}, nil
}

// Addr returns the address that is really listened on.
func (s *Server) Addr() string { return s.l.Addr().String() }

// ignoreClosed drops what Serve returns after an ordinary Shutdown.
func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Run serves until ctx ends, then lets requests finish for up to two seconds.
func (s *Server) Run(ctx context.Context) error {
	done := make(chan error, 1)
	go func() {
		if s.srv.TLSConfig != nil {
			done <- s.srv.ServeTLS(s.l, "", "") // the certificate is the configuration's
			return
		}
		done <- s.srv.Serve(s.l)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	err := s.srv.Shutdown(stop)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.srv.Close()
	}
	return errors.Join(err, ignoreClosed(<-done))
}
