package gcs

import (
	"bytes"
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
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/archive"
	"stoker.io/stoker/agent/archive/archivetest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/test/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// open returns the bucket backups of a server. Its credentials are the key of a service account, for which the server tokens issues tokens.
func open(t *testing.T, server string, tokens *tokenServer) archive.Store {
	t.Helper()
	s, err := New(&v1alpha1.SnapshotStorage{Bucket: "backups", Endpoint: server}, func() (secret.String, error) { return secret.New(tokens.key(t)), nil })
	require.NoError(t, err)
	return s
}

// uploads is the part of the API that takes resumable uploads. fault is called before each part, with the number of the request; it returns
// how many bytes to store, and whether to fail afterwards.
type uploads struct {
	mu    sync.Mutex
	fault func(n, size int) (store int, fail bool)
	n     int
	data  []byte
	whole bool
}

func (u *uploads) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if r.Method == http.MethodPost {
		u.data, u.whole = nil, false
		w.Header().Set("Location", "http://elsewhere.example.com/upload/session?upload_id=1") // the chunks must not go there
		return
	}
	body, _ := io.ReadAll(r.Body)
	from, total, _ := strings.Cut(strings.TrimPrefix(r.Header.Get("Content-Range"), "bytes "), "/")
	if from != "*" {
		u.n++
		first, _, _ := strings.Cut(from, "-")
		if first != strconv.Itoa(len(u.data)) {
			http.Error(w, "{}", http.StatusBadRequest)
			return
		}
		store, fail := u.fault(u.n, len(body))
		u.data = append(u.data, body[:store]...)
		u.whole = total == strconv.Itoa(len(u.data))
		if fail {
			http.Error(w, "{}", http.StatusServiceUnavailable)
			return
		}
	}
	if u.whole {
		_, _ = io.WriteString(w, "{}")
		return
	}
	if len(u.data) > 0 {
		w.Header().Set("Range", fmt.Sprintf("bytes=0-%d", len(u.data)-1))
	}
	w.WriteHeader(http.StatusPermanentRedirect)
}

func TestUploadInChunks(t *testing.T) {
	all := func(_, size int) (int, bool) { return size, false }
	second := func(store func(size int) int, fail bool) func(n, size int) (int, bool) {
		return func(n, size int) (int, bool) {
			if n == 2 {
				return store(size), fail
			}
			return size, false
		}
	}
	none, half, whole := func(int) int { return 0 }, func(n int) int { return n / 2 }, func(n int) int { return n }
	for _, c := range []struct {
		name  string
		size  int
		fault func(n, size int) (int, bool)
		err   string
	}{
		{"no fault", 2*chunkSize + 7, all, ""},
		{"full chunks only", 2 * chunkSize, all, ""},
		{"a chunk is partly stored", 2*chunkSize + 7, second(half, false), ""},
		{"a chunk is not stored", 2*chunkSize + 7, second(none, false), ""},
		{"a failure before a chunk is stored", 2*chunkSize + 7, second(none, true), ""},
		{"a failure after a chunk is stored", 2*chunkSize + 7, second(whole, true), ""},
		{"a failure after the last chunk is stored", chunkSize + 7, second(whole, true), ""},
		{"a failure within the last chunk", chunkSize + 7, second(half, true), ""},
		{"nothing is stored", chunkSize + 7, func(int, int) (int, bool) { return 0, false }, "stores nothing of an upload"},
		{"each chunk fails", chunkSize + 7, func(int, int) (int, bool) { return 0, true }, "answers 503"},
	} {
		t.Run(c.name, func(t *testing.T) {
			u := &uploads{fault: c.fault}
			server := httptest.NewServer(u)
			defer server.Close()
			b := make([]byte, c.size)
			_, err := rand.Read(b)
			require.NoError(t, err)
			err = open(t, server.URL, newIssuer(t)).Put(t.Context(), "a", bytes.NewReader(b))
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				assert.False(t, u.whole)
				return
			}
			require.NoError(t, err)
			assert.True(t, u.whole)
			assert.True(t, bytes.Equal(b, u.data))
		})
	}
}

