package loop

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	gosync "sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/propose"
	"stoker.io/stoker/agent/sync"
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
	for _, dir := range []string{"projects/p", "db", ".stoker"} { // setup: directories
		require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
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

	require.NoError(t, os.Rename(filepath.Join(root, "projects/p"), filepath.Join(root, "projects/q")))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "projects/p"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "projects/r"), 0o755))
	paths := []string{"config.json", "projects/p/project.json", "projects/r/project.json"}
	for i := range 20 {
		paths = append(paths, fmt.Sprintf("gone/%d/x", i))
	}
	watched := []string{".", "projects/p", "projects/r"}
	assert.EventuallyWithT(t, func(c *assert.CollectT) { // the rename has an event
		h.watch(owned(paths...))
		list := h.fs.WatchList()
		for i := range list {
			list[i], _ = filepath.Rel(root, list[i])
		}
		assert.ElementsMatch(c, watched, list)
		assert.ElementsMatch(c, watched, slices.Collect(maps.Keys(h.dirs)))
	}, 20*time.Second, 10*time.Millisecond)

	h.watch(owned("config.json"))
	assert.Equal(t, map[string]bool{".": true}, h.dirs, "directories without owned files are not watched")
}

// TestWatchLimit saves a resource in a directory that is not watched, because there are too many. The gateway stores its content as a blob, too.
func TestWatchLimit(t *testing.T) {
	root := t.TempDir()
	var said bytes.Buffer
	require.NoError(t, os.MkdirAll(filepath.Join(root, "projects/.resources"), 0o755))
	var paths []string
	for i := range maxWatched + 10 {
		dir := fmt.Sprintf("projects/p/views/v%05d", i)
		require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
		paths = append(paths, dir+"/view.json")
	}
	h := newFileEvents(root, slog.New(slog.NewTextHandler(&said, nil)))
	defer h.Close()
	h.watch(owned(paths...))
	h.watch(owned(paths...))
	assert.LessOrEqual(t, len(h.dirs), maxWatched)
	assert.Equal(t, 1, bytes.Count(said.Bytes(), []byte("not all directories are watched")))
	last := paths[len(paths)-1]
	require.False(t, h.dirs[filepath.Dir(last)])
	require.NoError(t, os.WriteFile(filepath.Join(root, last), []byte("{}"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(root, "projects/.resources/0a1b"), []byte("{}"), 0o600))
	select {
	case <-h.changed:
	case <-time.After(20 * time.Second):
		t.Fatal("the save has no event")
	}
	h.watch(owned("gone/away"))
	assert.Equal(t, map[string]bool{"projects/.resources": true}, h.dirs)
}

// A gateway that always writes delays nothing that is due.
func TestEventsDelayNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := newLoop(t, sync.Config{}, Config{})
		l.Now = time.Now
		l.events = &fileEvents{changed: make(chan struct{})}
		l.drift.due, l.attempt.due = time.Now().Add(time.Hour), time.Now().Add(time.Second/2)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		var writer gosync.WaitGroup
		writer.Go(func() {
			for ctx.Err() == nil {
				select {
				case l.events.changed <- struct{}{}:
				case <-ctx.Done():
				}
				time.Sleep(minPause / 2)
			}
		})
		started := time.Now()
		l.wait(ctx, &wants{}, l.next())
		cancel()
		writer.Wait()
		assert.Less(t, time.Since(started), time.Second)
	})
}

// Even if a gateway writes all the time, the comparisons for its file events take at most a twentieth of the time.
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
