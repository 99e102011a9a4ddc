package safe

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Volume changes the data directory. Its methods change names and files below open folders; for links, see Folder.
type Volume struct {
	Top *os.Root
	Log *slog.Logger
	Now func() time.Time
	// Around is called around each effect; nil except in tests.
	Around func(e Effect, do func() error) error
	// NoExchange is set when a file system turns out not to support the flags of renameat2.
	NoExchange atomic.Bool
	// NoModes has the device number of each file system that does not store permission bits.
	NoModes sync.Map
}

// Effect is one step that changes the file system or makes a change durable. Every such step goes through Volume.Effect, so
// that a test can stop after any of them, and can revert those that a power cut would have reverted.
type Effect struct {
	Op         string // mkdir create fill sync syncdir syncfs rename exchange link remove rmdir chown chmod chtimes
	Path, Dest string // relative to the data directory
}

// Effect runs one step.
func (v *Volume) Effect(e Effect, do func() error) error {
	if v.Around != nil {
		return v.Around(e, do)
	}
	return do()
}

// Mkdir makes a directory. An existing name is an error.
func (v *Volume) Mkdir(folder *Folder, name string, perm fs.FileMode) error {
	return v.Effect(Effect{Op: "mkdir", Path: folder.Join(name)}, func() error { return mkdirAt(folder, name, perm) })
}

