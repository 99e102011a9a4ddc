// Package archivetest tests implementations of archive.Store.
package archivetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
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
		for i := range 1005 { // setup: more objects than one page of a listing has
			want = append(want, fmt.Sprintf("pages/%04d", i))
			require.NoError(t, s.Put(t.Context(), want[i], strings.NewReader("")))
		}
		keys, err := s.List(t.Context(), "pages/")
		require.NoError(t, err)
		slices.Sort(keys)
		assert.Equal(t, want, keys)
	})
	t.Run("an upload that ends early leaves no object", func(t *testing.T) {
		for _, broken := range []error{errors.New("the sync changed files"), io.ErrUnexpectedEOF} { // sequence: both errors use one key. A client takes io.ErrUnexpectedEOF for the end of the content, so the store must hide it
			for _, size := range []int{10, 6 << 20} { // sequence: the source fails in the first part, and in the second
				err := s.Put(t.Context(), "broken/a", io.MultiReader(bytes.NewReader(make([]byte, size)), iotest.ErrReader(broken)))
				require.ErrorIs(t, err, broken)
				_, err = s.Get(t.Context(), "broken/a")
				require.ErrorIs(t, err, fs.ErrNotExist)
			}
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

// Memory is a store in memory. Its zero value is empty.
type Memory struct {
	mu      sync.Mutex
	objects map[string][]byte
	fault   func(ctx context.Context, op, key string) error
	calls   []string
}

var _ archive.Store = (*Memory)(nil)

// Fail makes each call of the store return the error of fault, if it is not nil. Fail(nil) ends this. op is put, get, list or delete.
func (m *Memory) Fail(fault func(ctx context.Context, op, key string) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = fault
}

// Calls returns the calls of the store since the last call of Calls, each as "op key".
func (m *Memory) Calls() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	calls := m.calls
	m.calls = nil
	return calls
}

// Objects returns a copy of the objects.
func (m *Memory) Objects() map[string][]byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.objects)
}

// Set writes an object; nil removes it.
func (m *Memory) Set(key string, b []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b == nil {
		delete(m.objects, key)
		return
	}
	if m.objects == nil {
		m.objects = map[string][]byte{}
	}
	m.objects[key] = b
}

func (m *Memory) call(ctx context.Context, op, key string) error {
	m.mu.Lock()
	fault := m.fault
	m.calls = append(m.calls, op+" "+key)
	m.mu.Unlock()
	if fault != nil {
		return fault(ctx, op, key)
	}
	return ctx.Err()
}

// Put implements archive.Store.
func (m *Memory) Put(ctx context.Context, key string, r io.Reader) error {
	if err := m.call(ctx, "put", key); err != nil {
		return err
	}
	b, err := io.ReadAll(r)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return err
	}
	m.Set(key, append([]byte{}, b...))
	return nil
}

// Get implements archive.Store.
func (m *Memory) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	if err := m.call(ctx, "get", key); err != nil {
		return nil, err
	}
	b, ok := m.Objects()[key]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return io.NopCloser(bytes.NewReader(b)), nil
}

// List implements archive.Store.
func (m *Memory) List(ctx context.Context, prefix string) ([]string, error) {
	if err := m.call(ctx, "list", prefix); err != nil {
		return nil, err
	}
	keys := slices.Sorted(maps.Keys(m.Objects()))
	return slices.DeleteFunc(keys, func(k string) bool { return !strings.HasPrefix(k, prefix) }), nil
}

// Delete implements archive.Store.
func (m *Memory) Delete(ctx context.Context, key string) error {
	if err := m.call(ctx, "delete", key); err != nil {
		return err
	}
	m.Set(key, nil)
	return nil
}
