package store

import (
	"crypto/rand"
	"errors"
	"os"
	"syscall"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// asDiskError marks an error of the store's own directory: NoSpace if nothing can be written, else a DiskError.
func asDiskError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EROFS), errors.Is(err, syscall.EFBIG):
		return failure.New(v1alpha1.ReasonNoSpace,
			"the repository's store cannot be written: %w; free some space, or use another directory", err)
	}
	return &DiskError{err}
}

// DiskError is an error of the store's own directory. Received data did not cause it.
type DiskError struct{ err error }

func (e *DiskError) Error() string { return "the repository's store: " + e.err.Error() }
func (e *DiskError) Unwrap() error { return e.err }

// createTemp creates a file with a random name in dir. If a crash leaves the file behind, the next Open removes it.
func createTemp(root *os.Root, dir, suffix string) (*os.File, string, error) {
	name := dir + "/" + tempPrefix + rand.Text() + suffix
	f, err := root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	return f, name, asDiskError(err)
}

// createUnnamed creates a temporary file and removes its name, so that closing the file frees its space.
func createUnnamed(root *os.Root, dir string) (*os.File, error) {
	f, name, err := createTemp(root, dir, ".scratch")
	if err != nil {
		return nil, err
	}
	if err := root.Remove(name); err != nil {
		_ = f.Close()
		return nil, asDiskError(err)
	}
	return f, nil
}

// syncDir makes created, renamed and removed names of a directory durable.
func syncDir(root *os.Root, dir string) error {
	d, err := root.Open(dir)
	if err != nil {
		return asDiskError(err)
	}
	defer func() { _ = d.Close() }()
	return asDiskError(d.Sync())
}
