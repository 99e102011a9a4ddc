package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"stoker.io/stoker/agent/plan"
)

// Volume changes the data directory. Every method changes one name or file below an open folder and follows no link.
type Volume struct {
	top *os.Root
	log *slog.Logger
	now func() time.Time
	// around is called around each effect; nil except in tests.
	around func(e effect, do func() error) error
	// plain is set when the file system turns out not to support the flags of renameat2.
	plain   atomic.Bool
	noModes sync.Map // devices of volumes that keep no modes
}

// effect is one step that changes the file system or makes a change durable. Every such step of the package goes
// through Volume.effect in order, so that a test can stop after any of them, and can revert those that a power cut would
// have reverted.
type effect struct {
	op         string // mkdir create fill sync syncdir syncfs rename exchange link remove rmdir chmod chtimes
	path, dest string // relative to the data directory
}

// effect runs one step.
func (v *Volume) effect(e effect, do func() error) error {
	if v.around != nil {
		return v.around(e, do)
	}
	return do()
}

func (v *Volume) mkdir(n *node, name string, perm fs.FileMode) error {
	return v.effect(effect{op: "mkdir", path: n.join(name)}, func() error { return n.root.Mkdir(name, perm) })
}

// create creates a file and opens it for reading and writing. An existing file or link is an error.
func (v *Volume) create(n *node, name string, perm fs.FileMode) (f *os.File, err error) {
	err = v.effect(effect{op: "create", path: n.join(name)}, func() error {
		f, err = n.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, perm)
		return err
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

// fill runs write, which writes the content of the file at path.
func (v *Volume) fill(path string, write func() error) error {
	return v.effect(effect{op: "fill", path: path}, write)
}

func (v *Volume) sync(f *os.File, path string) error {
	return v.effect(effect{op: "sync", path: path}, f.Sync)
}

// syncDir makes the names in a directory durable.
func (v *Volume) syncDir(n *node) error {
	return v.effect(effect{op: "syncdir", path: n.path}, func() error {
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
func (v *Volume) syncFS(n *node) error {
	return v.effect(effect{op: "syncfs", path: n.path}, func() error {
		f, err := n.dirFile()
		if err != nil {
			return err
		}
		return syncfs(f)
	})
}

// rename moves a name and replaces a file at the destination.
func (v *Volume) rename(from *node, a string, to *node, b string) error {
	return v.effect(effect{op: "rename", path: from.join(a), dest: to.join(b)}, func() error {
		return renameat(v.top, from, a, to, b)
	})
}

// renameNew moves a name that must not exist at the destination; otherwise the error is fs.ErrExist.
func (v *Volume) renameNew(from *node, a string, to *node, b string) error {
	err := errNoFlag
	if !v.plain.Load() {
		err = v.effect(effect{op: "rename", path: from.join(a), dest: to.join(b)}, func() error {
			return renameNoReplace(from, a, to, b)
		})
	}
	if !errors.Is(err, errNoFlag) {
		return err
	}
	v.plain.Store(true)
	if err := v.link(from, a, to, b); err == nil {
		return v.remove(from, a)
	} else if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// No rename flags and no hard links (which also applies to directories): check, then move. A name may appear in
	// between.
	if _, err := to.root.Lstat(b); err == nil {
		return &fs.PathError{Op: "rename", Path: to.join(b), Err: fs.ErrExist}
	}
	return v.rename(from, a, to, b)
}

// exchange swaps two names atomically, or returns errNoFlag if the file system cannot.
func (v *Volume) exchange(from *node, a string, to *node, b string) error {
	if v.plain.Load() {
		return errNoFlag
	}
	err := v.effect(effect{op: "exchange", path: from.join(a), dest: to.join(b)}, func() error {
		return renameExchange(from, a, to, b)
	})
	if errors.Is(err, errNoFlag) {
		v.plain.Store(true)
	}
	return err
}

// link gives a file, or a symbolic link itself, a second name.
func (v *Volume) link(from *node, a string, to *node, b string) error {
	return v.effect(effect{op: "link", path: from.join(a), dest: to.join(b)}, func() error {
		return linkat(v.top, from, a, to, b)
	})
}

// remove removes a name that is not a directory. A missing name is not an error.
func (v *Volume) remove(n *node, name string) error {
	err := v.effect(effect{op: "remove", path: n.join(name)}, func() error { return n.root.Remove(name) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// removeTree removes a name and everything below it without following links. A missing name is not an error.
func (v *Volume) removeTree(n *node, name string) error {
	return v.effect(effect{op: "remove", path: n.join(name)}, func() error { return n.root.RemoveAll(name) })
}

// rmdir removes an empty directory.
func (v *Volume) rmdir(n *node, name string) error {
	return v.effect(effect{op: "rmdir", path: n.join(name)}, func() error { return rmdirat(n, name) })
}

// stamp sets the mtime of a name.
func (v *Volume) stamp(n *node, name string, at time.Time) error {
	return v.effect(effect{op: "chtimes", path: n.join(name)}, func() error { return n.root.Chtimes(name, at, at) })
}

// give sets owner and permission bits of a file or directory, and returns the result. It ignores owners that we may not
// set.
func (v *Volume) give(f *os.File, path string, owner attrs, perm fs.FileMode) (fs.FileInfo, error) {
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	is, changed := attrsOf(fi), false
	if is.known && owner.known && (is.uid != owner.uid || is.gid != owner.gid) {
		err := v.effect(effect{op: "chmod", path: path}, func() error { return f.Chown(int(owner.uid), int(owner.gid)) })
		if err != nil && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, errors.ErrUnsupported) {
			return nil, writing(err, "give %s to its owner", path)
		}
		changed = true
	}
	if fi.Mode().Perm() != perm.Perm() {
		keep := fi.Mode() & (fs.ModeSetgid | fs.ModeSticky)
		err := v.effect(effect{op: "chmod", path: path}, func() error { return f.Chmod(perm.Perm() | keep) })
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

// writeIn replaces one of our files atomically: write beside it, sync, rename. renamed reports whether the file is in
// place, even if the error means that it may not be durable.
func (v *Volume) writeIn(n *node, name string, content func(io.Writer) error) (renamed bool, err error) {
	tmp := name + ".new"
	path := n.join(name)
	if err := v.vacate(n, tmp); err != nil {
		return false, writing(err, "clear %s", path)
	}
	f, err := v.create(n, tmp, 0o600)
	if err != nil {
		return false, writing(err, "write %s", path)
	}
	err = v.fill(n.join(tmp), func() error { return content(f) })
	if err == nil {
		err = v.sync(f, n.join(tmp))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return false, errors.Join(writing(err, "write %s", path), v.remove(n, tmp))
	}
	if fi, lerr := n.root.Lstat(name); lerr == nil && !fi.Mode().IsRegular() {
		err = v.setAside(n, name, &irregularError{path, kindOf(fi)})
	}
	if err == nil {
		err = v.rename(n, tmp, n, name)
	}
	if err != nil {
		return false, errors.Join(writing(err, "write %s", path), v.remove(n, tmp))
	}
	return true, writing(v.syncDir(n), "write %s", path)
}

// setAside renames something unexpected at one of our names, because it may be a user's only copy. It neither reads nor
// opens it, so that this works for anything.
func (v *Volume) setAside(n *node, name string, why error) error {
	to := name + asideSuffix
	err := v.renameNew(n, name, n, to)
	for i := 0; errors.Is(err, fs.ErrExist) && i < 100; i++ {
		to = fmt.Sprintf("%s%s-%d", name, asideSuffix, v.now().UnixNano()+int64(i))
		err = v.renameNew(n, name, n, to)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return writing(err, "set %s aside", n.join(name))
	}
	v.log.Warn("set aside what is not the agent's", "path", n.join(name), "as", n.join(to), "error", why)
	return writing(v.syncDir(n), "set %s aside", n.join(name))
}

// vacate frees one of our names: it removes a regular file and sets anything else aside.
func (v *Volume) vacate(n *node, name string) error {
	if fi, err := n.root.Lstat(name); err == nil && !fi.Mode().IsRegular() {
		return v.setAside(n, name, &irregularError{n.join(name), kindOf(fi)})
	}
	return v.remove(n, name)
}

// asideSuffix is appended to the name of a file that is set aside.
const asideSuffix = ".damaged"

// clearTree removes a folder of ours. If it has something that cannot be removed, it is set aside.
func (v *Volume) clearTree(n *node, name string) error {
	err := v.removeTree(n, name)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return v.setAside(n, name, err)
}

// ownFolder opens .stoker in a directory, or creates it with the owner of that directory. Anything else of that name is
// set aside.
func (v *Volume) ownFolder(in *node) (*node, error) {
	path := in.join(ownDir)
	own, err := in.open(ownDir)
	if err == nil {
		return own, nil
	}
	if _, blocked := errors.AsType[*blockedError](err); blocked {
		if err = v.setAside(in, ownDir, err); err != nil {
			return nil, err
		}
		err = fs.ErrNotExist
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open the agent's own folder: %w", err)
	}
	parent, err := in.stat()
	if err != nil {
		return nil, err
	}
	if err := v.mkdir(in, ownDir, 0o700); err != nil {
		return nil, writing(err, "make %s", path)
	}
	if own, err = in.open(ownDir); err != nil {
		return nil, fmt.Errorf("open the agent's own folder: %w", err)
	}
	if err := errors.Join(v.ownDir(own, parent, 0o700), v.syncDir(in)); err != nil {
		own.close()
		return nil, writing(err, "make %s", path)
	}
	return own, nil
}

// ownDir gives a new directory the owner of another one.
func (v *Volume) ownDir(n *node, like fs.FileInfo, perm fs.FileMode) error {
	f, err := n.dirFile()
	if err != nil {
		return err
	}
	_, err = v.give(f, n.path, attrsOf(like), perm)
	return err
}

// learnModes does the same by a staged file, for other volumes in the data directory.
func (v *Volume) learnModes(fi fs.FileInfo, perm fs.FileMode) {
	if (fi.Mode()^perm)&0o111 != 0 {
		v.noModes.Store(attrsOf(fi).dev, true)
	}
}

func (v *Volume) stat(fi fs.FileInfo) plan.Stat {
	st := statOf(fi)
	_, st.NoModes = v.noModes.Load(attrsOf(fi).dev)
	return st
}

// sameExec reports whether a file's executable bit is as wanted, as far as the volume can tell.
func (v *Volume) sameExec(fi fs.FileInfo, exec bool) bool {
	st := v.stat(fi)
	return st.NoModes || st.Exec == exec
}
