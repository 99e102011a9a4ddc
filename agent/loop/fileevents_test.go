package loop

import (
	"bytes"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/propose"
	"stoker.io/stoker/test/leak"
)

func owned(paths ...string) iter.Seq2[plan.Owned, error] {
	return func(yield func(plan.Owned, error) bool) {
		for _, p := range paths {
			if !yield(plan.Owned{Path: p}, nil) {
				return
			}
		}
	}
}

func TestFileEventsAreHints(t *testing.T) {
	defer leak.None(t)
	root := t.TempDir()
	for _, dir := range []string{"projects/p", "db", ".stoker"} {
		t.Run(dir, func(t *testing.T) {
			require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
		})
	}
	h := newFileEvents(root, slog.New(slog.DiscardHandler))
	defer h.Close()
	h.watch(owned("config.json", "projects/p/project.json"))

	require.NoError(t, os.WriteFile(filepath.Join(root, "db/journal"), nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(root, ".stoker/manifest"), nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(root, "projects/p/project.json"), nil, 0o600))
	select {
	case <-h.changed:
	case <-time.After(20 * time.Second):
		t.Fatal("no hint")
	}

	h.watch(owned("config.json"))
	assert.Equal(t, map[string]bool{".": true}, h.dirs, "directories without owned files are not watched")
}

func TestWatchLimitIsLoggedOnce(t *testing.T) {
	root := t.TempDir()
	var said bytes.Buffer
	h := newFileEvents(root, slog.New(slog.NewTextHandler(&said, nil)))
	defer h.Close()
	var paths []string
	for i := range maxWatched + 10 {
		dir := fmt.Sprintf("d%05d", i)
		require.NoError(t, os.Mkdir(filepath.Join(root, dir), 0o755))
		paths = append(paths, dir+"/file")
	}
	h.watch(owned(paths...))
	h.watch(owned(paths...))
	assert.LessOrEqual(t, len(h.dirs), maxWatched)
	assert.Equal(t, 1, bytes.Count(said.Bytes(), []byte("not all directories are watched")))
	h.watch(owned("gone/away"))
	assert.Empty(t, h.dirs)
}

// TestSaveBeyondWatchLimit saves a resource in a directory that is not watched. The gateway stores its content as a blob, too.
func TestSaveBeyondWatchLimit(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(root, "projects/.resources"), 0o755))
	var paths []string
	for i := range maxWatched + 10 {
		dir := fmt.Sprintf("projects/p/views/v%05d", i)
		require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
		paths = append(paths, dir+"/view.json")
	}
	h := newFileEvents(root, slog.New(slog.DiscardHandler))
	defer h.Close()
	h.watch(owned(paths...))
	last := paths[len(paths)-1]
	require.False(t, h.dirs[filepath.Dir(last)])
	require.NoError(t, os.WriteFile(filepath.Join(root, last), []byte("{}"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(root, "projects/.resources/0a1b"), []byte("{}"), 0o600))
	select {
	case <-h.changed:
	case <-time.After(20 * time.Second):
		t.Fatal("the save has no event")
	}
}

// Even if a gateway writes all the time, drift checks take at most a twentieth of the time.
func TestHintsAreRateLimited(t *testing.T) {
	now := time.Now()
	clock := func() time.Time { return now }
	l := &Loop{Config: Config{Now: clock}, proposer: propose.New(slog.New(slog.DiscardHandler), clock)}
	l.onFileEvent()
	assert.True(t, l.drift.due.IsZero(), "no drift check before the first sync")
	l.drift.due = now.Add(time.Hour)
	l.onFileEvent()
	assert.Equal(t, now.Add(eventDelay), l.drift.due)
	assert.True(t, l.drift.forEvent)
	l.drift = driftCheck{due: now.Add(time.Hour), found: now}
	l.onFileEvent()
	assert.Equal(t, now.Add(eventDelay), l.drift.due, "a periodic comparison does not delay the one for an event")
	l.drift = driftCheck{due: now.Add(time.Hour), ended: now, duration: time.Minute}
	l.onFileEvent()
	assert.Equal(t, now.Add(eventShare*time.Minute), l.drift.due)
	l.drift = driftCheck{due: now.Add(time.Second), ended: now, duration: time.Minute}
	l.onFileEvent()
	assert.Equal(t, now.Add(time.Second), l.drift.due, "a hint never postpones")
}
