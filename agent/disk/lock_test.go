//go:build linux

package disk

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"stoker.io/stoker/agent/disk/lock"
	"stoker.io/stoker/agent/disk/safe"
)

func access(t testing.TB, f *os.File) int {
	t.Helper()
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	require.NoError(t, err)
	return flags & unix.O_ACCMODE
}

// Linux emulates flock on NFS with byte-range locks. An exclusive one needs a file that is open for writing.
func TestLockOnNFS(t *testing.T) {
	for name, refusal := range map[string]unix.Errno{"NFSv4": unix.EBADF, "some others": unix.EIO} {
		t.Run(name, func(t *testing.T) {
			o := Options{flock: func(f *os.File) error {
				if access(t, f) == unix.O_RDONLY {
					return os.NewSyscallError("flock", refusal)
				}
				return lock.Flock(f)
			}}
			root := seeded(t)
			d := open(t, root, o)
			assert.Equal(t, unix.O_RDWR, access(t, d.lock.File))
			_, err := Open(root, o)
			require.ErrorIs(t, err, ErrLocked)
			assert.Contains(t, err.Error(), "process ")
			require.NoError(t, d.Close())
			open(t, root, o)
		})
	}
}

// If the retry with a writable file also fails, Open returns the kernel's error and closes the lock file.
func TestLockRefused(t *testing.T) {
	root := seeded(t)
	for _, refusal := range []unix.Errno{unix.EBADF, unix.EIO, unix.EINVAL} {
		t.Run(refusal.Error(), func(t *testing.T) {
			_, err := Open(root, Options{flock: func(*os.File) error { return os.NewSyscallError("flock", refusal) }})
			require.ErrorIs(t, err, refusal)
		})
	}
	for _, name := range openFiles(t) {
		assert.NotEqual(t, filepath.Join(root, safe.OwnDir, lock.FileName), name)
	}
}

// A lock file open for writing would prevent a remount of the volume as read-only.
func TestLockFileIsOpenForReading(t *testing.T) {
	d := open(t, seeded(t), Options{})
	assert.Equal(t, unix.O_RDONLY, access(t, d.lock.File))
}

// A child process holds the open files of its parent until exec. Close must release the lock anyway.
func TestCloseReleasesLockOfChildProcesses(t *testing.T) {
	root := seeded(t)
	d := open(t, root, Options{})
	child, err := unix.FcntlInt(d.lock.File.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	require.NoError(t, err)
	defer func() { assert.NoError(t, unix.Close(child)) }()
	require.NoError(t, d.Close())
	open(t, root, Options{})
}

func openFiles(t testing.TB) (names []string) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, e := range list {
		if name, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil { // otherwise closed in the meantime
			names = append(names, name)
		}
	}
	return names
}
