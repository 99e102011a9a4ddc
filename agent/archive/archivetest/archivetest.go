// Package archivetest tests implementations of archive.Store.
package archivetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/archive"
)

// Run tests that a store implements archive.Store. The store must be empty.
func Run(t *testing.T, s archive.Store) {
	t.Helper()
	read := func(t *testing.T, key string) []byte {
		t.Helper()
		r, err := s.Get(t.Context(), key)
		require.NoError(t, err)
		b, err := io.ReadAll(r)
		require.NoError(t, err)
		require.NoError(t, r.Close())
		return b
	}
	sizes := map[string]int{"an empty object": 0, "a small object": 100, "an object of several parts": 11<<20 + 7}
	for name, size := range sizes {
		t.Run(name, func(t *testing.T) {
			b := make([]byte, size)
			for i := range b {
				b[i] = byte(rand.Uint32())
			}
			key := "sizes/" + strings.ReplaceAll(name, " ", "-")
			require.NoError(t, s.Put(t.Context(), key, iotest.HalfReader(bytes.NewReader(b))))
			assert.True(t, bytes.Equal(b, read(t, key)))
		})
	}
	t.Run("replaced", func(t *testing.T) {
		require.NoError(t, s.Put(t.Context(), "replaced/a", strings.NewReader("a long first version")))
		require.NoError(t, s.Put(t.Context(), "replaced/a", strings.NewReader("second")))
		assert.Equal(t, "second", string(read(t, "replaced/a")))
	})
	t.Run("missing", func(t *testing.T) {
		_, err := s.Get(t.Context(), "missing/a")
		require.ErrorIs(t, err, fs.ErrNotExist)
		require.NoError(t, s.Delete(t.Context(), "missing/a"))
		keys, err := s.List(t.Context(), "missing/")
		require.NoError(t, err)
		assert.Empty(t, keys)
	})
	t.Run("listed by prefix and deleted", func(t *testing.T) {
		var want []string
		for _, name := range []string{"site/line/area-4/area-4-20261120-063000.json", "site/line/area-4/area-4-20261120-063000.tar.gz", "site/line/area-4/deep/x y+z=1"} {
			require.NoError(t, s.Put(t.Context(), "listed/"+name, strings.NewReader(name)))
			want = append(want, "listed/"+name)
		}
		require.NoError(t, s.Put(t.Context(), "listed/site/line/area-40/a", strings.NewReader("")))
		keys, err := s.List(t.Context(), "listed/site/line/area-4/")
		require.NoError(t, err)
		slices.Sort(keys)
		assert.Equal(t, want, keys)
		assert.Equal(t, "site/line/area-4/deep/x y+z=1", string(read(t, want[2])))
		require.NoError(t, s.Delete(t.Context(), want[0]))
		keys, err = s.List(t.Context(), "listed/site/line/area-4/")
		require.NoError(t, err)
		slices.Sort(keys)
		assert.Equal(t, want[1:], keys)
		_, err = s.Get(t.Context(), want[0])
		require.ErrorIs(t, err, fs.ErrNotExist)
	})
	t.Run("more keys than a page", func(t *testing.T) {
		var want []string
		for i := range 1005 { // setup: keys in their order
			want = append(want, fmt.Sprintf("pages/%04d", i))
			require.NoError(t, s.Put(t.Context(), want[i], strings.NewReader("")))
		}
		keys, err := s.List(t.Context(), "pages/")
		require.NoError(t, err)
		slices.Sort(keys)
		assert.Equal(t, want, keys)
	})
	t.Run("an upload that ends early leaves no object", func(t *testing.T) {
		broken := errors.New("the sync changed files")
		for _, size := range []int{10, 6 << 20} { // sequence: the source fails in the first part, and in the second
			err := s.Put(t.Context(), "broken/a", io.MultiReader(bytes.NewReader(make([]byte, size)), iotest.ErrReader(broken)))
			require.ErrorIs(t, err, broken)
			_, err = s.Get(t.Context(), "broken/a")
			require.ErrorIs(t, err, fs.ErrNotExist)
		}
	})
	t.Run("a canceled upload ends", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r, w := io.Pipe()
		go func() {
			_, _ = w.Write(make([]byte, 1<<20)) // returns when the pipe is closed
			cancel()
			w.CloseWithError(context.Canceled)
		}()
		require.Error(t, s.Put(ctx, "canceled/a", r))
		require.NoError(t, r.Close())
		_, err := s.Get(t.Context(), "canceled/a")
		require.ErrorIs(t, err, fs.ErrNotExist)
	})
}