// Create creates a file and opens it for reading and writing. An existing file or link is an error.
func (v *Volume) Create(folder *Folder, name string, perm fs.FileMode) (f *os.File, err error) {
	err = v.Effect(Effect{Op: "create", Path: folder.Join(name)}, func() error {
		f, err = openFileAt(folder, name, os.O_RDWR|os.O_CREATE|os.O_EXCL, perm)
		return err
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Fill runs write, which writes the content of the file at path.
func (v *Volume) Fill(path string, write func() error) error {
	return v.Effect(Effect{Op: "fill", Path: path}, write)
}

// Sync makes the content of a file durable. path is its path.
func (v *Volume) Sync(f *os.File, path string) error {
	return v.Effect(Effect{Op: "sync", Path: path}, f.Sync)
}

// SyncDir makes the names in a directory durable.
func (v *Volume) SyncDir(folder *Folder) error {
	return v.Effect(Effect{Op: "syncdir", Path: folder.Path}, func() error {
		f, err := folder.dirFile()
		if err != nil {
			return err
		}
		if err := f.Sync(); err != nil && !errors.Is(err, errors.ErrUnsupported) && !isInvalid(err) {
			return err
		}
		return nil
	})
}

// SyncFS makes everything on the file system of a directory durable.
func (v *Volume) SyncFS(folder *Folder) error {
	return v.Effect(Effect{Op: "syncfs", Path: folder.Path}, func() error { return syncfs(folder) })
}

// Rename moves a name and replaces a file at the destination.
func (v *Volume) Rename(from *Folder, a string, to *Folder, b string) error {
	return v.Effect(Effect{Op: "rename", Path: from.Join(a), Dest: to.Join(b)}, func() error {
		return renameat(v.Top, from, a, to, b)
	})
}

// RenameNew moves a name that must not exist at the destination; otherwise the error is fs.ErrExist.
func (v *Volume) RenameNew(from *Folder, a string, to *Folder, b string) error {
	err := ErrNoExchange
	if !v.NoExchange.Load() {
		err = v.Effect(Effect{Op: "rename", Path: from.Join(a), Dest: to.Join(b)}, func() error {
			return renameNoReplace(from, a, to, b)
		})
	}
	if !errors.Is(err, ErrNoExchange) {
		return err
	}
	v.NoExchange.Store(true)
	if err := v.Link(from, a, to, b); err == nil {
		return v.Remove(from, a)
	} else if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// No rename flags and no hard links (which also applies to directories): check, then move. A name may appear in between.
	if _, err := to.Lstat(b); err == nil {
		return &fs.PathError{Op: "rename", Path: to.Join(b), Err: fs.ErrExist}
	}
	return v.Rename(from, a, to, b)
}

// Exchange swaps two names atomically. If the file system cannot do that, the error is ErrNoExchange.
func (v *Volume) Exchange(from *Folder, a string, to *Folder, b string) error {
	if v.NoExchange.Load() {
		return ErrNoExchange
	}
	err := v.Effect(Effect{Op: "exchange", Path: from.Join(a), Dest: to.Join(b)}, func() error {
		return renameExchange(from, a, to, b)
	})
	if errors.Is(err, ErrNoExchange) {
		v.NoExchange.Store(true)
	}
	return err
}

// Link gives a file, or a symbolic link itself, a second name.
func (v *Volume) Link(from *Folder, a string, to *Folder, b string) error {
	return v.Effect(Effect{Op: "link", Path: from.Join(a), Dest: to.Join(b)}, func() error {
		return linkat(v.Top, from, a, to, b)
	})
}

// Remove removes a name that is not a directory. A missing name is not an error.
func (v *Volume) Remove(folder *Folder, name string) error {
	err := v.Effect(Effect{Op: "remove", Path: folder.Join(name)}, func() error { return unlinkAt(folder, name) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Rmdir removes an empty directory.
func (v *Volume) Rmdir(folder *Folder, name string) error {
	return v.Effect(Effect{Op: "rmdir", Path: folder.Join(name)}, func() error { return rmdirat(folder, name) })
}

// SetMtime sets the mtime of a name.
func (v *Volume) SetMtime(folder *Folder, name string, at time.Time) error {
	return v.Effect(Effect{Op: "chtimes", Path: folder.Join(name)}, func() error {
		return folder.withRoot(func(r *os.Root) error { return r.Chtimes(name, at, at) })
	})
}

// SetAttrs sets the permission bits and then the owner of a file or directory, and returns the result. If the agent may not set
// the owner or the mode, SetAttrs leaves it as it is.
func (v *Volume) SetAttrs(f *os.File, path string, owner Attrs, perm fs.FileMode) (fs.FileInfo, error) {
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	now, changed := AttrsOf(fi), false
	if fi.Mode().Perm() != perm.Perm() {
		keep := fi.Mode() & (fs.ModeSetgid | fs.ModeSticky)
		err := v.Effect(Effect{Op: "chmod", Path: path}, func() error { return f.Chmod(perm.Perm() | keep) })
		if err != nil && !errors.Is(err, fs.ErrPermission) { // not permitted on a share whose files all belong to another user
			return nil, WriteError(err, "set the mode of %s", path)
		}
		changed = true
	}
	if now.Known && owner.Known && (now.UID != owner.UID || now.GID != owner.GID) {
		err := v.Effect(Effect{Op: "chown", Path: path}, func() error { return f.Chown(int(owner.UID), int(owner.GID)) })
		if err != nil && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, errors.ErrUnsupported) {
			return nil, WriteError(err, "set the owner of %s", path)
		}
		changed = true
	}
	if !changed {
		return fi, nil
	}
	return f.Stat()
}

// WriteFile replaces one of the agent's own files atomically: it writes a new file beside it, syncs and renames it. renamed
// reports whether the new file is in place. If it is and there is an error, the file may not be durable.
func (v *Volume) WriteFile(folder *Folder, name string, content func(io.Writer) error) (renamed bool, err error) {
	tmp := name + ".new"
	path := folder.Join(name)
	if err := v.Vacate(folder, tmp); err != nil {
		return false, WriteError(err, "clear %s", path)
	}
	f, err := v.Create(folder, tmp, 0o600)
	if err != nil {
		return false, WriteError(err, "write %s", path)
	}
	err = v.Fill(folder.Join(tmp), func() error { return content(f) })
	if err == nil {
		err = v.Sync(f, folder.Join(tmp))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return false, errors.Join(WriteError(err, "write %s", path), v.Remove(folder, tmp))
	}
	if fi, lerr := folder.Lstat(name); lerr == nil && !fi.Mode().IsRegular() {
		err = v.SetAside(folder, name, &IrregularError{path, KindOf(fi.Mode())})
	}
	if err == nil {
		err = v.Rename(folder, tmp, folder, name)
	}
	if err != nil {
		return false, errors.Join(WriteError(err, "write %s", path), v.Remove(folder, tmp))
	}
	return true, WriteError(v.SyncDir(folder), "write %s", path)
}

// SetAside renames what has one of the agent's own names but is not the agent's, because it may be a user's only copy.
// SetAside does not open it, so it may be of any kind. It logs the reason.
func (v *Volume) SetAside(folder *Folder, name string, reason error) error {
	to := name + AsideSuffix
	err := v.RenameNew(folder, name, folder, to)
	for i := 0; errors.Is(err, fs.ErrExist) && i < 100; i++ {
		to = fmt.Sprintf("%s%s-%d", name, AsideSuffix, v.Now().UnixNano()+int64(i))
		err = v.RenameNew(folder, name, folder, to)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return WriteError(err, "rename %s", folder.Join(name))
	}
	v.Log.Warn("set aside an unexpected entry", "path", folder.Join(name), "as", folder.Join(to), "error", reason)
	return WriteError(v.SyncDir(folder), "rename %s", folder.Join(name))
}

// Vacate frees one of the agent's own names: it removes a regular file and sets anything else aside.
func (v *Volume) Vacate(folder *Folder, name string) error {
	if fi, err := folder.Lstat(name); err == nil && !fi.Mode().IsRegular() {
		return v.SetAside(folder, name, &IrregularError{folder.Join(name), KindOf(fi.Mode())})
	}
	return v.Remove(folder, name)
}

// AsideSuffix is what SetAside appends to a name.
const AsideSuffix = ".damaged"

// ClearTree removes one of the agent's own folders with its content, and follows no link. A missing one is not an error. If the
// agent may not remove all of it, ClearTree sets the folder aside.
func (v *Volume) ClearTree(folder *Folder, name string) error {
	err := v.Effect(Effect{Op: "remove", Path: folder.Join(name)}, func() error {
		return folder.withRoot(func(r *os.Root) error { return r.RemoveAll(name) })
	})
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return v.SetAside(folder, name, err)
}

// OpenOrMake opens one of the agent's own folders, and makes it if it is missing. If something else has its name, OpenOrMake sets
// that aside first.
func (v *Volume) OpenOrMake(in *Folder, name string) (*Folder, error) {
	folder, err := in.Open(name)
	if _, blocked := errors.AsType[*BlockedError](err); blocked {
		if err = v.SetAside(in, name, err); err == nil {
			err = fs.ErrNotExist
		}
	}
	if !NotThere(err) {
		return folder, err
	}
	if err := v.Mkdir(in, name, 0o700); err != nil {
		return nil, err
	}
	return in.Open(name)
}

// OwnFolder opens .stoker in a directory, or creates it with the owner of that directory. If something else has that name,
// OwnFolder sets it aside first.
func (v *Volume) OwnFolder(in *Folder) (*Folder, error) {
	path := in.Join(OwnDir)
	own, err := in.Open(OwnDir)
	if err == nil {
		return own, nil
	}
	if !NotThere(err) {
		return nil, fmt.Errorf("open .stoker: %w", err)
	}
	parent, err := in.Stat()
	if err != nil {
		return nil, err
	}
	if own, err = v.OpenOrMake(in, OwnDir); err != nil {
		return nil, WriteError(err, "make %s", path)
	}
	if err := errors.Join(v.SetDirAttrs(own, parent, 0o700), v.SyncDir(in)); err != nil {
		own.Close()
		return nil, WriteError(err, "make %s", path)
	}
	return own, nil
}

// SetDirAttrs gives a new directory the owner of like, and the permission bits perm.
func (v *Volume) SetDirAttrs(folder *Folder, like fs.FileInfo, perm fs.FileMode) error {
	f, err := folder.dirFile()
	if err != nil {
		return err
	}
	_, err = v.SetAttrs(f, folder.Path, AttrsOf(like), perm)
	return err
}

// LearnModes compares the executable bits of a new file with those that it was created with. If they differ, its volume
// keeps no modes, and LearnModes records that.
func (v *Volume) LearnModes(fi fs.FileInfo, perm fs.FileMode) {
	if (fi.Mode()^perm)&0o111 == 0 {
		return
	}
	if _, known := v.NoModes.Swap(AttrsOf(fi).Dev, true); !known {
		v.Log.Info("volume ignores modes; executable bits not compared", "path", fi.Name())
	}
}

// Stat converts fi, and marks files on volumes that keep no modes.
func (v *Volume) Stat(fi fs.FileInfo) plan.Stat {
	st := StatOf(fi)
	_, st.NoModes = v.NoModes.Load(AttrsOf(fi).Dev)
	return st
}

// SameExec reports whether a file's executable bit is exec. On a volume that keeps no modes it always is.
func (v *Volume) SameExec(fi fs.FileInfo, exec bool) bool {
	st := v.Stat(fi)
	return st.NoModes || st.Exec == exec
}

// ErrDamaged means that one of the agent's own files in .stoker is not valid.
var ErrDamaged = errors.New("damaged")

// Damaged returns an error that wraps ErrDamaged.
func Damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrDamaged, fmt.Errorf(format, args...))
}

// WriteError wraps an error of a write; nil stays nil. It turns errors about space, limits, a read-only volume and permissions into
// failures with a reason, and keeps an existing reason.
func WriteError(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	what := fmt.Sprintf(format, args...)
	if _, ok := errors.AsType[*failure.Error](err); ok {
		return fmt.Errorf("%s: %w", what, err)
	}
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return failure.New(v1alpha1.ReasonNoSpace, "%s: no space or inodes left; free space on the gateway's data volume: %w", what, err)
	case errors.Is(err, syscall.EDQUOT):
		return failure.New(v1alpha1.ReasonNoSpace, "%s: disk quota exceeded; raise it or free space: %w", what, err)
	case errors.Is(err, syscall.EROFS):
		return failure.New(v1alpha1.ReasonNoSpace, "%s: the data volume is read-only; mount it writable: %w", what, err)
	case errors.Is(err, syscall.EFBIG):
		return failure.New(v1alpha1.ReasonWriteFailed, "%s: the file exceeds the size limit of the process or file system: %w", what, err)
	case errors.Is(err, fs.ErrPermission):
		return failure.New(v1alpha1.ReasonWriteFailed, "%s: permission denied; run the agent with the gateway's uid and gid, and restore the mode of the file or directory: %w", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}
