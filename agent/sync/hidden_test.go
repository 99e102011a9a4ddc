package sync_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
)

// F15: an edit that keeps size and mtime is drift. A repair restores the file and saves the edit to lost+found.
func TestRepairWithSameSizeAndMtime(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.push(firstCommit()...)
	b.synced()
	path := filepath.Join(b.data, view)
	was, err := os.Stat(path)
	require.NoError(t, err)
	const edit = `{"one": 2}`
	for files := 0; files == 0; { // until the clock of the volume has advanced
		require.NoError(t, os.WriteFile(path, []byte(edit), 0o600))
		require.NoError(t, os.Chtimes(path, was.ModTime(), was.ModTime()))
		d, err := b.engine.Drift(t.Context(), false)
		require.NoError(t, err)
		files = d.Files
	}
	b.target.Repair = true
	b.synced()
	assert.JSONEq(t, `{"one": 1}`, b.read(view))
	d, err := b.engine.Drift(t.Context(), false)
	require.NoError(t, err)
	assert.Zero(t, d.Files)
	dir, err := b.engine.Open()
	require.NoError(t, err)
	lost, err := dir.LostAndFound()
	require.NoError(t, err)
	at := slices.IndexFunc(lost, func(l disk.Lost) bool { return l.Path == view })
	require.GreaterOrEqual(t, at, 0)
	assert.Equal(t, edit, b.read(filepath.Join(".stoker/lost+found", lost[at].File)))
}

// F11: a file of terabytes in a mapped folder must not block a sync or the shutdown of the agent.
func TestEndlessFileIsNotRead(t *testing.T) {
	b := newBench(t, simulator.Options{})
	b.push(firstCommit()...)
	path := filepath.Join(b.data, view)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Truncate(path, 2<<40))
	r := b.sync()
	assert.NotEqual(t, v1alpha1.GatewaySynced, r.Phase)
	assert.Contains(t, r.Message, "lost+found may hold", "the file is larger than lost+found may hold")
	fi, err := os.Stat(path)
	require.NoError(t, err)
	assert.EqualValues(t, 2<<40, fi.Size())

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r = b.engine.Sync(ctx, b.conn, b.target)
	assert.NotEqual(t, v1alpha1.GatewaySynced, r.Phase)
}
