//go:build linux

package disk

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// bind mounts a file or directory over another one until the test ends.
func bind(t *testing.T, what, over string) {
	t.Helper()
	require.NoError(t, unix.Mount(what, over, "", unix.MS_BIND, ""))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(over, 0)) })
}

func TestMountsListsFilesOnly(t *testing.T) {
	if !inChildProcess(t, true) {
		return
	}
	root, other := seeded(t), t.TempDir()
	secret := filepath.Join(other, "secret")
	for _, p := range []string{"config/a b\\c", "config/dir/x", "projects/p/x"} {
		put(t, root, p, "beneath")
	}
	require.NoError(t, os.WriteFile(secret, []byte("SECRET"), 0o600))
	require.NoError(t, os.WriteFile(root+"-beside", nil, 0o600))
	bind(t, secret, filepath.Join(root, "config/a b\\c"))
	bind(t, other, filepath.Join(root, "config/dir"))
	bind(t, secret, root+"-beside")
	link := filepath.Join(t.TempDir(), "data")
	require.NoError(t, os.Symlink(root, link))
	for _, at := range []string{root, link, root + "/"} {
		t.Run(at, func(t *testing.T) {
			got, err := Mounts(at)
			require.NoError(t, err)
			assert.Equal(t, []string{`config/a b\c`}, got)
		})
	}
}

// If a file becomes a mount between the plan and the sync, the sync rolls back and the error names the likely cause.
func TestMountOverFileDuringSyncRollsBack(t *testing.T) {
	if !inChildProcess(t, true) {
		return
	}
	root, one := seeded(t), text(map[string]string{"config/x": "1", "projects/p/a": "1"})
	d := open(t, root, Options{})
	apply(t, d, one)
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("SECRET"), 0o600))
	t.Run("mounted", func(t *testing.T) {
		bind(t, secret, filepath.Join(root, "config/x"))
		res, err := tryApply(t, d, text(map[string]string{"config/x": "2", "projects/p/a": "2"}))
		require.ErrorIs(t, err, syscall.EBUSY)
		require.ErrorContains(t, err, "config/x")
		require.ErrorContains(t, err, "a volume was mounted there")
		assert.False(t, res.Applied)
		assert.Equal(t, "1", contents(t, root)["projects/p/a"])
	})
	assert.Equal(t, "1", contents(t, root)["config/x"], "the file below the mount is unchanged")
	assertNoLeftovers(t, root)
}

// An empty directory that the agent created stays if it is a mount point.
func TestDirectoryBecomesMount(t *testing.T) {
	if !inChildProcess(t, true) {
		return
	}
	root, volume := seeded(t), t.TempDir()
	d := open(t, root, Options{})
	apply(t, d, text(map[string]string{"config/mine/x": "1", "projects/p/a": "1"}))
	put(t, volume, "x", "1")
	t.Run("mounted", func(t *testing.T) {
		bind(t, volume, filepath.Join(root, "config/mine"))
		two := text(map[string]string{"projects/p/a": "2"})
		apply(t, d, two)
		assert.Equal(t, "2", contents(t, root)["projects/p/a"])
		assert.NoFileExists(t, filepath.Join(volume, "x"))
		assert.DirExists(t, filepath.Join(root, "config/mine"))
		require.NoError(t, d.Close()) // it holds a file descriptor of the mount
	})
}
