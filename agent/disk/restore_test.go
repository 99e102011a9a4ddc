//go:build linux

package disk

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"stoker.io/stoker/agent/disk/lostfound"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

// lost returns the entries of lost+found.
func lost(t *testing.T, d *Dir) []Lost {
	t.Helper()
	l, err := d.LostAndFound()
	require.NoError(t, err)
	return l
}

func TestRestoreToEachMount(t *testing.T) {
	if !inChildProcess(t, true) {
		return
	}
	root := seeded(t)
	for _, dir := range []string{"projects", "config/resources/core"} {
		at := filepath.Join(root, dir)
		require.NoError(t, unix.Mount("none", at, "tmpfs", 0, ""))
		t.Cleanup(func() { assert.NoError(t, unix.Unmount(at, unix.MNT_DETACH)) })
	}
	d := open(t, root, Options{})
	files := []string{"config/resources/core/x/c", "config/resources/other/c", "projects/p/deep/a"}
	one, two := tree{}, tree{}
	for _, f := range files {
		one[f], two[f] = file{content: "1"}, file{content: "2"}
	}
	apply(t, d, one)
	for _, f := range files {
		t.Run(f, func(t *testing.T) {
			put(t, root, f, "the gateway's "+f)
			require.NoError(t, os.Chmod(filepath.Join(root, f), 0o640))
		})
	}
	require.Len(t, apply(t, d, two).Saved, len(files))
	require.NoError(t, os.RemoveAll(filepath.Join(root, "projects/p")))

	entries := lost(t, d)
	for _, l := range entries {
		require.NoError(t, d.RestoreLost(l))
		fi, err := os.Stat(filepath.Join(root, l.Path))
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o640), fi.Mode().Perm(), "a copy on another mount keeps the mode, too: %s", l.Path)
		assert.Equal(t, "the gateway's "+l.Path, contents(t, root)[l.Path])
	}
	assert.NoDirExists(t, filepath.Join(root, "projects", safe.OwnDir))
	assert.NoDirExists(t, filepath.Join(root, "config/resources/core", safe.OwnDir))

	d.vol.Around = func(e safe.Effect, do func() error) error {
		if e.Op == "chmod" && strings.Contains(e.Path, lostfound.DirName) { // some file systems have no modes
			return unix.EPERM
		}
		return do()
	}
	assert.Len(t, apply(t, d, one).Saved, len(files), "a failed chmod does not lose the file")

	// Restore must not remove the staging folder of an interrupted sync.
	staging := filepath.Join(root, "projects", safe.OwnDir, stagingDir)
	require.NoError(t, os.MkdirAll(staging, 0o700))
	require.NoError(t, d.RestoreLost(entries[2]))
	assert.DirExists(t, staging)
	assertNoLeftovers(t, root)
}

// A restored file keeps its mode: a private key stays private, and a script stays executable.
func TestRestoreKeepsMode(t *testing.T) {
	for _, mode := range []os.FileMode{0o600, 0o644, 0o755, 0o400} {
		t.Run(mode.String(), func(t *testing.T) {
			root := seeded(t)
			d := open(t, root, Options{})
			apply(t, d, text(map[string]string{"projects/p/a": "1"}))
			put(t, root, "projects/p/a", "of the gateway")
			require.NoError(t, os.Chmod(filepath.Join(root, "projects/p/a"), mode))
			require.Len(t, apply(t, d, text(map[string]string{"projects/p/a": "2"})).Saved, 1)
			require.NoError(t, d.RestoreLost(lost(t, d)[0]))
			fi, err := os.Stat(filepath.Join(root, "projects/p/a"))
			require.NoError(t, err)
			assert.Equal(t, mode, fi.Mode().Perm())
			assert.Equal(t, "of the gateway", contents(t, root)["projects/p/a"])
		})
	}
}

// File names on Linux may be any bytes, but JSON strings must be UTF-8.
func TestRestoreOfNonUTF8Names(t *testing.T) {
	root := seeded(t)
	d := open(t, root, Options{})
	apply(t, d, text(map[string]string{"projects/p/a": "1"}))
	names := []string{"projects/p/caf\xe8.txt", "projects/p/caf\xe9.txt", "projects/p/caf\ufffd.txt"}
	changes := &plan.Changes{To: text(map[string]string{"x": "y"}).id()}
	// setup: one conflict for each name
	for _, name := range names {
		put(t, root, name, "the only copy of "+name)
		st, err := d.Stat(name)
		require.NoError(t, err)
		id, err := d.BlobID(name)
		require.NoError(t, err)
		changes.List = append(changes.List, plan.Change{Op: plan.Delete, Path: name, Found: st, FoundID: id, Conflict: true})
	}
	s, err := d.Stage(t.Context(), changes, nil, func(io.Writer, plan.Change) error { return nil })
	require.NoError(t, err)
	res, err := s.Apply(t.Context(), d.Manifest().Header())
	require.NoError(t, err)
	entries := lost(t, d)
	require.Len(t, entries, len(names))
	for i, l := range entries {
		assert.Equal(t, names[i], l.Path)
		assert.Equal(t, res.Saved[i].File, l.File)
		f, err := d.OpenLost(l)
		require.NoError(t, err)
		b, err := io.ReadAll(f)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		assert.Equal(t, "the only copy of "+names[i], string(b))
		require.NoError(t, d.RestoreLost(l))
		assert.Equal(t, string(b), contents(t, root)[names[i]])
	}
}

// The gateway writes a file just before the agent replaces it. Its version stays, also on a file system that cannot exchange.
func TestSingleFileWrittenMeanwhile(t *testing.T) {
	for _, plain := range []bool{false, true} {
		t.Run(fmt.Sprintf("plain=%t", plain), func(t *testing.T) {
			root, write := seeded(t), false
			const path = "config/resources/core/ignition/api-token/k/config.json"
			d := open(t, root, Options{plain: plain, Around: func(e safe.Effect, do func() error) error {
				if moves := e.Op == "exchange" && e.Dest == path || e.Op == "rename" && (e.Path == path || e.Dest == path); write && moves {
					write = false
					put(t, root, path, "the gateway's")
				}
				return do()
			}})
			edit := func(to string) error {
				_, err := d.Edit(path, 1<<10, "", func([]byte) ([]byte, error) { return []byte(to), nil })
				return err
			}
			require.NoError(t, edit("1"))
			require.NoError(t, edit("2"))
			assert.Equal(t, "2", contents(t, root)[path])
			write = true
			assert.ErrorContains(t, edit("3"), "at the same time")
			assert.Equal(t, "the gateway's", contents(t, root)[path])

			apply(t, d, text(map[string]string{"projects/p/a": "1"}))
			put(t, root, "projects/p/a", "lost")
			apply(t, d, text(map[string]string{"projects/p/a": "2"}))
			write = false
			d.vol.Around = func(e safe.Effect, do func() error) error {
				const path = "projects/p/a"
				if moves := e.Op == "exchange" && e.Dest == path || e.Op == "rename" && (e.Path == path || e.Dest == path); moves && !write {
					write = true
					put(t, root, path, "the gateway's")
				}
				return do()
			}
			require.ErrorIs(t, d.RestoreLost(lost(t, d)[0]), ErrUnsaved)
			assert.Equal(t, "the gateway's", contents(t, root)["projects/p/a"])
			assertNoLeftovers(t, root)
		})
	}
}
