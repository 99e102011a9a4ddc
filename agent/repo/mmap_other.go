//go:build !unix

package repo

import (
	"io"
	"os"
)

// mapFile reads the whole of f: 28 bytes of memory an object, where a file cannot be mapped.
func mapFile(f *os.File, size int64) ([]byte, func() error, error) {
	data := make([]byte, size)
	_, err := io.ReadFull(io.NewSectionReader(f, 0, size), data)
	return data, func() error { return nil }, err
}

// lockFile does nothing here: one store for one agent is then the user's own care.
func lockFile(*os.File) error { return nil }

func unlockFile(*os.File) error { return nil }
