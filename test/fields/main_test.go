package fields

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/secretrefs"
	"stoker.io/stoker/internal/configsync/builder"
	"stoker.io/stoker/internal/configsync/render"
	"stoker.io/stoker/internal/secret"
)

func TestMain(m *testing.M) {
	builder.Main(render.Functions())
	// A name server that never answers, also in virtual time.
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	done, cancel := context.WithCancel(context.Background())
	cancel()
	_, _ = net.DefaultResolver.LookupHost(done, "slow.example.com") // reads the settings of this machine
	proxy := httptest.NewServer(http.NotFoundHandler())             // no test reaches another machine
	_ = os.Setenv("HTTPS_PROXY", proxy.URL)
	_ = os.Setenv("NO_PROXY", "")
	flag.Parse()
	_ = flag.Set("test.parallel", "8") // most groups wait
	code := m.Run()
	proxy.Close()
	os.Exit(code)
}

// web is a server that records what arrives. Requests that no handler answers are forbidden.
type web struct {
	url, ca string
	answer  func(w http.ResponseWriter, r *http.Request, body string) bool

	used sync.Mutex // see alone
	mu   sync.Mutex
	got  []string
}

// newWeb starts a server at an address, by default on loopback. If it has a name, it has TLS and a certificate of its own authority.
func newWeb(t *testing.T, host, name string, answer func(w http.ResponseWriter, r *http.Request, body string) bool) *web {
	t.Helper()
	s := &web{answer: answer}
	server := httptest.NewUnstartedServer(s)
	if host != "" {
		_ = server.Listener.Close()
		var err error
		server.Listener, err = net.Listen("tcp", net.JoinHostPort(host, "0"))
		require.NoError(t, err)
	}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	if name == "" {
		server.Start()
	} else {
		at, _, err := net.SplitHostPort(server.Listener.Addr().String())
		require.NoError(t, err)
		var pair tls.Certificate
		pair, s.ca = certificate(t, at, name)
		server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
		server.StartTLS()
	}
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

// certificate returns a certificate that signs itself, for an address and a name.
func certificate(t *testing.T, address, name string) (tls.Certificate, string) {
	t.Helper()
	public, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, DNSNames: []string{name}}
	if ip := net.ParseIP(address); ip != nil {
		template.IPAddresses = []net.IP{ip}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, key)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func (s *web) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return
	}
	line := r.Method + " " + r.URL.RequestURI()
	for _, name := range []string{"Authorization", "X-Ignition-Api-Token", "X-Hub-Signature-256", "Private-Token"} {
		if value := r.Header.Get(name); value != "" {
			line += "; " + readable(value)
		}
	}
	s.record(line)
	if s.answer == nil || !s.answer(w, r, string(body)) {
		w.WriteHeader(http.StatusForbidden)
	}
}

func (s *web) record(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got = append(s.got, line)
}

// readable returns the value of a header without what differs between two equal requests: times, and what is signed with them.
func readable(value string) string {
	kind, token, _ := strings.Cut(value, " ")
	switch parts := strings.Split(token, "."); {
	case kind == "Bearer" && len(parts) == 3:
		claims, _ := base64.RawURLEncoding.DecodeString(parts[1])
		_, issuer, _ := strings.Cut(string(claims), `"iss":`)
		issuer, _, _ = strings.Cut(issuer, ",")
		return "a token of " + strings.TrimSuffix(issuer, "}")
	case kind == "AWS4-HMAC-SHA256":
		scope, _, _ := strings.Cut(token, ",")
		_, region, _ := strings.Cut(scope[strings.Index(scope, "/")+1:], "/")
		return scope[:strings.Index(scope, "/")] + " in " + region
	case kind == "SharedKey":
		name, _, _ := strings.Cut(token, ":")
		return "SharedKey " + name
	}
	return value
}

// alone returns a probe that uses a server while no other one does.
func alone[T any](s *web, see func(*testing.T, *T) string) func(*testing.T, *T) string {
	return func(t *testing.T, object *T) string {
		s.used.Lock()
		defer s.used.Unlock()
		return see(t, object)
	}
}

// take returns what has arrived since the last call, each line once.
func (s *web) take() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var lines []string
	for _, line := range s.got {
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	s.got = nil
	return strings.Join(lines, "\n")
}

// secrets are the values of Secrets by NAME/KEY. They implement connect.Secrets.
type secrets map[string]string

func (s secrets) Read(field secretrefs.Field, ref v1alpha1.SecretKeyRef) (secret.String, error) {
	value, ok := s[ref.Name+"/"+ref.Key]
	if !ok {
		return secret.String{}, fmt.Errorf("%s: no key %s of Secret %s", field, ref.Key, ref.Name)
	}
	return secret.New(value), nil
}

func (s secrets) Reachable(secretrefs.Field, v1alpha1.SecretKeyRef) error { return nil }

func ref(name string) *v1alpha1.SecretKeyRef { return &v1alpha1.SecretKeyRef{Name: name, Key: "value"} }

// appKey returns a new private key of a GitHub App.
func appKey(t *testing.T) string {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
}
