package gcs

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/secret"
)

// rsaKey is the key of the service account, made once because that is slow.
var rsaKey = sync.OnceValue(func() *rsa.PrivateKey {
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return k
})

// tokenServer issues tokens for requests that rsaKey has signed.
type tokenServer struct {
	*httptest.Server
	refusal atomic.Pointer[string] // body of a 400, instead of a token
	given   atomic.Int32
	claims  chan map[string]any
}

func newIssuer(t *testing.T) *tokenServer {
	s := &tokenServer{claims: make(chan map[string]any, 10)}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refusal := s.refusal.Load(); refusal != nil {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, *refusal)
			return
		}
		claims, err := signedClaims(r.FormValue("assertion"))
		if !assert.NoError(t, err) { // not require: this is not the goroutine of the test
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		select {
		case s.claims <- claims:
		default:
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"access_token": "S3CR3T-TOKEN-" + string('0'+s.given.Add(1)), "token_type": "Bearer", "expires_in": 3600})
	}))
	t.Cleanup(s.Close)
	return s
}

// signedClaims returns the claims of a JSON Web Token, if rsaKey has signed it.
func signedClaims(token string) (claims map[string]any, err error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return nil, fmt.Errorf("the token has %d parts", len(parts))
	}
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	sig, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil {
		return nil, err
	}
	if err := rsa.VerifyPKCS1v15(&rsaKey().PublicKey, crypto.SHA256, sum[:], sig); err != nil {
		return nil, err
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return nil, err
	}
	err = json.Unmarshal(text, &claims)
	return claims, err
}

// key returns the key of a service account, as Google writes it.
func (s *tokenServer) key(t *testing.T) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(rsaKey())
	require.NoError(t, err)
	text, err := json.Marshal(map[string]string{
		"type": "service_account", "client_email": "stoker@plants.example.com", "private_key_id": "1", "token_uri": s.URL + "/token",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
	})
	require.NoError(t, err)
	return string(text)
}

// emptyBucket accepts only the token accepted; any token while that is nil.
type emptyBucket struct {
	accepted atomic.Pointer[string]
	seen     atomic.Pointer[string]
}

func (b *emptyBucket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	b.seen.Store(&token)
	if accepted := b.accepted.Load(); accepted != nil && token != *accepted {
		http.Error(w, `{"error": {"errors": [{"reason": "authError"}]}}`, http.StatusUnauthorized)
		return
	}
	_, _ = io.WriteString(w, "{}")
}

func TestServiceAccountKey(t *testing.T) {
	bucket := &emptyBucket{}
	server := httptest.NewServer(bucket)
	defer server.Close()
	issuer := newIssuer(t)
	s := open(t, server.URL, issuer)
	ask := func() error {
		_, err := s.List(t.Context(), "")
		return err
	}
	require.NoError(t, ask())
	claims := <-issuer.claims
	assert.Equal(t, "stoker@plants.example.com", claims["iss"])
	assert.Equal(t, "https://www.googleapis.com/auth/devstorage.read_write", claims["scope"])
	assert.Equal(t, issuer.URL+"/token", claims["aud"])
	assert.Equal(t, "S3CR3T-TOKEN-1", *bucket.seen.Load())

	// The client keeps the token, and replaces it when the bucket rejects it.
	require.NoError(t, ask())
	assert.EqualValues(t, 1, issuer.given.Load())
	second := "S3CR3T-TOKEN-2"
	bucket.accepted.Store(&second)
	require.NoError(t, ask())
	assert.EqualValues(t, 2, issuer.given.Load())
	never := "never"
	bucket.accepted.Store(&never)
	err := ask()
	require.ErrorContains(t, err, `spec.snapshots.storage.secretRef: the bucket backups refuses the credentials ("authError"): check that they are right, have not expired`)
	assert.NotContains(t, err.Error(), "S3CR3T")
	assert.EqualValues(t, 3, issuer.given.Load())

	refusal := `{"error": "invalid_grant", "error_description": "S3CR3T-ASSERTION"}`
	issuer.refusal.Store(&refusal)
	err = ask()
	require.ErrorContains(t, err, `spec.snapshots.storage.secretRef: cannot get a token for service account "stoker@plants.example.com": the server answered 400 ("invalid_grant")`)
	assert.NotContains(t, err.Error(), "S3CR3T")
}

