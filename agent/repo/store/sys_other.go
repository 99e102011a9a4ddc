//go:build !unix

package store

import (
	"io"
	"os"
)

// mapFile reads the whole of f, which takes 28 bytes of memory for each object: this system cannot map files.
func mapFile(f *os.File, size int64) ([]byte, func() error, error) {
	data := make([]byte, size)
	_, err := io.ReadFull(io.NewSectionReader(f, 0, size), data)
	return data, func() error { return nil }, err
}

// lockFile does nothing on this system: the user must give each agent a store of its own.
func lockFile(*os.File) error { return nil }

func unlockFile(*os.File) error { return nil }
