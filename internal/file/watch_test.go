package file

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/leak"
)

// requireSignal waits until w signals a change.
func requireSignal(t *testing.T, w *Watcher, what string) {
	t.Helper()
	select {
	case <-w.Changed():
	case <-time.After(20 * time.Second):
		t.Fatalf("no notification of %s", what)
	}
}

func TestWatchFile(t *testing.T) {
	defer leak.None(t)
	file := filepath.Join(t.TempDir(), "gs.yaml")
	require.NoError(t, os.WriteFile(file, []byte("a"), 0o600))
	w := Watch(slog.New(slog.DiscardHandler), file)
	defer w.Close()
	noticed := func(what string) {
		t.Helper()
		requireSignal(t, w, what)
	}
	require.NoError(t, os.WriteFile(file, []byte("b"), 0o600))
	noticed("a write")
	require.NoError(t, os.WriteFile(file+"~", []byte("c"), 0o600))
	require.NoError(t, os.Rename(file+"~", file))
	noticed("a rename over the file")
	// The kubelet updates a mounted volume by replacing its ..data link.
	require.NoError(t, os.Symlink("x", filepath.Join(filepath.Dir(file), "..data")))
	noticed("an update of a mounted Secret")
}

func TestWatchSeveralFiles(t *testing.T) {
	defer leak.None(t)
	git, api := filepath.Join(t.TempDir(), "token"), filepath.Join(t.TempDir(), "key")
	missing := filepath.Join(t.TempDir(), "missing", "x") // must not prevent the watches of the others
	w := Watch(slog.New(slog.DiscardHandler), git, missing, api)
	defer w.Close()
	for _, file := range []string{git, api, git} { // git again: the watch survives the rename that replaced the file
		require.NoError(t, os.WriteFile(file+"~", []byte("new"), 0o600))
		require.NoError(t, os.Rename(file+"~", file))
		requireSignal(t, w, "the new "+file)
	}
}

// A directory that cannot be watched is not an error: callers also read their files periodically.
func TestWatchInMissingDirectory(t *testing.T) {
	defer leak.None(t)
	w := Watch(slog.New(slog.DiscardHandler), filepath.Join(t.TempDir(), "missing", "gs.yaml"))
	defer w.Close()
	select {
	case <-w.Changed():
		t.Fatal("nothing changed")
	default:
	}
}
