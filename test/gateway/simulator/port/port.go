// Package port opens TCP ports (IPv4 only) that keep their address while they are closed, with HTTP servers and self-signed certificates.
package port

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
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
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

// reservation reserves a port while no server listens: it is a bound socket that never listens. Connections are refused, and
// the kernel does not assign the port to a process that asks for any free port. The zero value reserves nothing.
type reservation struct{ f *os.File }

// reservePort reserves the port of addr while a listener is open on it. The listener must have been created with
// controlShared. For an address that is not IPv4, reservePort reserves nothing.
func reservePort(addr string) (reservation, error) {
	parsed, err := netip.ParseAddrPort(addr)
	if err != nil || !parsed.Addr().Is4() {
		return reservation{}, nil //nolint:nilerr // the gateway works without a reserved port
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return reservation{}, os.NewSyscallError("socket", err)
	}
	unix.CloseOnExec(fd)
	h := reservation{os.NewFile(uintptr(fd), "port of the simulated gateway")}
	err = errors.Join(sharePort(fd), os.NewSyscallError("bind",
		unix.Bind(fd, &unix.SockaddrInet4{Port: int(parsed.Port()), Addr: parsed.Addr().As4()})))
	if err != nil {
		return reservation{}, errors.Join(err, h.f.Close())
	}
	return h, nil
}

func (h reservation) held() bool { return h.f != nil }

func (h reservation) release() {
	if h.f != nil {
		_ = h.f.Close() // nothing was ever written to it
	}
}

// sharePort lets a socket share its port with other sockets of the same user that allow it, too.
func sharePort(fd int) error {
	return errors.Join(
		os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)),
		os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)))
}

// controlShared is the net.ListenConfig.Control of a listener whose port reservePort can reserve.
func controlShared(_, _ string, c syscall.RawConn) error {
	var set error
	err := c.Control(func(fd uintptr) { set = sharePort(int(fd)) })
	return errors.Join(err, set)
}

// KeyStore has a self-signed certificate.
type KeyStore struct {
	mu      sync.Mutex
	current *certificate
}

// NewKeyStore creates a certificate for DNS names.
func NewKeyStore(names []string, notAfter time.Time) (*KeyStore, error) {
	k := &KeyStore{}
	return k, k.Renew(names, notAfter)
}

// Renew creates another certificate, which new connections see.
func (k *KeyStore) Renew(names []string, notAfter time.Time) error {
	next, err := newCertificate(names, notAfter)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.current = next
	return nil
}

// PEM returns the certificate in PEM.
func (k *KeyStore) PEM() []byte { return k.certificate().pem }

func (k *KeyStore) certificate() *certificate {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.current
}

// TLSConfig serves the current certificate.
func (k *KeyStore) TLSConfig() *tls.Config {
	return &tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &k.certificate().pair, nil },
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"http/1.1"},
	}
}

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
