package safe

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNoExchange means that the file system or kernel does not support a flag of renameat2.
var ErrNoExchange = errors.New("rename flag not supported")

// withFD calls do with the descriptor of a directory, and again if a signal interrupted it, as happens on network file systems.
func withFD(folder *Folder, do func(fd int) error) error {
	f, err := folder.dirFile()
	if err != nil {
		return err
	}
	c, err := f.SyscallConn() // unlike Fd, it keeps a concurrent Close from freeing the descriptor
	if err != nil {
		return err
	}
	var failed error
	err = c.Control(func(fd uintptr) {
		failed = do(int(fd))
		for try := 1; try < 1000 && errors.Is(failed, unix.EINTR); try++ {
			failed = do(int(fd))
		}
	})
	return errors.Join(failed, err)
}

// named is withFD for a system call about one name in the directory.
func named(op string, folder *Folder, name string, do func(fd int) error) error {
	err := unix.EINVAL // a name with more parts could lead through a link
	if name != "" && name != "." && name != ".." && !strings.Contains(name, "/") {
		e := withFD(folder, do)
		if e == nil {
			return nil
		}
		return &fs.PathError{Op: op, Path: name, Err: e}
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// fileInfo is the result of a stat by descriptor and name.
type fileInfo struct {
	name string
	st   unix.Stat_t
}

func (i *fileInfo) Name() string       { return i.name }
func (i *fileInfo) Size() int64        { return i.st.Size }
func (i *fileInfo) ModTime() time.Time { return time.Unix(0, i.st.Mtim.Nano()) }
func (i *fileInfo) IsDir() bool        { return i.st.Mode&syscall.S_IFMT == syscall.S_IFDIR }
func (i *fileInfo) Sys() any           { return &i.st }

func (i *fileInfo) Mode() fs.FileMode {
	m := fs.FileMode(i.st.Mode & 0o777)
	switch i.st.Mode & syscall.S_IFMT {
	case syscall.S_IFREG:
	case syscall.S_IFDIR:
		m |= fs.ModeDir
	case syscall.S_IFLNK:
		m |= fs.ModeSymlink
	case syscall.S_IFIFO:
		m |= fs.ModeNamedPipe
	case syscall.S_IFSOCK:
		m |= fs.ModeSocket
	case syscall.S_IFCHR:
		m |= fs.ModeDevice | fs.ModeCharDevice
	case syscall.S_IFBLK:
		m |= fs.ModeDevice
	default:
		m |= fs.ModeIrregular
	}
	if i.st.Mode&syscall.S_ISUID != 0 {
		m |= fs.ModeSetuid
	}
	if i.st.Mode&syscall.S_ISGID != 0 {
		m |= fs.ModeSetgid
	}
	if i.st.Mode&syscall.S_ISVTX != 0 {
		m |= fs.ModeSticky
	}
	return m
}

func lstatAt(folder *Folder, name string) (fs.FileInfo, error) {
	fi := &fileInfo{name: name}
	err := named("lstat", folder, name, func(fd int) error { return unix.Fstatat(fd, name, &fi.st, unix.AT_SYMLINK_NOFOLLOW) })
	if err != nil {
		return nil, err
	}
	return fi, nil
}

func openFileAt(folder *Folder, name string, flag int, perm fs.FileMode) (f *os.File, err error) {
	err = named("open", folder, name, func(fd int) error {
		got, err := unix.Openat(fd, name, flag|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_LARGEFILE, uint32(perm.Perm()))
		if err == nil {
			f = os.NewFile(uintptr(got), folder.Join(name))
		}
		return err
	})
	return f, err
}

// openDirAt opens a directory. The kernel refuses everything else, and does not follow a link.
func openDirAt(folder *Folder, name string) (*Folder, error) {
	f, err := openFileAt(folder, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err == nil {
		return &Folder{Path: folder.Join(name), dir: f}, nil
	}
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		if fi, serr := lstatAt(folder, name); serr == nil && !fi.IsDir() {
			return nil, &BlockedError{folder.Join(name), KindOf(fi.Mode())}
		}
	}
	return nil, err
}

// openRootOf opens a directory that is open already as an os.Root.
func openRootOf(folder *Folder) (r *os.Root, err error) {
	err = withFD(folder, func(fd int) error {
		r, err = os.OpenRoot("/proc/self/fd/" + strconv.Itoa(fd))
		return err
	})
	return r, err
}

// listAt opens a directory again, to list its names. ReadDir of a file that was opened through an os.Root calls lstat for each
// entry, which costs more than the rest of a walk. Here the types come from the file system.
func listAt(folder *Folder) (f *os.File, err error) {
	err = withFD(folder, func(fd int) error {
		got, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_LARGEFILE, 0)
		if err == nil {
			// If the file system returns no types, ReadDir calls lstat below this name.
			f = os.NewFile(uintptr(got), "/proc/self/fd/"+strconv.Itoa(got))
		}
		return err
	})
	return f, err
}

func mkdirAt(folder *Folder, name string, perm fs.FileMode) error {
	return named("mkdir", folder, name, func(fd int) error { return unix.Mkdirat(fd, name, uint32(perm.Perm())) })
}

func unlinkAt(folder *Folder, name string) error {
	return named("remove", folder, name, func(fd int) error { return unix.Unlinkat(fd, name, 0) })
}

// at2 calls do, a system call about a name in each of two directories, with the descriptors of both.
func at2(op string, from *Folder, a string, to *Folder, b string, do func(fa, fb int) error) error {
	err := withFD(from, func(fa int) error {
		return withFD(to, func(fb int) error {
			return do(fa, fb)
		})
	})
	if err == nil {
		return nil
	}
	return &os.LinkError{Op: op, Old: from.Join(a), New: to.Join(b), Err: err}
}

// renameat moves a name. Only other systems use the os.Root, which is that of the data directory.
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

func rmdirat(folder *Folder, name string) error {
	return at2("rmdir", folder, name, folder, name, func(fd, _ int) error { return unix.Unlinkat(fd, name, unix.AT_REMOVEDIR) })
}

// CheckWritable returns an error if names in a directory cannot be changed.
func CheckWritable(folder *Folder) error {
	return withFD(folder, func(fd int) error {
		return os.NewSyscallError("faccessat", unix.Faccessat(fd, ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS))
	})
}

// InheritAlike reports whether what is created in two directories of the same mount inherits the same group and no ACL.
func InheritAlike(a, b *Folder) (bool, error) {
	x, err := inherited(a)
	if err != nil {
		return false, err
	}
	y, err := inherited(b)
	return x == y && !x.acl, err
}

// inheritance is what a directory passes on to new entries.
type inheritance struct {
	gid    uint32 // with setgid
	setgid bool
	acl    bool
}

func inherited(folder *Folder) (h inheritance, err error) {
	fi, err := folder.Stat()
	if err != nil {
		return h, err
	}
	if h.setgid = fi.Mode()&fs.ModeSetgid != 0; h.setgid {
		h.gid = AttrsOf(fi).GID
	}
	return h, withFD(folder, func(fd int) error {
		size, err := unix.Fgetxattr(fd, "system.posix_acl_default", nil)
		h.acl = err == nil && size > 0
		return nil
	})
}

// HaveSyncfs reports whether one call can make a whole file system durable.
const HaveSyncfs = true

func syncfs(folder *Folder) error {
	return withFD(folder, func(fd int) error { return os.NewSyscallError("syncfs", unix.Syncfs(fd)) })
}

// Mount identifies a mount, which a rename cannot cross. It is finer than a device, because parts of a volume may be
// mounted several times.
type Mount struct{ dev, id uint64 }

// MountOf returns the mount of a folder.
func MountOf(folder *Folder) (m Mount, err error) {
	fi, err := folder.Stat()
	if err != nil {
		return Mount{}, err
	}
	m.dev = AttrsOf(fi).Dev
	err = withFD(folder, func(fd int) error {
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
	switch st := fi.Sys().(type) {
	case *unix.Stat_t: // of a fileInfo
		return Attrs{
			Known: true, UID: st.Uid, GID: st.Gid, Dev: st.Dev, Ino: st.Ino,
			Links: uint64(st.Nlink), Ctime: st.Ctim.Nano(), //nolint:unconvert // as wide as the architecture has it
		}
	case *syscall.Stat_t:
		return Attrs{
			Known: true, UID: st.Uid, GID: st.Gid, Dev: st.Dev, Ino: st.Ino,
			Links: uint64(st.Nlink), Ctime: st.Ctim.Nano(), //nolint:unconvert // as above
		}
	}
	return Attrs{}
}

func isInvalid(err error) bool { return errors.Is(err, unix.EINVAL) }

// IsNotEmpty reports whether a directory could not be removed because it is not empty.
func IsNotEmpty(err error) bool {
	return errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST)
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