func TestWrongSecret(t *testing.T) {
	issuer := newIssuer(t)
	for name, c := range map[string]struct{ text, want string }{
		"not JSON":        {"S3CR3T", "needs the key of a service account"},
		"another type":    {`{"type": "authorized_user", "refresh_token": "S3CR3T"}`, "needs the key of a service account"},
		"no private key":  {`{"type": "service_account", "client_email": "S3CR3T"}`, "needs the key of a service account"},
		"a damaged key":   {`{"type": "service_account", "client_email": "a@b", "private_key": "S3CR3T"}`, "private key should be a PEM"},
		"no token server": {strings.Replace(issuer.key(t), issuer.URL, "http://127.0.0.1:1", 1), "refused"},
		"invalid address": {strings.Replace(issuer.key(t), issuer.URL, "S3CR3T:", 1), "cannot get a token for service account"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := New(&v1alpha1.SnapshotStorage{Bucket: "backups"}, func() (secret.String, error) { return secret.New(c.text), nil })
			require.NoError(t, err)
			_, err = s.List(t.Context(), "")
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, "spec.snapshots.storage.secretRef")
			if name != "invalid address" { // the error shows the address, which is not secret
				require.NotContains(t, err.Error(), "S3CR3T")
			}
		})
	}
	t.Run("no Secret", func(t *testing.T) {
		missing := errors.New("the Secret is missing")
		s, err := New(&v1alpha1.SnapshotStorage{Bucket: "backups"}, func() (secret.String, error) { return secret.String{}, missing })
		require.NoError(t, err)
		require.ErrorIs(t, s.Delete(t.Context(), "a"), missing)
	})
	t.Run("hanging token server", func(t *testing.T) {
		hang := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // the server notices only then that the client has closed the connection
			<-r.Context().Done()
			panic(http.ErrAbortHandler) // an empty answer could still arrive
		}))
		defer hang.Close()
		s, err := New(&v1alpha1.SnapshotStorage{Bucket: "backups"}, func() (secret.String, error) {
			return secret.New(strings.Replace(issuer.key(t), issuer.URL, hang.URL, 1)), nil
		})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err = s.Get(ctx, "a")
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestPodIdentity(t *testing.T) {
	bucket := &emptyBucket{}
	server := httptest.NewServer(bucket)
	defer server.Close()
	flavor, life := "Google", 3600
	asked := 0
	metadata := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		if r.Header.Get("Metadata-Flavor") != "Google" || r.URL.Path != "/computeMetadata/v1/instance/service-accounts/default/token" {
			http.Error(w, "", http.StatusForbidden)
			return
		}
		w.Header().Set("Metadata-Flavor", flavor)
		_ = json.NewEncoder(w).Encode(map[string]any{"access_token": "S3CR3T-POD", "expires_in": life})
	}))
	defer metadata.Close()
	t.Setenv("GCE_METADATA_HOST", strings.TrimPrefix(metadata.URL, "http://"))
	list := func() error {
		s, err := New(&v1alpha1.SnapshotStorage{Bucket: "backups", Endpoint: server.URL}, nil)
		require.NoError(t, err)
		_, err = s.List(t.Context(), "")
		if err == nil {
			_, err = s.List(t.Context(), "")
		}
		return err
	}
	require.NoError(t, list())
	assert.Equal(t, "S3CR3T-POD", *bucket.seen.Load())
	assert.Equal(t, 1, asked)
	t.Run("expired token", func(t *testing.T) {
		life, asked = 0, 0
		require.NoError(t, list())
		assert.Equal(t, 2, asked)
	})
	t.Run("identity without rights", func(t *testing.T) {
		never := "never"
		bucket.accepted.Store(&never)
		err := list()
		require.ErrorContains(t, err, `spec.snapshots.storage: the bucket backups refuses the identity of the pod ("authError"): check that it has the rights`)
		assert.NotContains(t, err.Error(), "S3CR3T")
	})
	t.Run("another server", func(t *testing.T) {
		flavor = "AWS"
		require.ErrorContains(t, list(), "the server does not identify itself as Google Cloud's metadata server")
	})
	t.Run("no server", func(t *testing.T) {
		t.Setenv("GCE_METADATA_HOST", "127.0.0.1:1")
		require.ErrorContains(t, list(), "spec.snapshots.storage: the metadata server gives the pod no token: set secretRef")
	})
}
