// Package keypair serves a certificate that another program, such as cert-manager, writes to a directory and renews there.
package keypair

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/file"
)

var errNone = errors.New("there is no certificate yet")

// maxFile is the largest file to read, in bytes; a Secret cannot hold more.
const maxFile = 1 << 20

// Mounted serves tls.crt and tls.key of a directory.
type Mounted struct {
	dir     string
	every   time.Duration
	log     *slog.Logger
	expiry  func(time.Time)
	serving atomic.Pointer[tls.Certificate]
	last    [2][]byte // tls.crt and tls.key, as they were read last
}

// NewMounted returns a Mounted that rereads dir at the interval every. It calls expiry, which may be nil, with the time at which each new
// certificate expires.
func NewMounted(dir string, every time.Duration, log *slog.Logger, expiry func(time.Time)) *Mounted {
	return &Mounted{dir: dir, every: every, log: log, expiry: expiry}
}

// GetCertificate implements the callback of tls.Config.
func (m *Mounted) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := m.serving.Load(); c != nil {
		return c, nil
	}
	return nil, errNone
}

// Ready reports whether a certificate was loaded.
func (m *Mounted) Ready() bool { return m.serving.Load() != nil }

// Run reads the directory, and rereads it until ctx is done. If the pair is missing or invalid, for example while it is being replaced, Mounted
// keeps serving the last good one. Run always returns nil.
func (m *Mounted) Run(ctx context.Context) error {
	logged := ""
	for {
		if err := m.read(); err == nil {
			logged = ""
		} else if err.Error() != logged {
			logged = err.Error()
			m.log.Error("invalid certificate; serving the last valid one", "error", err)
		}
		if !backoff.Wait(ctx, m.every) {
			return nil
		}
	}
}

func (m *Mounted) read() error {
	var pair [2][]byte
	for i, name := range []string{corev1.TLSCertKey, corev1.TLSPrivateKeyKey} {
		var err error
		if pair[i], err = file.Read(filepath.Join(m.dir, name), maxFile); err != nil {
			return err
		}
	}
	if bytes.Equal(pair[0], m.last[0]) && bytes.Equal(pair[1], m.last[1]) {
		return nil
	}
	c, err := tls.X509KeyPair(pair[0], pair[1])
	if err != nil {
		return fmt.Errorf("%s and %s in %s: %w", corev1.TLSCertKey, corev1.TLSPrivateKeyKey, m.dir, err)
	}
	m.last = pair
	m.serving.Store(&c)
	m.log.Info("certificate", "did", "read", "ends", c.Leaf.NotAfter.UTC())
	if m.expiry != nil {
		m.expiry(c.Leaf.NotAfter)
	}
	return nil
}
