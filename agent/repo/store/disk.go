package store

import (
	"crypto/rand"
	"errors"
	"os"
	"syscall"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// onDisk adds a reason to an error of the store's own directory.
func onDisk(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EROFS), errors.Is(err, syscall.EFBIG):
		return failure.New(v1alpha1.ReasonNoSpace,
			"the repository's store cannot be written: %w; free some space, or give it another directory", err)
	}
	return &DiskError{err}
}

// DiskError is an error of the store's own directory, as opposed to one of what was received.
type DiskError struct{ err error }

func (e *DiskError) Error() string { return "the repository's store: " + e.err.Error() }
func (e *DiskError) Unwrap() error { return e.err }

// temporary creates a file with a new name in dir. If a crash leaves it behind, the next Open removes it.
func temporary(root *os.Root, dir, suffix string) (*os.File, string, error) {
	name := dir + "/" + tempPrefix + rand.Text() + suffix
	f, err := root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	return f, name, onDisk(err)
}

// anonymous creates a temporary file without a name.
func anonymous(root *os.Root, dir string) (*os.File, error) {
	f, name, err := temporary(root, dir, ".scratch")
	if err != nil {
		return nil, err
	}
	if err := root.Remove(name); err != nil {
		_ = f.Close()
		return nil, onDisk(err)
	}
	return f, nil
}

// syncDir makes the names in a directory durable.
func syncDir(root *os.Root, dir string) error {
	d, err := root.Open(dir)
	if err != nil {
		return onDisk(err)
	}
	defer func() { _ = d.Close() }()
	return onDisk(d.Sync())
}
