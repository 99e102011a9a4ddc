// Package port opens TCP ports (IPv4 only) that keep their address while they are closed, with HTTP servers and self-signed certificates.
package port

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"
)

// Port is a TCP port with an HTTP server, which can be closed and reopened at the same address.
type Port struct {
	addr    string
	handler http.Handler
	tls     *tls.Config

	mu       sync.Mutex
	server   *http.Server
	served   chan struct{} // closed when the server has ended
	shutdown bool          // Open fails
	reserved reservation
}

// New returns a port, which is closed. Without a TLS configuration it serves http.
func New(addr string, handler http.Handler, config *tls.Config) *Port {
	return &Port{addr: addr, handler: handler, tls: config}
}

// Address returns the address. Port 0 becomes a free port when the port is first opened.
func (p *Port) Address() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.addr
}

// Open starts to listen. It does nothing if the port is open.
func (p *Port) Open() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shutdown {
		return net.ErrClosed
	}
	if p.server != nil {
		return nil
	}
	lc := net.ListenConfig{Control: controlShared}
	l, err := lc.Listen(context.Background(), "tcp", p.addr)
	if err != nil {
		return err
	}
	p.addr = l.Addr().String()
	if !p.reserved.held() {
		if p.reserved, err = reservePort(p.addr); err != nil {
			return errors.Join(err, l.Close())
		}
	}
	if p.tls != nil {
		l = tls.NewListener(l, p.tls)
	}
	server := &http.Server{
		Handler:           p.handler,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          log.New(io.Discard, "", 0),
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l) // returns after Close
	}()
	p.server, p.served = server, served
	return nil
}

// Shutdown closes the port and releases it. It cannot be opened again.
func (p *Port) Shutdown() {
	p.mu.Lock()
	p.shutdown = true
	p.mu.Unlock()
	p.Close()
	p.reserved.release()
}

// Close stops listening and closes all connections.
func (p *Port) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server == nil {
		return
	}
	_ = p.server.Close()
	<-p.served
	p.server = nil
}
