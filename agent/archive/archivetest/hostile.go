package archivetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/archive"
	"stoker.io/stoker/test/heap"
)

// A Call makes one request of a store.
type Call func(ctx context.Context, s archive.Store) error

// List lists the objects below p/.
func List(ctx context.Context, s archive.Store) error {
	_, err := s.List(ctx, "p/")
	return err
}

// Get reads an object.
func Get(ctx context.Context, s archive.Store) error {
	_, err := s.Get(ctx, "a")
	return err
}

// Put writes an object of a size.
func Put(size int) Call {
	return func(ctx context.Context, s archive.Store) error {
		return s.Put(ctx, "a", bytes.NewReader(make([]byte, size)))
	}
}

// Answer always sends the same answer.
func Answer(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// Redirect sends each request elsewhere.
func Redirect(status int, url string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, url, status) }
}

// Hang never answers. RunHostile cancels the call of the case named hang with the cause "the transfer stalls".
func Hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done(); panic(http.ErrAbortHandler) }

// Hostile is what a hostile or broken server does, and a part of the error of a call to it.
type Hostile = struct {
	Name    string
	Handler http.HandlerFunc
	Call    Call
	Err     string
}

// RunHostile tests that stores follow no redirect, and that errors are short and contain no secret: the secrets of the store must contain S3CR3T.
// cases gets an address to redirect to.
func RunHostile(t *testing.T, open func(t *testing.T, server string) archive.Store, cases func(elsewhere string) []Hostile) {
	var followed atomic.Int32
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { followed.Add(1) }))
	defer elsewhere.Close()
	for _, c := range cases(elsewhere.URL) {
		t.Run(c.Name, func(t *testing.T) {
			server := httptest.NewServer(c.Handler)
			defer server.Close()
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if c.Name == "hang" {
				time.AfterFunc(100*time.Millisecond, func() { cancel(errors.New("the transfer stalls")) })
			}
			err := c.Call(ctx, open(t, server.URL))
			require.ErrorContains(t, err, c.Err)
			assert.Less(t, len(err.Error()), 1200)
			assert.NotContains(t, err.Error(), "S3CR3T")
			assert.NotContains(t, err.Error(), "\x1b")
		})
	}
	assert.Zero(t, followed.Load(), "no redirect is followed")
}

// RunHostileListing tests that no listing takes much memory, and that the first page that is out of bounds ends it. pages has the bodies of pages,
// each with a part of the error.
func RunHostileListing(t *testing.T, open func(t *testing.T, server string) archive.Store, pages map[string]struct{ Body, Err string }) {
	for name, page := range pages {
		t.Run(name, func(t *testing.T) {
			var requests atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				requests.Add(1)
				_, _ = io.WriteString(w, page.Body)
			}))
			defer server.Close()
			s := open(t, server.URL)
			var err error
			peak := heap.Peak(t, func() { err = List(t.Context(), s) })
			require.ErrorContains(t, err, page.Err)
			assert.Less(t, len(err.Error()), 400)
			assert.EqualValues(t, 1, requests.Load())
			assert.Less(t, peak, 100, "MiB")
		})
	}
}
