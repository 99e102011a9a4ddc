//go:build linux

package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

// modeless simulates a volume without modes, such as an SMB share: each file has the mode of the mount, and chmod does nothing.
// also, if set, runs before each step.
func modeless(root string, bits os.FileMode, also func(safe.Effect) error) func(safe.Effect, func() error) error {
	return func(e safe.Effect, do func() error) error {
		if also != nil {
			if err := also(e); err != nil {
				return err
			}
		}
		if e.Op == "chmod" {
			return nil
		}
		if err := do(); err != nil || e.Op != "create" {
			return err
		}
		return os.Chmod(filepath.Join(root, e.Path), bits)
	}
}

// wantsExec returns an executable and a normal file.
func wantsExec(content string) tree {
	return tree{"projects/p/a": {content: content}, "projects/p/run": {content: content, exec: true}}
}

func TestVolumeWithoutModesHasNoModeDrift(t *testing.T) {
	for name, bits := range map[string]os.FileMode{"all executable": 0o777, "none executable": 0o644, "owner only": 0o600, "owner only, executable": 0o700} {
		t.Run(name, func(t *testing.T) {
			root := seeded(t)
			o := Options{Around: modeless(root, bits, nil)}
			d := open(t, root, o)
			apply(t, d, wantsExec("1"))
			for range 2 {
				for _, full := range []bool{false, true} {
					assert.Empty(t, drift(t, d, full).Paths)
				}
				st, err := d.Stat("projects/p/run")
				require.NoError(t, err)
				assert.True(t, st.NoModes)
				for f, err := range d.Walk("projects/p") {
					require.NoError(t, err)
					st, err := d.Stat(f.Path)
					require.NoError(t, err)
					assert.True(t, st.NoModes, f.Path)
				}
				require.NoError(t, d.Close())
				if bits&0o100 != 0 { // a read-only Dir, which cannot create a file, learns it from an executable manifest
					assert.Empty(t, drift(t, open(t, root, Options{ReadOnly: true}), false).Paths)
				}
				d = open(t, root, o)
			}
			put(t, root, "projects/p/a", "2")
			assert.Equal(t, []Drifted{{"projects/p/a", Modified}}, drift(t, d, false).Paths, "a changed content is still drift")
		})
	}
}

// The agent still finds that a volume has modes if it is full, or if a user changed the mode of the modesFile that a crash left.
func TestVolumeWithModesIsDetected(t *testing.T) {
	root := seeded(t)
	full := Options{Around: func(e safe.Effect, do func() error) error {
		if e.Op == "create" && e.Path == safe.OwnDir+"/"+modesFile {
			return syscall.ENOSPC
		}
		return do()
	}}
	// sequence: each agent opens the directory that the one before left
	for _, o := range []Options{{}, {}, full} {
		d := open(t, root, o)
		apply(t, d, wantsExec("1"))
		require.NoError(t, os.Chmod(filepath.Join(root, "projects/p/a"), 0o755))
		for _, d := range []*Dir{d, open(t, root, Options{ReadOnly: true})} {
			assert.Equal(t, []Drifted{{"projects/p/a", Chmodded}}, drift(t, d, false).Paths)
		}
		require.NoError(t, d.Close())
		assertNoLeftovers(t, root)
		put(t, root, safe.OwnDir+"/"+modesFile, "")
		require.NoError(t, os.Chmod(filepath.Join(root, safe.OwnDir, modesFile), 0o777))
	}
}

// On a share whose files belong to another user and are executable, chmod fails with a permission error. Such a share is still recognized while
// it is full or read-only.
func TestShareOfAnotherOwnerHasNoModes(t *testing.T) {
	for name, refuse := range map[string]func(safe.Effect) error{
		"writable": nil,
		"full": func(e safe.Effect) error {
			if e.Op == "create" || e.Op == "fill" {
				return syscall.ENOSPC
			}
			return nil
		},
		"read-only": func(safe.Effect) error { return syscall.EROFS },
	} {
		t.Run(name, func(t *testing.T) {
			root := seeded(t)
			var now func(safe.Effect) error
			o := Options{Around: func(e safe.Effect, do func() error) error {
				if now != nil {
					if err := now(e); err != nil {
						return err
					}
				}
				if e.Op == "chmod" {
					return os.ErrPermission
				}
				if err := do(); err != nil || e.Op != "create" {
					return err
				}
				return os.Chmod(filepath.Join(root, e.Path), 0o777)
			}}
			d := open(t, root, o)
			apply(t, d, wantsExec("1"))
			assert.Empty(t, drift(t, d, false).Paths)
			require.NoError(t, d.Close())
			now = refuse
			assert.Empty(t, drift(t, open(t, root, o), false).Paths)
		})
	}
}

// A rollback removes new files, whatever mode the volume or the gateway gave them.
func TestRollbackOnVolumeWithoutModes(t *testing.T) {
	root := seeded(t)
	failing := false
	d := open(t, root, Options{Around: modeless(root, 0o777, func(e safe.Effect) error {
		if failing && e.Op == "rename" && e.Dest == safe.OwnDir+"/"+manifestFile {
			return errors.New("io error")
		}
		return nil
	})})
	one := wantsExec("1")
	apply(t, d, one)
	before := contents(t, root)
	failing = true
	two := wantsExec("2")
	two["projects/p/new"] = file{content: "n"}
	two["projects/q/new"] = file{content: "n", exec: true}
	res, err := tryApply(t, d, two)
	require.Error(t, err)
	assert.False(t, res.Applied)
	assert.Equal(t, before, contents(t, root))
	assert.Equal(t, one.id(), d.Manifest().Header().Commit)
}

