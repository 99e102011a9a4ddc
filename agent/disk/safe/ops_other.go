//go:build !linux

package safe

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"syscall"

	"stoker.io/stoker/agent/plan"
)

// Outside Linux the package keeps its promises about crashes, but a replaced file is missing for a moment, as on a file
// system that cannot exchange; and a rename names its directories by path through os.Root, which follows links inside
// the data directory. Owners, inodes, mounts and free space are not known. This is meant for development. See ops_linux.go for each name.

var ErrNoExchange = errors.New("rename flag not supported")

func renameat(top *os.Root, from *Folder, a string, to *Folder, b string) error {
	return top.Rename(from.Join(a), to.Join(b))
}

func renameNoReplace(*Folder, string, *Folder, string) error { return ErrNoExchange }

func renameExchange(*Folder, string, *Folder, string) error { return ErrNoExchange }

func linkat(top *os.Root, from *Folder, a string, to *Folder, b string) error {
	return top.Link(from.Join(a), to.Join(b))
}

func rmdirat(n *Folder, name string) error {
	fi, err := n.Lstat(name)
	if err != nil {
		return err
	}
	if !fi.IsDir() {
		return fmt.Errorf("%s is not a directory", n.Join(name))
	}
	return n.Root.Remove(name)
}

func CheckWritable(*Folder) error { return nil }

func InheritAlike(*Folder, *Folder) (bool, error) { return false, nil }

const HaveSyncfs = false

func syncfs(*Folder) error { return errors.ErrUnsupported }

type Mount struct{}

func MountOf(*Folder) (Mount, error) { return Mount{}, nil }

type Attrs struct {
	Known    bool
	UID, GID uint32
	Dev, Ino uint64
	Links    uint64
	Ctime    int64
}

func AttrsOf(fs.FileInfo) Attrs { return Attrs{} }

func isInvalid(err error) bool { return errors.Is(err, syscall.EINVAL) }

func IsNotEmpty(err error) bool {
	return errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, fs.ErrExist)
}

func lstatAt(n *Folder, name string) (fs.FileInfo, error) { return n.Root.Lstat(name) }

func openFileAt(n *Folder, name string, flag int, perm fs.FileMode) (*os.File, error) {
	return n.Root.OpenFile(name, flag, perm)
}

// openDirAt opens a directory: what was opened must be what Lstat saw.
func openDirAt(n *Folder, name string) (*Folder, error) {
	want, err := n.Root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !want.IsDir() {
		return nil, &BlockedError{n.Join(name), KindOf(want.Mode())}
	}
	r, err := n.Root.OpenRoot(name)
	if err != nil {
		// It may have been replaced meanwhile, for example by a link out of the data directory, which os.Root refuses.
		if now, statErr := n.Root.Lstat(name); statErr == nil && !now.IsDir() {
			return nil, &BlockedError{n.Join(name), KindOf(now.Mode())}
		}
		return nil, err
	}
	got, err := r.Stat(".")
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	if !os.SameFile(want, got) { // replaced meanwhile, most likely by a link, which OpenRoot followed
		return nil, errors.Join(&BlockedError{n.Join(name), plan.Link}, r.Close())
	}
	return &Folder{Path: n.Join(name), Root: r}, nil
}

func openRootOf(*Folder) (*os.Root, error) { return nil, errors.ErrUnsupported } // each Folder has a Root

func listAt(n *Folder) (*os.File, error) { return n.Root.Open(".") }

func mkdirAt(n *Folder, name string, perm fs.FileMode) error { return n.Root.Mkdir(name, perm) }

func unlinkAt(n *Folder, name string) error { return n.Root.Remove(name) }

// FreeBytes returns that there is always room.
func FreeBytes(*os.File) (int64, error) { return math.MaxInt64, nil }
