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

func TestWatchFile(t *testing.T) {
	defer leak.None(t)
	file := filepath.Join(t.TempDir(), "gs.yaml")
	require.NoError(t, os.WriteFile(file, []byte("a"), 0o600))
	w := Watch(slog.New(slog.DiscardHandler), file)
	defer w.Close()
	noticed := func(what string) {
		t.Helper()
		select {
		case <-w.Changed():
		case <-time.After(20 * time.Second):
			t.Fatal("not noticed: " + what)
		}
	}
	require.NoError(t, os.WriteFile(file, []byte("b"), 0o600))
	noticed("a write")
	require.NoError(t, os.WriteFile(file+"~", []byte("c"), 0o600))
	require.NoError(t, os.Rename(file+"~", file))
	noticed("a rename over it")
	require.NoError(t, os.Symlink("x", filepath.Join(filepath.Dir(file), "..data")))
	noticed("a secret volume's flip")
}

func TestWatchSeveralFiles(t *testing.T) {
	defer leak.None(t)
	git, api := filepath.Join(t.TempDir(), "token"), filepath.Join(t.TempDir(), "key")
	w := Watch(slog.New(slog.DiscardHandler), git, filepath.Join(t.TempDir(), "missing", "x"), api)
	defer w.Close()
	for _, file := range []string{git, api, git} {
		require.NoError(t, os.WriteFile(file+"~", []byte("new"), 0o600))
		require.NoError(t, os.Rename(file+"~", file))
		select {
		case <-w.Changed():
		case <-time.After(20 * time.Second):
			t.Fatal("not noticed: " + file)
		}
	}
}

// Some file systems have no events, and some directories cannot be watched. The caller polls the file anyway.
func TestWatchWithoutEvents(t *testing.T) {
	w := Watch(slog.New(slog.DiscardHandler), filepath.Join(t.TempDir(), "missing", "gs.yaml"))
	defer w.Close()
	select {
	case <-w.Changed():
		t.Fatal("nothing changed")
	default:
	}
}
