package safe

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrNoExchange means that the file system or kernel does not support a flag of renameat2.
var ErrNoExchange = errors.New("rename flag not supported")

// withFD calls do with the descriptor of a directory.
func withFD(n *Folder, do func(fd int) error) error {
	f, err := n.dirFile()
	if err != nil {
		return err
	}
	defer runtime.KeepAlive(f)
	return do(int(f.Fd()))
}

// at2 calls do, a system call about a name in each of two directories, with the descriptors of both.
func at2(op string, from *Folder, a string, to *Folder, b string, do func(fa, fb int) error) error {
	err := withFD(from, func(fa int) error {
		return withFD(to, func(fb int) error {
			err := do(fa, fb)
			for try := 1; try < 1000 && errors.Is(err, unix.EINTR); try++ { // signals can interrupt it on network file systems
				err = do(fa, fb)
			}
			return err
		})
	})
	if err == nil {
		return nil
	}
	return &os.LinkError{Op: op, Old: from.Join(a), New: to.Join(b), Err: err}
}

func renameat(_ *os.Root, from *Folder, a string, to *Folder, b string) error {
	return at2("rename", from, a, to, b, func(fa, fb int) error { return unix.Renameat(fa, a, fb, b) })
}

func renameNoReplace(from *Folder, a string, to *Folder, b string) error {
	return at2("rename", from, a, to, b, func(fa, fb int) error {
		return flagged(unix.Renameat2(fa, a, fb, b, unix.RENAME_NOREPLACE))
	})
}

func renameExchange(from *Folder, a string, to *Folder, b string) error {
	return at2("exchange", from, a, to, b, func(fa, fb int) error {
		return flagged(unix.Renameat2(fa, a, fb, b, unix.RENAME_EXCHANGE))
	})
}

// flagged returns ErrNoExchange for the errors of a renameat2 whose flag is not supported.
func flagged(err error) error {
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) {
		return ErrNoExchange
	}
	return err
}

func linkat(_ *os.Root, from *Folder, a string, to *Folder, b string) error {
	return at2("link", from, a, to, b, func(fa, fb int) error { return unix.Linkat(fa, a, fb, b, 0) })
}

func rmdirat(n *Folder, name string) error {
	return at2("rmdir", n, name, n, name, func(fd, _ int) error { return unix.Unlinkat(fd, name, unix.AT_REMOVEDIR) })
}

// MayWrite returns an error if names in a directory cannot be changed.
func MayWrite(n *Folder) error {
	return withFD(n, func(fd int) error {
		return os.NewSyscallError("faccessat", unix.Faccessat(fd, ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS))
	})
}

// HaveSyncfs reports whether one call can make a whole file system durable.
const HaveSyncfs = true

func syncfs(n *Folder) error {
	return withFD(n, func(fd int) error { return os.NewSyscallError("syncfs", unix.Syncfs(fd)) })
}

// Mount identifies a mount, which a rename cannot cross. It is finer than a device, because parts of a volume may be
// mounted several times.
type Mount struct{ dev, id uint64 }

// MountOf returns the mount of a folder.
func MountOf(n *Folder) (m Mount, err error) {
	fi, err := n.Stat()
	if err != nil {
		return Mount{}, err
	}
	m.dev = AttrsOf(fi).Dev
	err = withFD(n, func(fd int) error {
		var st unix.Statx_t
		if unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st) == nil && st.Mask&unix.STATX_MNT_ID != 0 { // since Linux 5.8
			m.id = st.Mnt_id
		}
		return nil
	})
	return m, err
}

// Attrs are the non-portable attributes of a file.
type Attrs struct {
	Known    bool
	UID, GID uint32
	Dev, Ino uint64
	Links    uint64
	Ctime    int64 // nanoseconds since 1970
}

// AttrsOf returns the attributes in fi.
func AttrsOf(fi fs.FileInfo) Attrs {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return Attrs{}
	}
	return Attrs{
		Known: true, UID: st.Uid, GID: st.Gid, Dev: st.Dev, Ino: st.Ino,
		Links: uint64(st.Nlink), Ctime: st.Ctim.Nano(), //nolint:unconvert // as wide as the architecture has it
	}
}

func isInvalid(err error) bool { return errors.Is(err, unix.EINVAL) }

// IsNotEmpty reports whether a directory could not be removed because it is not empty.
func IsNotEmpty(err error) bool {
	return errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST)
}

// eachEntry calls do for the entries of a directory, in no order, until it returns an error. ReadDir of a file that was opened
// through an os.Root calls lstat for each entry, which costs more than the rest of a walk. With a copy of the descriptor, the
// types come from the file system.
func eachEntry(f *os.File, do func(fs.DirEntry) error) error {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	// If the file system returns no types, ReadDir calls lstat below this name.
	d := os.NewFile(uintptr(fd), "/proc/self/fd/"+strconv.Itoa(fd))
	return errors.Join(readEntries(d, do), d.Close())
}

// FreeBytes returns how many bytes a user may write to the file system of f.
func FreeBytes(f *os.File) (int64, error) {
	defer runtime.KeepAlive(f)
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return 0, os.NewSyscallError("fstatfs", err)
	}
	size := max(uint64(st.Bsize), 1)
	return int64(min(st.Bavail, math.MaxInt64/size) * size), nil
}
