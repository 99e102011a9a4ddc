package pki_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"

	"stoker.io/stoker/test/cluster/pki"
)

func TestAuthorityTrust(t *testing.T) {
	own, err := pki.NewAuthority("own")
	require.NoError(t, err)
	other, err := pki.NewAuthority("other")
	require.NoError(t, err)
	serving, err := own.Server(pki.Subject{Name: "server"}, "localhost", "127.0.0.1")
	require.NoError(t, err)
	cert, err := tls.X509KeyPair(serving.Cert, serving.Key)
	require.NoError(t, err)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		subject := r.TLS.PeerCertificates[0].Subject
		w.Header().Set("User", subject.CommonName)
		w.Header()["Group"] = subject.Organization
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, ClientCAs: own.Pool(), ClientAuth: tls.RequireAndVerifyClientCert}
	server.StartTLS()
	defer server.Close()

	get := func(by *pki.Authority, trusted *x509.CertPool) (http.Header, error) {
		login, err := by.Client(pki.Subject{Name: "admin", Groups: []string{"a", "b"}})
		require.NoError(t, err)
		cert, err := tls.X509KeyPair(login.Cert, login.Key)
		require.NoError(t, err)
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted, Certificates: []tls.Certificate{cert}}}
		defer transport.CloseIdleConnections()
		res, err := (&http.Client{Transport: transport}).Get(server.URL)
		if err != nil {
			return nil, err
		}
		return res.Header, res.Body.Close()
	}
	who, err := get(own, own.Pool())
	require.NoError(t, err)
	assert.Equal(t, "admin", who.Get("User"))
	assert.ElementsMatch(t, []string{"a", "b"}, who["Group"])
	_, err = get(other, own.Pool())
	assert.Error(t, err, "the server must reject a client of another authority")
	_, err = get(own, other.Pool())
	assert.Error(t, err, "the client must reject a server of another authority")
}

func TestKubeconfig(t *testing.T) {
	own, err := pki.NewAuthority("own")
	require.NoError(t, err)
	authority, err := own.Pair()
	require.NoError(t, err)
	login, err := own.Client(pki.Subject{Name: "admin"})
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, pki.WriteKubeconfig(path, "https://127.0.0.1:6443", authority.Cert, login))
	config, err := clientcmd.BuildConfigFromFlags("", path)
	require.NoError(t, err)
	assert.Equal(t, "https://127.0.0.1:6443", config.Host)
	assert.Equal(t, authority.Cert, config.CAData)
	assert.Equal(t, login.Cert, config.CertData)
	assert.Equal(t, login.Key, config.KeyData)
}

func TestKeyFileMode(t *testing.T) {
	dir := t.TempDir()
	keys, err := pki.ServiceAccountKeys()
	require.NoError(t, err)
	require.NoError(t, keys.Write(dir, "sa"))
	info, err := os.Stat(filepath.Join(dir, "sa.key"))
	require.NoError(t, err)
	assert.EqualValues(t, 0o600, info.Mode().Perm())
	public, err := os.ReadFile(filepath.Join(dir, "sa.crt"))
	require.NoError(t, err)
	block, _ := pem.Decode(public)
	require.NotNil(t, block)
	_, err = x509.ParsePKIXPublicKey(block.Bytes)
	require.NoError(t, err)
}
