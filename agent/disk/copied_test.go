//go:build linux

package disk

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/lock"
	"stoker.io/stoker/agent/disk/lostfound"
	"stoker.io/stoker/agent/disk/records"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/disk/single"
	"stoker.io/stoker/agent/plan"
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
			if fi, err := os.Lstat(filepath.Join(root, safe.OwnDir, safe.StagingDir, format.SlotName(i))); err == nil {
				r.Slots[i].Ino = safe.AttrsOf(fi).Ino
			}
		}
		var out bytes.Buffer
		require.NoError(t, r.Encode(&out))
		require.NoError(t, os.WriteFile(path, out.Bytes(), 0o600))
	}
}

// Paths of files in .stoker.
const (
	manifestPath = safe.OwnDir + "/" + manifestFile
	journalPath  = safe.OwnDir + "/" + journalFile
)

// step returns a function that reports whether a step is the operation op on a path.
func step(op, path string) func(safe.Effect) bool {
	return func(e safe.Effect) bool { return e.Op == op && (e.Path == path || e.Dest == path) }
}

// dies returns an Options.Around that fails from the first step on for which at returns true, as in a crash.
func dies(at func(safe.Effect) bool) func(safe.Effect, func() error) error {
	dead := false
	return func(e safe.Effect, do func() error) error {
		if dead = dead || at(e); dead {
			return errCut
		}
		return do()
	}
}

// interrupt stops a sync just before the first step for which at returns true.
func interrupt(t *testing.T, root string, want tree, at func(safe.Effect) bool) {
	t.Helper()
	d, err := Open(root, Options{})
	require.NoError(t, err)
	d.vol.Around = dies(at)
	_, err = tryApply(t, d, want)
	require.ErrorIs(t, err, errCut)
	require.NoError(t, d.Close())
}

// flip changes one bit of a file, in the byte that at returns.
func flip(t *testing.T, path string, at func(size int) int) {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	b[at(len(b))] ^= 1
	require.NoError(t, os.WriteFile(path, b, 0o600))
}

// F14: if recovery finds neither the staged file nor its bytes, it marks the manifest incomplete, so that the next sync compares every
// file.
func TestRecoveryWithoutStagedFile(t *testing.T) {
	root := seeded(t)
	d := open(t, root, Options{})
	apply(t, d, text(map[string]string{"projects/a": "1", "projects/b": "1"}))
	require.NoError(t, d.Close())
	interrupt(t, root, text(map[string]string{"projects/a": "2", "projects/b": "2"}), step("syncdir", "projects"))
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
	moved, nothing := step("syncdir", "projects"), func(*testing.T, string) {} // moved is the first step after all files have moved
	for name, c := range map[string]struct {
		first  bool // interrupt the first run
		at     func(safe.Effect) bool
		damage func(t *testing.T, manifest string)
		want   bool // the manifest is complete after recovery
	}{
		"undamaged":             {at: moved, damage: nothing, want: true},
		"missing":               {at: moved, damage: func(t *testing.T, m string) { require.NoError(t, os.Remove(m)) }},
		"damaged":               {at: moved, damage: func(t *testing.T, m string) { flip(t, m, func(n int) int { return n / 2 }) }},
		"new manifest in place": {at: step("remove", journalPath), damage: nothing, want: true},
		"no manifest before":    {first: true, at: moved, damage: nothing, want: true},
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
			c.damage(t, filepath.Join(root, manifestPath))
			d := open(t, root, Options{})
			assert.Equal(t, two.id(), d.Manifest().Header().Commit)
			assert.Equal(t, c.want, d.Manifest().Header().Complete)
			assert.Equal(t, "2", contents(t, root)["projects/a"])
		})
	}
}

// wrong creates what a program in the gateway may put in place of the agent's own files.
var wrong = map[string]func(path string) error{
	"fifo":            func(path string) error { return syscall.Mkfifo(path, 0o600) },
	"directory":       func(path string) error { return os.Mkdir(path, 0o700) },
	"link":            func(path string) error { return os.Symlink("../projects/victim", path) },
	"link to nothing": func(path string) error { return os.Symlink("nothing", path) },
	"link to itself":  func(path string) error { return os.Symlink(filepath.Base(path), path) },
	"directory in use": func(path string) error {
		if err := os.MkdirAll(path+"/deep", 0o700); err != nil {
			return err
		}
		return os.WriteFile(path+"/deep/file", []byte("theirs"), 0o600)
	},
	"directory in use that cannot be read": func(path string) error {
		if err := os.MkdirAll(path+"/deep", 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path+"/deep/file", []byte("theirs"), 0o600); err != nil {
			return err
		}
		return os.Chmod(path+"/deep", 0)
	},
	"file": func(path string) error { return os.WriteFile(path, []byte("theirs"), 0o600) },
	"sparse file of 1 GiB": func(path string) error {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			return err
		}
		return os.Truncate(path, 1<<30)
	},
	"file that cannot be read": func(path string) error { return os.WriteFile(path, []byte("theirs"), 0) },
	"second name of a file":    func(path string) error { return os.Link(filepath.Join(filepath.Dir(path), "../projects/victim"), path) },
}

