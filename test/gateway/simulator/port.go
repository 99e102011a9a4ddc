package simulator

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"sync"
	"time"
)

// port is a TCP port with an HTTP server, which can be closed and reopened at the same address.
type port struct {
	addr    string
	handler http.Handler
	tls     *tls.Config

	mu       sync.Mutex
	server   *http.Server
	served   chan struct{} // closed when the server has ended
	closed   bool          // shut down: open fails
	reserved reservation
}

func (d *port) address() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.addr
}

// open starts to listen. It does nothing if the port is open.
func (d *port) open() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return net.ErrClosed
	}
	if d.server != nil {
		return nil
	}
	lc := net.ListenConfig{Control: controlShared}
	l, err := lc.Listen(context.Background(), "tcp", d.addr)
	if err != nil {
		return err
	}
	d.addr = l.Addr().String()
	if !d.reserved.held() {
		if d.reserved, err = reservePort(d.addr); err != nil {
			return errors.Join(err, l.Close())
		}
	}
	if d.tls != nil {
		l = tls.NewListener(l, d.tls)
	}
	server := &http.Server{
		Handler:           d.handler,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          log.New(io.Discard, "", 0),
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l) // returns after close
	}()
	d.server, d.served = server, served
	return nil
}

// shutdown closes the port and releases it. It cannot be opened again.
func (d *port) shutdown() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.close()
	d.reserved.release()
}

func (d *port) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.server == nil {
		return
	}
	_ = d.server.Close()
	<-d.served
	d.server = nil
}

// certificate is a self-signed certificate.
type certificate struct {
	pair tls.Certificate
	pem  []byte
}

func newCertificate(names []string, notAfter time.Time) (*certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	notBefore := time.Now().Add(-time.Hour)
	if notAfter.Before(notBefore) {
		notBefore = notAfter.Add(-time.Hour)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: names[0]},
		DNSNames:     names,
		NotBefore:    notBefore,
		NotAfter:     notAfter,
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},

		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &certificate{
		pair: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		pem:  pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
	}, nil
}

// tlsConfig serves the current certificate.
func (g *Gateway) tlsConfig() *tls.Config {
	return &tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &g.certificate().pair, nil },
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"http/1.1"},
	}
}
