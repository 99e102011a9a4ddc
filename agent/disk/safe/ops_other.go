//go:build !linux

package safe

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"syscall"
)

// Outside Linux the package keeps its promises about crashes, but a replaced file is missing for a moment, as on a file
// system that cannot exchange; and a rename names its directories by path through os.Root, which follows links inside
// the data directory. Owners are not preserved. This is meant for development.

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
	fi, err := n.Root.Lstat(name)
	if err != nil {
		return err
	}
	if !fi.IsDir() {
		return fmt.Errorf("%s is not a directory", n.Join(name))
	}
	return n.Root.Remove(name)
}

func MayWrite(*Folder) error { return nil }

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

func eachEntry(f *os.File, do func(fs.DirEntry) error) error { return readEntries(f, do) }

// FreeBytes returns that there is always room.
func FreeBytes(*os.File) (int64, error) { return math.MaxInt64, nil }
