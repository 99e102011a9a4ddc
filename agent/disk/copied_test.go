//go:build linux

package disk

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/safe"
)

// copyByFile replaces a data directory with a copy, like a backup restored file by file. The copy keeps names, bytes, modes and
// mtimes, but not inodes and hard links.
func copyByFile(t testing.TB, root string) {
	t.Helper()
	to := root + ".copy"
	var made []string
	require.NoError(t, filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		require.NoError(t, err)
		rel, err := filepath.Rel(root, p)
		require.NoError(t, err)
		dest := filepath.Join(to, rel)
		fi, err := e.Info()
		require.NoError(t, err)
		made = append(made, rel)
		switch {
		case e.IsDir():
			return os.Mkdir(dest, fi.Mode().Perm())
		case fi.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(p)
			require.NoError(t, err)
			return os.Symlink(target, dest)
		}
		b, err := os.ReadFile(p)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(dest, b, fi.Mode().Perm()))
		return os.Chtimes(dest, fi.ModTime(), fi.ModTime())
	}))
	require.NotEmpty(t, made)
	require.NoError(t, os.RemoveAll(root))
	require.NoError(t, os.Rename(to, root))
}

// copyToSameInodes also gives each staged file the inode number that the journal records, as a new file system may by chance.
func copyToSameInodes(t testing.TB, root string) {
	t.Helper()
	copyByFile(t, root)
	for _, name := range []string{journalFile, undoFile} {
		path := filepath.Join(root, safe.OwnDir, name)
		b, err := os.ReadFile(path)
		if err != nil {
			require.ErrorIs(t, err, fs.ErrNotExist)
			continue
		}
		r, err := format.DecodeJournal(bytes.NewReader(b), int64(len(b)), 1<<20)
		require.NoError(t, err)
		for i := range r.Slots {
			if fi, err := os.Lstat(filepath.Join(root, safe.OwnDir, stagingDir, format.SlotName(i))); err == nil {
				r.Slots[i].Ino = safe.AttrsOf(fi).Ino
			}
		}
		var out bytes.Buffer
		require.NoError(t, r.Encode(&out))
		require.NoError(t, os.WriteFile(path, out.Bytes(), 0o600))
	}
}

// interrupt stops a sync just before the first step for which at returns true, as a crash would.
func interrupt(t *testing.T, root string, want tree, at func(safe.Effect) bool) {
	t.Helper()
	dead := false
	d, err := Open(root, Options{})
	require.NoError(t, err)
	d.vol.Around = func(e safe.Effect, do func() error) error {
		if dead = dead || at(e); dead {
			return syscall.EIO
		}
		return do()
	}
	_, err = tryApply(t, d, want)
	require.ErrorIs(t, err, syscall.EIO)
	require.NoError(t, d.Close())
}

// F14: if recovery finds neither the file nor its bytes, it marks the manifest incomplete, so that the next sync compares every
// file.
func TestRecoveryWithoutStagedFile(t *testing.T) {
	root := seeded(t)
	d := open(t, root, Options{})
	apply(t, d, text(map[string]string{"projects/a": "1", "projects/b": "1"}))
	require.NoError(t, d.Close())
	interrupt(t, root, text(map[string]string{"projects/a": "2", "projects/b": "2"}), func(e safe.Effect) bool {
		return e.Op == "syncdir" && e.Path == "projects"
	})
	copyByFile(t, root)
	put(t, root, "projects/a", "of an older backup")
	put(t, root, ".stoker/staging/0", "unknown content")

	d = open(t, root, Options{})
	assert.False(t, d.Manifest().Header().Complete)
	assert.Equal(t, "of an older backup", contents(t, root)["projects/a"])
	assert.Equal(t, "2", contents(t, root)["projects/b"])
	assert.True(t, everything(t, root)["unknown content"], "saved")
	assertNoLeftovers(t, root)
}

// If the manifest from which the run started is missing or damaged, recovery must not claim that the new one is complete.
func TestRecoveryWithoutManifest(t *testing.T) {
	one := text(map[string]string{"projects/a": "1", "projects/b": "1"})
	two := text(map[string]string{"projects/a": "2", "projects/b": "1"})
	moved := func(e safe.Effect) bool { return e.Op == "syncdir" && e.Path == "projects" }
	for name, c := range map[string]struct {
		first  bool // interrupt the first run
		at     func(safe.Effect) bool
		damage func(t *testing.T, manifest string)
		want   bool
	}{
		"whole":   {at: moved, damage: func(*testing.T, string) {}, want: true},
		"missing": {at: moved, damage: func(t *testing.T, m string) { require.NoError(t, os.Remove(m)) }},
		"damaged": {at: moved, damage: func(t *testing.T, m string) {
			b, err := os.ReadFile(m)
			require.NoError(t, err)
			b[len(b)/2] ^= 1
			require.NoError(t, os.WriteFile(m, b, 0o600))
		}},
		"new manifest in place": {
			at:     func(e safe.Effect) bool { return e.Op == "remove" && e.Path == ".stoker/"+journalFile },
			damage: func(*testing.T, string) {}, want: true,
		},
		"no manifest before": {first: true, at: moved, damage: func(*testing.T, string) {}, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			root := seeded(t)
			if !c.first {
				d, err := Open(root, Options{})
				require.NoError(t, err)
				apply(t, d, one)
				require.NoError(t, d.Close())
			}
			interrupt(t, root, two, c.at)
			c.damage(t, filepath.Join(root, safe.OwnDir, manifestFile))
			d := open(t, root, Options{})
			assert.Equal(t, two.id(), d.Manifest().Header().Commit)
			assert.Equal(t, c.want, d.Manifest().Header().Complete)
			assert.Equal(t, "2", contents(t, root)["projects/a"])
		})
	}
}
