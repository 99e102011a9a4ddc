package keypair_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/internal/keypair"
)

// pair creates a certificate and its key, in the format that cert-manager writes.
func pair(t *testing.T) (cert, key []byte) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<60))
	require.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: serial, NotAfter: time.Now().Add(time.Hour)}, &x509.Certificate{}, public, private)
	require.NoError(t, err)
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
}

func TestCertificateReload(t *testing.T) {
	dir := t.TempDir()
	write := func(cert, key []byte) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "tls.crt"), cert, 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "tls.key"), key, 0o600))
	}
	cert1, key1 := pair(t)
	cert2, key2 := pair(t)
	synctest.Test(t, func(t *testing.T) {
		var ends []time.Time
		m := keypair.NewMounted(dir, time.Minute, slog.New(slog.DiscardHandler), func(at time.Time) { ends = append(ends, at) })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		wait := func() {
			time.Sleep(2 * time.Minute)
			synctest.Wait()
		}
		serial := func() string {
			c, err := m.GetCertificate(nil)
			require.NoError(t, err)
			return c.Leaf.SerialNumber.String()
		}
		synctest.Wait()
		assert.False(t, m.Ready(), "not ready before the files exist")
		_, err := m.GetCertificate(nil)
		require.Error(t, err)

		write(cert1, key1)
		wait()
		require.True(t, m.Ready())
		first := serial()

		write(cert2, key1) // half of the pair was replaced
		wait()
		assert.Equal(t, first, serial())

		write(cert2, key2)
		wait()
		assert.NotEqual(t, first, serial())
		assert.Len(t, ends, 2)

		require.NoError(t, os.Remove(filepath.Join(dir, "tls.crt")))
		wait()
		assert.True(t, m.Ready())
		cancel()
		assert.NoError(t, <-done)
	})
}