// The agent learns from staged files whether a mount other than that of .stoker has modes.
func TestStagedFilesDetectVolumeWithoutModes(t *testing.T) {
	root := seeded(t)
	d := open(t, root, Options{})
	d.vol.Around = modeless(root, 0o777, nil)
	apply(t, d, wantsExec("1"))
	assert.Empty(t, drift(t, d, false).Paths)
	st, err := d.Stat("projects/p/a")
	require.NoError(t, err)
	assert.Equal(t, plan.Stat{Kind: plan.File, Size: 1, Mtime: st.Mtime, Exec: true, NoModes: true}, st)
}

// F14: after a crash and a copy of the directory, recovery recognizes staged files regardless of their modes.
func TestCrashOnVolumeWithoutModes(t *testing.T) {
	root := seeded(t)
	o := Options{Around: modeless(root, 0o777, nil)}
	d := open(t, root, o)
	apply(t, d, wantsExec("1"))
	require.NoError(t, d.Close())
	interrupt(t, root, wantsExec("2"), step("syncdir", "projects/p"))
	copyByFile(t, root)
	require.NoError(t, filepath.WalkDir(root, func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			err = os.Chmod(path, 0o777)
		}
		return err
	}))
	d = open(t, root, o)
	assert.True(t, d.Manifest().Header().Complete, "the manifest is complete")
	assert.Equal(t, wantsExec("2").id(), d.Manifest().Header().Commit)
	assert.Equal(t, "2", contents(t, root)["projects/p/run"])
	assertNoLeftovers(t, root)
}

// A rollback makes the directories again that the sync removed, with their modes.
func TestRollbackKeepsModesOfDirectories(t *testing.T) {
	root, failing, removed := seeded(t), false, false
	d := open(t, root, Options{Around: func(e safe.Effect, do func() error) error {
		removed = removed || e.Op == "rmdir" && e.Path == "projects/p/sub"
		if failing && e.Op == "create" && e.Path == manifestPath+".new" {
			return syscall.EIO
		}
		return do()
	}})
	apply(t, d, text(map[string]string{"projects/p/a": "1", "projects/p/sub/b": "1"}))
	require.NoError(t, os.Chmod(filepath.Join(root, "projects/p/sub"), 0o750))
	before := readTree(t, root)
	failing = true
	_, err := tryApply(t, d, text(map[string]string{"projects/p/a": "1"}))
	require.ErrorIs(t, err, syscall.EIO)
	assert.True(t, removed)
	assert.Equal(t, before, readTree(t, root))
}

// F14: if the process dies at any step, its new directories get their mode despite the umask, and the owner of their parent. So do those that
// a rollback makes again. A directory that the gateway uses stays as it is.
func TestNewDirectoriesAfterCrash(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	want, without := text(map[string]string{"projects/p/new/deep/a": "1"}), text(map[string]string{"projects/p/b": "1"})
	for _, rollback := range []bool{false, true} {
		for stop, done := 1, false; !done; stop++ {
			ok := t.Run(fmt.Sprintf("rollback %t, step %d", rollback, stop), func(t *testing.T) {
				root, left, uid := seededIn(t, memory(t)), stop, os.Getuid()
				put(t, root, "projects/p/gateway", "")
				if uid == 0 { // otherwise the test cannot change owners
					uid = 2003
					require.NoError(t, os.Chown(filepath.Join(root, "projects/p"), uid, uid))
				}
				next := want
				if rollback {
					d := open(t, root, Options{Around: quick})
					apply(t, d, want)
					require.NoError(t, d.Close())
					next = without
				}
				if d, err := Open(root, Options{Around: func(e safe.Effect, do func() error) error {
					if left--; left < 0 {
						return errCut
					}
					if rollback && e.Op == "create" && e.Path == manifestPath+".new" {
						return syscall.EIO
					}
					return quick(e, do)
				}}); err == nil {
					_, _ = tryApply(t, d, next) // only the directories matter
					require.NoError(t, d.Close())
				}
				done = left >= 0
				theirs := stop%2 == 0 && os.Mkdir(filepath.Join(root, "projects/p/new"), 0o700) == nil
				if theirs {
					put(t, root, "projects/p/new/theirs", "")
				}
				apply(t, open(t, root, Options{Around: quick}), want)
				check := func(dir, mode string, owner int) {
					fi, err := os.Stat(filepath.Join(root, dir))
					require.NoError(t, err)
					assert.Equal(t, mode, fi.Mode().String(), dir)
					assert.Equal(t, uint32(owner), safe.AttrsOf(fi).UID, dir)
				}
				if theirs {
					check("projects/p/new", "drwx------", os.Getuid())
					return
				}
				check("projects/p/new", "drwxr-xr-x", uid)
				check("projects/p/new/deep", "drwxr-xr-x", uid)
			})
			if !ok {
				return
			}
		}
	}
}
