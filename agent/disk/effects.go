package disk

import (
	"errors"
	"io/fs"
	"os"
	"time"
)

// effect is one step that changes the file system or makes a change durable. Every such step of the package goes
// through Dir.effect in order, so that a test can stop after any of them, and can revert those that a power cut would
// have reverted.
type effect struct {
	op         string // mkdir create fill sync syncdir syncfs rename exchange link remove rmdir chmod chtimes
	path, dest string // relative to the data directory
}

// effect runs one step.
func (d *Dir) effect(e effect, do func() error) error {
	if d.o.around != nil {
		return d.o.around(e, do)
	}
	return do()
}

func (d *Dir) mkdir(n *node, name string, perm fs.FileMode) error {
	return d.effect(effect{op: "mkdir", path: n.join(name)}, func() error { return n.root.Mkdir(name, perm) })
}

// create creates a file and opens it for reading and writing. An existing file or link is an error.
func (d *Dir) create(n *node, name string, perm fs.FileMode) (f *os.File, err error) {
	err = d.effect(effect{op: "create", path: n.join(name)}, func() error {
		f, err = n.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, perm)
		return err
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

// fill runs write, which writes the content of the file at path.
func (d *Dir) fill(path string, write func() error) error {
	return d.effect(effect{op: "fill", path: path}, write)
}

func (d *Dir) sync(f *os.File, path string) error {
	return d.effect(effect{op: "sync", path: path}, f.Sync)
}

// syncDir makes the names in a directory durable.
func (d *Dir) syncDir(n *node) error {
	return d.effect(effect{op: "syncdir", path: n.path}, func() error {
		f, err := n.dirFile()
		if err != nil {
			return err
		}
		if err := f.Sync(); err != nil && !errors.Is(err, errors.ErrUnsupported) && !isInvalid(err) {
			return err
		}
		return nil
	})
}

// syncFS makes everything on the file system of a directory durable.
func (d *Dir) syncFS(n *node) error {
	return d.effect(effect{op: "syncfs", path: n.path}, func() error {
		f, err := n.dirFile()
		if err != nil {
			return err
		}
		return syncfs(f)
	})
}

// rename moves a name and replaces a file at the destination.
func (d *Dir) rename(from *node, a string, to *node, b string) error {
	return d.effect(effect{op: "rename", path: from.join(a), dest: to.join(b)}, func() error {
		return renameat(d.top, from, a, to, b)
	})
}

// renameNew moves a name that must not exist at the destination; otherwise the error is fs.ErrExist.
func (d *Dir) renameNew(from *node, a string, to *node, b string) error {
	err := errNoFlag
	if !d.plainRename.Load() {
		err = d.effect(effect{op: "rename", path: from.join(a), dest: to.join(b)}, func() error {
			return renameNoReplace(from, a, to, b)
		})
	}
	if !errors.Is(err, errNoFlag) {
		return err
	}
	d.plainRename.Store(true)
	if err := d.link(from, a, to, b); err == nil {
		return d.remove(from, a)
	} else if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// No rename flags and no hard links (which also applies to directories): check, then move. A name may appear in
	// between.
	if _, err := to.root.Lstat(b); err == nil {
		return &fs.PathError{Op: "rename", Path: to.join(b), Err: fs.ErrExist}
	}
	return d.rename(from, a, to, b)
}

// exchange swaps two names atomically, or returns errNoFlag if the file system cannot.
func (d *Dir) exchange(from *node, a string, to *node, b string) error {
	if d.plainRename.Load() {
		return errNoFlag
	}
	err := d.effect(effect{op: "exchange", path: from.join(a), dest: to.join(b)}, func() error {
		return renameExchange(from, a, to, b)
	})
	if errors.Is(err, errNoFlag) {
		d.plainRename.Store(true)
	}
	return err
}

// link gives a file, or a symbolic link itself, a second name.
func (d *Dir) link(from *node, a string, to *node, b string) error {
	return d.effect(effect{op: "link", path: from.join(a), dest: to.join(b)}, func() error {
		return linkat(d.top, from, a, to, b)
	})
}

// remove removes a name that is not a directory. A missing name is not an error.
func (d *Dir) remove(n *node, name string) error {
	err := d.effect(effect{op: "remove", path: n.join(name)}, func() error { return n.root.Remove(name) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// removeTree removes a name and everything below it without following links. A missing name is not an error.
func (d *Dir) removeTree(n *node, name string) error {
	return d.effect(effect{op: "remove", path: n.join(name)}, func() error { return n.root.RemoveAll(name) })
}

// rmdir removes an empty directory.
func (d *Dir) rmdir(n *node, name string) error {
	return d.effect(effect{op: "rmdir", path: n.join(name)}, func() error { return rmdirat(n, name) })
}

// stamp sets the mtime of a name.
func (d *Dir) stamp(n *node, name string, at time.Time) error {
	return d.effect(effect{op: "chtimes", path: n.join(name)}, func() error { return n.root.Chtimes(name, at, at) })
}

// give sets owner and permission bits of a file or directory, and returns the result. It ignores owners that we may not
// set.
func (d *Dir) give(f *os.File, path string, owner attrs, perm fs.FileMode) (fs.FileInfo, error) {
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	is, changed := attrsOf(fi), false
	if is.known && owner.known && (is.uid != owner.uid || is.gid != owner.gid) {
		err := d.effect(effect{op: "chmod", path: path}, func() error { return f.Chown(int(owner.uid), int(owner.gid)) })
		if err != nil && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, errors.ErrUnsupported) {
			return nil, writing(err, "give %s to its owner", path)
		}
		changed = true
	}
	if fi.Mode().Perm() != perm.Perm() {
		keep := fi.Mode() & (fs.ModeSetgid | fs.ModeSticky)
		err := d.effect(effect{op: "chmod", path: path}, func() error { return f.Chmod(perm.Perm() | keep) })
		if err != nil && !errors.Is(err, fs.ErrPermission) { // not permitted on a share whose files all belong to another user
			return nil, writing(err, "set the mode of %s", path)
		}
		changed = true
	}
	if !changed {
		return fi, nil
	}
	return f.Stat()
}
