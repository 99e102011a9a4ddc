// Package file reads small files that others write: bounded, and with a hint when they change.
package file

import (
	"fmt"
	"io"
	"os"
)

// Read returns what is in a file of at most limit bytes. A longer one is an error.
func Read(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%s is larger than %d bytes", name, limit)
	}
	return b, nil
}
