// Package rundir manages the directories of running clusters. The process that owns a cluster locks its directory. If
// the owner dies, the kernel releases the lock, and the next process that creates a directory removes the abandoned
// one.
package rundir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// ErrOwned means that a running process owns the directory.
var ErrOwned = errors.New("another process owns the directory")

// Dir is a directory that this process owns.
type Dir struct {
	Path string
	lock *os.File
}

// New creates a directory with a unique name below parent, and removes abandoned ones.
func New(parent, pattern string) (*Dir, error) {
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return nil, err
	}
	if err := removeAbandoned(parent, pattern); err != nil {
		return nil, err
	}
	// The lock of the parent keeps removeAbandoned of another process from removing the directory before it is locked.
	parentLock, err := openLocked(filepath.Join(parent, ".lock"), 0)
	if err != nil {
		return nil, err
	}
	defer parentLock.Close()
	path, err := os.MkdirTemp(parent, pattern+"-")
	if err != nil {
		return nil, err
	}
	return lockDir(path)
}

// Own locks a directory with a given name, and creates it if missing. It returns ErrOwned if another process owns it.
func Own(path string) (*Dir, error) {
	for range 10 {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return nil, err
		}
		d, err := lockDir(path)
		if !errors.Is(err, errRemoved) && !errors.Is(err, fs.ErrNotExist) {
			return d, err
		}
	}
	return nil, fmt.Errorf("%s: other processes keep removing the directory", path)
}

// errRemoved means that the last owner removed the directory while this process waited for it.
var errRemoved = errors.New("the directory was removed")

// lockDir locks an existing directory. It returns ErrOwned, or errRemoved.
func lockDir(path string) (*Dir, error) {
	name := filepath.Join(path, "lock")
	f, err := openLocked(name, unix.LOCK_NB)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	locked, err := f.Stat()
	if err == nil {
		var current fs.FileInfo
		if current, err = os.Stat(name); err == nil && os.SameFile(locked, current) {
			return &Dir{path, f}, nil
		}
	}
	return nil, errors.Join(fmt.Errorf("%s: %w", path, errRemoved), err, f.Close())
}

// Owned reports whether a running process owns a directory.
func Owned(path string) bool {
	f, err := os.Open(filepath.Join(path, "lock"))
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// Remove removes the directory with its content, and releases it. It renames the directory first, so that another
// process can create a new one of the same name at any time.
func (d *Dir) Remove() error {
	gone := fmt.Sprintf("%s.gone-%d-%d", d.Path, os.Getpid(), time.Now().UnixNano())
	if err := os.Rename(d.Path, gone); err != nil {
		return errors.Join(err, d.lock.Close())
	}
	var err error
	for range 10 { // another process may just have created its lock in it
		if err = os.RemoveAll(gone); !errors.Is(err, unix.ENOTEMPTY) {
			break
		}
	}
	return errors.Join(err, d.lock.Close())
}

// Release releases the directory without removing it.
func (d *Dir) Release() error { return d.lock.Close() }

// openLocked creates or opens a file and locks it. With unix.LOCK_NB in flags it returns ErrOwned instead of waiting.
func openLocked(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|flags)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrOwned
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// removeAbandoned removes directories of New whose owners have ended.
func removeAbandoned(parent, pattern string) error {
	parentLock, err := openLocked(filepath.Join(parent, ".lock"), 0)
	if err != nil {
		return err
	}
	defer parentLock.Close()
	dirs, err := filepath.Glob(filepath.Join(parent, pattern+"-*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range dirs {
		d, err := lockDir(path)
		if errors.Is(err, ErrOwned) || errors.Is(err, errRemoved) {
			continue
		}
		if err == nil {
			err = d.Remove()
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // its last owner was still removing it
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
