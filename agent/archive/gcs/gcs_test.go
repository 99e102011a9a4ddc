package gcs

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
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
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/secret"
	"stoker.io/stoker/test/heap"
	"stoker.io/stoker/test/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// open returns the bucket backups of a server, with a key whose tokens are those of tokens.
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
			_, err := rand.NewChaCha8([32]byte{}).Read(b)
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

// TestHostileServer: F23.
func TestHostileServer(t *testing.T) {
	var elsewhere atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	list := func(ctx context.Context, s archive.Store) error {
		_, err := s.List(ctx, "p/")
		return err
	}
	put := func(size int) func(ctx context.Context, s archive.Store) error {
		return func(ctx context.Context, s archive.Store) error {
			return s.Put(ctx, "a", bytes.NewReader(make([]byte, size)))
		}
	}
	answer := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	for _, c := range []struct {
		name    string
		handler http.HandlerFunc
		call    func(ctx context.Context, s archive.Store) error
		err     string
	}{
		{"redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		}, list,
			"spec.snapshots.storage.endpoint: the server answers with a redirect (307), which is not followed"},
		{"redirect of an upload", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL, http.StatusPermanentRedirect)
		}, put(10),
			"the server answers with a redirect (308)"},
		{"huge list", answer(http.StatusOK, `{"items": [{"name": "`+strings.Repeat("x", 9<<20)+`"}]}`), list, "has more than 8388608 bytes"},
		{"huge refusal", answer(http.StatusBadRequest, `{"error": {"message": "`+strings.Repeat("x", 9<<20)+`"}}`), list, "the bucket backups answers 400"},
		{"long refusal", answer(http.StatusBadRequest, `{"error": {"message": "`+strings.Repeat("\x1b", 300)+`", "errors": [{"reason": "`+strings.Repeat("r", 300)+`"}]}}`), list, "answers 400"},
		{"no list", answer(http.StatusOK, "<html>"), list, "did not answer with a list of objects"},
		{"endless pages", answer(http.StatusOK, `{"items": [`+strings.Repeat(`{"name": "p/a"}, `, 999)+`{"name": "p/a"}], "nextPageToken": "again"}`), list, "more than 10000 objects below p/"},
		{"hang", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done(); panic(http.ErrAbortHandler) }, list, "the transfer stalls"},
		{"wrong rights", answer(http.StatusForbidden, `{"error": {"message": "no", "errors": [{"reason": "forbidden"}]}}`), list,
			`spec.snapshots.storage.secretRef: the bucket backups refuses the credentials ("forbidden"): check that they are right`},
		{"missing bucket", answer(http.StatusNotFound, `{"error": {"errors": [{"reason": "notFound"}]}}`), put(10), `spec.snapshots.storage.bucket: there is no bucket backups ("notFound")`},
		{"missing bucket of a large object", answer(http.StatusNotFound, `{}`), put(chunkSize + 1), "there is no bucket backups"},
		{"upload without an address", answer(http.StatusOK, ""), put(chunkSize + 1), "returns no address to continue an upload"},
		{"more stored than sent", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "/upload?upload_id=1")
			if r.Method == http.MethodPut {
				w.Header().Set("Range", "bytes=0-99999999")
				w.WriteHeader(http.StatusPermanentRedirect)
			}
		}, put(chunkSize + 1), "has stored 100000000 bytes of an upload"},
		{"lost upload", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "/upload?upload_id=1")
			if r.Method == http.MethodPut {
				w.WriteHeader(http.StatusNotFound)
			}
		}, put(chunkSize + 1), "the bucket backups no longer knows the upload"},
		{"complete too early", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Location", "/upload?upload_id=1") }, put(chunkSize + 1), "the server ended an upload before its last chunk"},
		{"echoed token", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": r.Header.Get("Authorization")}})
		}, list, "Bearer REDACTED"},
		{"truncated", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "10") }, list, "unexpected EOF"},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := httptest.NewServer(c.handler)
			defer server.Close()
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if c.name == "hang" {
				time.AfterFunc(100*time.Millisecond, func() { cancel(fmt.Errorf("the transfer stalls")) })
			}
			err := c.call(ctx, open(t, server.URL, newIssuer(t)))
			require.ErrorContains(t, err, c.err)
			assert.Less(t, len(err.Error()), 1000)
			assert.NotContains(t, err.Error(), "S3CR3T")
			assert.NotContains(t, err.Error(), "\x1b")
		})
	}
	assert.Zero(t, elsewhere.Load(), "the client follows no redirect")

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

// F23: no listing takes much memory, and the first page that is out of bounds ends it.
func TestHostileListing(t *testing.T) {
	large := strings.Repeat("x", 7<<20)
	issuer := newIssuer(t)
	for name, body := range map[string]string{
		"one large key a page": `{"items":[{"name":"p/` + large + `"}],"nextPageToken":"again"}`,
		"empty items":          `{"items":[` + strings.Repeat("{},", 2<<20) + `{}],"nextPageToken":"again"}`,
		"empty lists":          `{"items":` + strings.Repeat("[", 7<<20),
		"a large token":        `{"nextPageToken":"` + large + `"}`,
	} {
		t.Run(name, func(t *testing.T) {
			var requests atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				requests.Add(1)
				_, _ = io.WriteString(w, body)
			}))
			defer server.Close()
			var err error
			peak := heap.Peak(t, func() { _, err = open(t, server.URL, issuer).List(t.Context(), "p/") })
			require.Error(t, err)
			assert.Less(t, len(err.Error()), 400)
			assert.EqualValues(t, 1, requests.Load())
			assert.Less(t, peak, 100, "MiB")
		})
	}
}
