// Package file reads and watches small files that other programs write.
package file

import (
	"errors"
	"fmt"
	"os"

	"stoker.io/stoker/internal/bound"
)

// Read returns the content of a file. A file of more than limit bytes is an error.
func Read(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := bound.ReadAll(f, limit)
	switch {
	case errors.Is(err, bound.ErrTooLarge):
		return nil, fmt.Errorf("%s is larger than %d bytes", name, limit)
	case err != nil:
		return nil, err
	}
	return b, nil
}

// ReadRegular is Read for a path that may be something else than a regular file, which is an error. A pipe, for one, would
// block the caller for ever.
func ReadRegular(name string, limit int64) ([]byte, error) {
	if st, err := os.Stat(name); err != nil {
		return nil, err
	} else if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	return Read(name, limit)
}