// F11, F17: whatever replaces a file in .stoker, the agent starts and syncs twice.
func TestUnexpectedFilesInOwnFolder(t *testing.T) {
	unprivileged(t)
	names := []string{ // in .stoker; "" is .stoker itself
		"", lock.FileName, manifestFile, journalFile, undoFile, areasFile, modesFile, safe.StagingDir, lostfound.DirName, records.NotePrefix + "x",
		manifestFile + ".new", journalFile + ".new", areasFile + ".new", records.NotePrefix + "x.new", single.Staged, single.AsideFile,
	}
	for _, name := range names {
		for kind, plant := range wrong {
			t.Run(fmt.Sprintf("%q is a %s", name, kind), func(t *testing.T) {
				root := seeded(t)
				t.Cleanup(func() { readable(t, root) })
				put(t, root, "projects/victim", "victim")
				require.NoError(t, os.Chmod(filepath.Join(root, "projects/victim"), 0o640))
				if kind == "second name of a file" && name == "" {
					t.Skip("the same as a file")
				}
				if name != "" {
					require.NoError(t, os.Mkdir(filepath.Join(root, safe.OwnDir), 0o700))
				}
				require.NoError(t, plant(filepath.Join(root, safe.OwnDir, name)))

				d := open(t, root, Options{Around: quick})
				note, err := d.Note("x")
				require.NoError(t, err)
				if name == records.NotePrefix+"x" && !strings.HasPrefix(kind, "file") && kind != "second name of a file" {
					assert.Equal(t, DamagedNote, string(note))
				}
				put(t, root, "projects/p/a.json", "of the gateway")
				for _, content := range []string{"1", "2"} {
					apply(t, d, text(map[string]string{"projects/p/a.json": content, "projects/p/b.json": content}))
					require.NoError(t, d.SetNote("x", []byte(content)))
				}
				b, err := os.ReadFile(filepath.Join(root, "projects/p/b.json"))
				require.NoError(t, err)
				assert.Equal(t, "2", string(b))
				require.NoError(t, d.Close())
				d = open(t, root, Options{Around: quick})
				note, err = d.Note("x")
				require.NoError(t, err)
				assert.Equal(t, "2", string(note))
				saved := lost(t, d)
				if assert.Len(t, saved, 1) {
					assert.Equal(t, "projects/p/a.json", saved[0].Path)
				}
				require.NoError(t, d.SetNote("x", nil))

				fi, err := os.Stat(filepath.Join(root, "projects/victim"))
				require.NoError(t, err)
				assert.Equal(t, "-rw-r-----", fi.Mode().String())
				b, err = os.ReadFile(filepath.Join(root, "projects/victim"))
				require.NoError(t, err)
				assert.Equal(t, "victim", string(b))
				if kind == "directory in use that cannot be read" || kind == "directory in use" && name != safe.StagingDir {
					readable(t, root)
					assert.Contains(t, everything(t, root), "theirs")
				}
			})
		}
	}
}

// readable makes every directory and file readable for the owner again.
func readable(t testing.TB, root string) {
	t.Helper()
	for range 3 { // subdirectories become visible only after their parent is readable
		_ = filepath.WalkDir(root, func(p string, e os.DirEntry, _ error) error {
			if e != nil && e.IsDir() {
				return os.Chmod(p, 0o700)
			}
			if e != nil && e.Type().IsRegular() {
				return os.Chmod(p, 0o600)
			}
			return nil
		})
	}
}

// unprivileged runs the rest of the test as a user without root's permissions. It sets TMPDIR to a place that this user can reach,
// because the current one may be below a directory of root.
func unprivileged(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	const nobody = 65534
	dir, err := os.MkdirTemp("/dev/shm", "stoker-")
	if err != nil {
		dir, err = os.MkdirTemp("/tmp", "stoker-")
	}
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chown(dir, nobody, nobody))
	t.Setenv("TMPDIR", dir)
	require.NoError(t, syscall.Setegid(nobody))
	require.NoError(t, syscall.Seteuid(nobody))
	t.Cleanup(func() {
		assert.NoError(t, syscall.Seteuid(0))
		assert.NoError(t, syscall.Setegid(0))
	})
}

func TestStagingOfDamagedJournal(t *testing.T) {
	root := seeded(t)
	d := open(t, root, Options{})
	apply(t, d, text(map[string]string{"projects/p/a.json": "1"}))
	require.NoError(t, d.Close())
	put(t, root, ".stoker/staging/3", "perhaps the gateway's")
	put(t, root, ".stoker/journal", "torn")

	d = open(t, root, Options{Now: fixed})
	saved := lost(t, d)
	require.Len(t, saved, 1)
	assert.Equal(t, "perhaps the gateway's", savedContent(t, root, saved[0]))
	assert.False(t, d.Manifest().Header().Complete, "the next plan must compare every file")
	assert.Equal(t, 1, d.Manifest().Header().Files)
	require.NoError(t, os.Remove(filepath.Join(root, safe.OwnDir, journalFile+safe.AsideSuffix)))
	assertNoLeftovers(t, root)
}

func TestDamagedManifestAdoptsFiles(t *testing.T) {
	root := seeded(t)
	d := open(t, root, Options{})
	want := text(map[string]string{"projects/p/a.json": "1", "projects/p/b.json": "2"})
	apply(t, d, want)
	require.NoError(t, d.Close())
	path := filepath.Join(root, manifestPath)
	flip(t, path, func(int) int { return 20 })
	d = open(t, root, Options{})
	assert.Equal(t, plan.Header{}, d.Manifest().Header())
	delete(want, "projects/p/b.json")
	assert.Equal(t, Result{Applied: true, Committed: true}, apply(t, d, want))
	assert.Equal(t, "2", contents(t, root)["projects/p/b.json"], "no record says that the agent may delete it")
	assert.FileExists(t, path+".damaged")
}
