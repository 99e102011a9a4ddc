package storage

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/program"
)

// startGCS starts a server with Google's JSON API and a bucket, and returns its endpoint. It asks for no credentials.
func startGCS(t *testing.T) string {
	t.Helper()
	address := free(t)
	host, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	program.Start(t, "fake-gcs-server", exec.Command(build(t, "github.com/fsouza/fake-gcs-server"), "-scheme", "http", "-host", host, "-port", port, "-backend", "memory",
		"-data", t.TempDir(), "-log-level", "warn"))
	listens(t, address)
	endpoint := "http://" + address
	res, err := http.Post(endpoint+"/storage/v1/b", "application/json", strings.NewReader(`{"name": "backups"}`))
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusOK, res.StatusCode)
	return endpoint
}

// startTokens starts a server that gives tokens at /token, and refuses them at /refuse.
func startTokens(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/token" {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"error": "invalid_grant", "error_description": "S3CR3T"}`)
			return
		}
		_, _ = io.WriteString(w, `{"access_token": "S3CR3T-TOKEN", "token_type": "Bearer", "expires_in": 3600}`)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

var rsaKey = sync.OnceValues(func() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 2048) })

// googleKey returns the key of a service account whose tokens come from an address.
func googleKey(t *testing.T, tokens string) string {
	t.Helper()
	key, err := rsaKey()
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	text, err := json.Marshal(string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
	require.NoError(t, err)
	return fmt.Sprintf(`{"type": "service_account", "client_email": "stoker@plants.example.com", "private_key_id": "1", "private_key": %s, "token_uri": %q}`, text, tokens)
}