// F23 of docs/internals/threats.md: a server that is hostile or broken.
func TestHostileServer(t *testing.T) {
	store := func(t *testing.T, server string) archive.Store { return open(t, server, newIssuer(t)) }
	archivetest.RunHostile(t, store, func(elsewhere string) []archivetest.Hostile {
		return []archivetest.Hostile{
			{"redirect", archivetest.Redirect(http.StatusTemporaryRedirect, elsewhere), archivetest.List, "spec.snapshots.storage.endpoint: the server answers with a redirect (307), which is not followed"},
			{"redirect of an upload", archivetest.Redirect(http.StatusPermanentRedirect, elsewhere), archivetest.Put(10),
				"the server answers with a redirect (308)"},
			{"huge list", archivetest.Answer(http.StatusOK, `{"items": [{"name": "`+strings.Repeat("x", 9<<20)+`"}]}`), archivetest.List, "has more than 8388608 bytes"},
			{"huge refusal", archivetest.Answer(http.StatusBadRequest, `{"error": {"message": "`+strings.Repeat("x", 9<<20)+`"}}`), archivetest.List, "the bucket backups answers 400"},
			{"long refusal", archivetest.Answer(http.StatusBadRequest, `{"error": {"message": "`+strings.Repeat("\x1b", 300)+`", "errors": [{"reason": "`+strings.Repeat("r", 300)+`"}]}}`), archivetest.List, "answers 400"},
			{"no list", archivetest.Answer(http.StatusOK, "<html>"), archivetest.List, "did not answer with a list of objects"},
			{"endless pages", archivetest.Answer(http.StatusOK, `{"items": [`+strings.Repeat(`{"name": "p/a"}, `, 999)+`{"name": "p/a"}], "nextPageToken": "again"}`), archivetest.List, "more than 10000 objects below p/"},
			{"hang", archivetest.Hang, archivetest.List, "the transfer stalls"},
			{"wrong rights", archivetest.Answer(http.StatusForbidden, `{"error": {"message": "no", "errors": [{"reason": "forbidden"}]}}`), archivetest.List, `spec.snapshots.storage.secretRef: the bucket backups refuses the credentials ("forbidden"): check that they are right`},
			{"missing bucket", archivetest.Answer(http.StatusNotFound, `{"error": {"errors": [{"reason": "notFound"}]}}`), archivetest.Put(10), `spec.snapshots.storage.bucket: there is no bucket backups ("notFound")`},
			{"missing bucket of a large object", archivetest.Answer(http.StatusNotFound, `{}`), archivetest.Put(chunkSize + 1), "there is no bucket backups"},
			{"upload without an address", archivetest.Answer(http.StatusOK, ""), archivetest.Put(chunkSize + 1), "returns no address to continue an upload"},
			{"more stored than sent", func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Location", "/upload?upload_id=1")
				if r.Method == http.MethodPut {
					w.Header().Set("Range", "bytes=0-99999999")
					w.WriteHeader(http.StatusPermanentRedirect)
				}
			}, archivetest.Put(chunkSize + 1), "has stored 100000000 bytes of an upload"},
			{"lost upload", func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Location", "/upload?upload_id=1")
				if r.Method == http.MethodPut {
					w.WriteHeader(http.StatusNotFound)
				}
			}, archivetest.Put(chunkSize + 1), "the bucket backups no longer knows the upload"},
			{"complete too early", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Location", "/upload?upload_id=1") }, archivetest.Put(chunkSize + 1), "the server ended an upload before its last chunk"},
			{"echoed token", func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(http.StatusBadRequest)
				_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": r.Header.Get("Authorization")}})
			}, archivetest.List, "Bearer REDACTED"},
			{"truncated", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "10") }, archivetest.List, "unexpected EOF"},
		}
	})

	t.Run("no server", func(t *testing.T) {
		_, err := open(t, "http://127.0.0.1:1", newIssuer(t)).List(t.Context(), "")
		require.ErrorContains(t, err, `spec.snapshots.storage: "127.0.0.1:1": `)
		require.ErrorContains(t, err, "refused")
	})
	t.Run("truncated object", func(t *testing.T) {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "10") }))
		defer server.Close()
		r, err := open(t, server.URL, newIssuer(t)).Get(t.Context(), "a")
		require.NoError(t, err)
		_, err = io.ReadAll(r)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		require.NoError(t, r.Close())
	})
	t.Run("source that fails with io.ErrUnexpectedEOF", func(t *testing.T) {
		server := httptest.NewServer(&uploads{fault: func(int, int) (int, bool) { panic("an upload") }})
		defer server.Close()
		err := open(t, server.URL, newIssuer(t)).Put(t.Context(), "a", io.MultiReader(strings.NewReader("part"), failing{io.ErrUnexpectedEOF}))
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	})
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestBusyServer(t *testing.T) {
	var n atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		switch n.Add(1) {
		case 1:
			http.Error(w, "{}", http.StatusTooManyRequests)
		default:
			_, _ = io.WriteString(w, "bytes")
		}
	}))
	defer server.Close()
	r, err := open(t, server.URL, newIssuer(t)).Get(t.Context(), "a")
	require.NoError(t, err)
	b, err := io.ReadAll(r)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	assert.Equal(t, "bytes", string(b))
}

func TestListLimit(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"nextPageToken": "a"}`) }))
	defer server.Close()
	_, err := open(t, server.URL, newIssuer(t)).List(t.Context(), "p/")
	assert.True(t, failure.Is(err, v1alpha1.ReasonLimitExceeded), err)
	_, err = open(t, server.URL, newIssuer(t)).Get(t.Context(), "a")
	assert.NotErrorIs(t, err, fs.ErrNotExist)
}

// F23 of docs/internals/threats.md: no listing takes much memory, and the first page that is out of bounds ends it.
func TestHostileListing(t *testing.T) {
	large := strings.Repeat("x", 7<<20)
	issuer := newIssuer(t)
	archivetest.RunHostileListing(t, func(t *testing.T, server string) archive.Store { return open(t, server, issuer) }, map[string]struct{ Body, Err string }{
		"one large key a page": {`{"items":[{"name":"p/` + large + `"}],"nextPageToken":"again"}`, ""},
		"empty items":          {`{"items":[` + strings.Repeat("{},", 2<<20) + `{}],"nextPageToken":"again"}`, ""},
		"empty lists":          {`{"items":` + strings.Repeat("[", 7<<20), ""},
		"a large token":        {`{"nextPageToken":"` + large + `"}`, ""},
	})
}

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
