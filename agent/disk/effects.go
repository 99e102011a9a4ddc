package disk

import (
	"errors"
	"io/fs"
	"os"
	"time"
)

// effect is one step that changes the file system or makes a change durable. Every such step of the package goes
// through Dir.effect, in the order in which it happens: so a test can stop after any of them, and can take back those
// that a power cut would have taken back.
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

// create makes a new file and opens it for reading and writing. What is there already, a link too, is an error.
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

// fill runs what writes the content of the file at path.
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

// rename moves a name; a file that is at the destination goes.
func (d *Dir) rename(from *node, a string, to *node, b string) error {
	return d.effect(effect{op: "rename", path: from.join(a), dest: to.join(b)}, func() error {
		return renameat(d.top, from, a, to, b)
	})
}

// renameNew moves a name to where nothing is; fs.ErrExist where something is.
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
	// No flags and no hard links (also what a directory gives): look, then move. Between the two a name may appear.
	if _, err := to.root.Lstat(b); err == nil {
		return &fs.PathError{Op: "rename", Path: to.join(b), Err: fs.ErrExist}
	}
	return d.rename(from, a, to, b)
}

// exchange swaps two names in one step; errNoFlag where the file system cannot.
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

// link gives a file a second name; the link itself where the file is a symbolic link.
func (d *Dir) link(from *node, a string, to *node, b string) error {
	return d.effect(effect{op: "link", path: from.join(a), dest: to.join(b)}, func() error {
		return linkat(d.top, from, a, to, b)
	})
}

// remove drops the name of something that is no directory. That nothing is there is no error.
func (d *Dir) remove(n *node, name string) error {
	err := d.effect(effect{op: "remove", path: n.join(name)}, func() error { return n.root.Remove(name) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// removeTree drops a name and all below it, following nothing. That nothing is there is no error.
func (d *Dir) removeTree(n *node, name string) error {
	return d.effect(effect{op: "remove", path: n.join(name)}, func() error { return n.root.RemoveAll(name) })
}

// rmdir drops an empty directory, and nothing else.
func (d *Dir) rmdir(n *node, name string) error {
	return d.effect(effect{op: "rmdir", path: n.join(name)}, func() error { return rmdirat(n, name) })
}

// stamp gives a name another mtime.
func (d *Dir) stamp(n *node, name string, at time.Time) error {
	return d.effect(effect{op: "chtimes", path: n.join(name)}, func() error { return n.root.Chtimes(name, at, at) })
}

// give gives a file or directory of ours the owner and the permission bits it should have, and returns what it then is;
// the owner only as far as we may.
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
		if err != nil && !errors.Is(err, fs.ErrPermission) { // of a share whose files all belong to another user
			return nil, writing(err, "set the mode of %s", path)
		}
		changed = true
	}
	if !changed {
		return fi, nil
	}
	return f.Stat()
}
