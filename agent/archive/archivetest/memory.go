package archivetest

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"

	"stoker.io/stoker/agent/archive"
)

// Memory is a store in memory. Its zero value is empty.
type Memory struct {
	mu      sync.Mutex
	objects map[string][]byte
	fault   func(ctx context.Context, op, key string) error
	calls   []string
}

var _ archive.Store = (*Memory)(nil)

// Fail makes each call return the error of fault, if it is not nil. A nil fault ends this. op is put, get, list or delete.
func (m *Memory) Fail(fault func(ctx context.Context, op, key string) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = fault
}

// Calls returns the calls since the last time, as "op key".
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
