//go:build !linux

package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// Outside Linux the package keeps its promises about crashes, but a replaced file is missing for a moment, as on a file
// system that cannot exchange; and a rename names its directories by path through os.Root, which follows links inside
// the data directory. Owners are not preserved. This is meant for development.

var errNoFlag = errors.New("rename flag not supported")

func renameat(top *os.Root, from *node, a string, to *node, b string) error {
	return top.Rename(from.join(a), to.join(b))
}

func renameNoReplace(*node, string, *node, string) error { return errNoFlag }

func renameExchange(*node, string, *node, string) error { return errNoFlag }

func linkat(top *os.Root, from *node, a string, to *node, b string) error {
	return top.Link(from.join(a), to.join(b))
}

func rmdirat(n *node, name string) error {
	fi, err := n.root.Lstat(name)
	if err != nil {
		return err
	}
	if !fi.IsDir() {
		return fmt.Errorf("%s is no directory", n.join(name))
	}
	return n.root.Remove(name)
}

func mayWrite(*node) error { return nil }

const haveSyncfs = false

func syncfs(*os.File) error { return errors.ErrUnsupported }

type mount struct{}

func mountOf(*node) (mount, error) { return mount{}, nil }

// mountPoints returns nil: mount points are not known here.
func mountPoints() ([]string, error) { return nil, nil }

type attrs struct {
	known    bool
	uid, gid uint32
	dev, ino uint64
	links    uint64
	ctime    int64
}

func attrsOf(fs.FileInfo) attrs { return attrs{} }

func isInvalid(err error) bool { return errors.Is(err, syscall.EINVAL) }
func isNotEmpty(err error) bool {
	return errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, fs.ErrExist)
}
