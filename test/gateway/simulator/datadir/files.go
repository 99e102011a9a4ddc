// Package datadir reads and writes the files of a gateway's data directory, and detects changes by other programs to those that
// only the gateway may write.
package datadir

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
)

const (
	// ProjectsDir has a directory for each project.
	ProjectsDir = "projects"
	// BlobDir has a copy of the content of each file of a project, named by its digest.
	BlobDir = ProjectsDir + "/.resources"
	// ResourcesDir has a directory for each resource collection.
	ResourcesDir = "config/resources"
	// SeedMarker is the file that marks a seeded data directory.
	SeedMarker = ".ignition-seed-complete"

	maxSize = 256 << 20
)

// Read reads a regular file of at most 256 MiB.
func Read(root *os.Root, name string) ([]byte, error) {
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("%s is not a regular file", name))
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err == nil && len(raw) > maxSize {
		err = fmt.Errorf("%s is larger than %d MiB", name, maxSize>>20)
	}
	return raw, err
}

// Write writes a file below the data directory, and creates its parents.
func Write(root *os.Root, name string, raw []byte) error {
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	return root.WriteFile(name, raw, 0o644)
}

// List lists a directory. A missing directory is empty.
func List(root *os.Root, dir string) ([]fs.DirEntry, error) {
	list, err := fs.ReadDir(root.FS(), dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return list, err
}

// Exists reports whether there is a file, a directory or a link with this name.
func Exists(root *os.Root, name string) bool {
	_, err := root.Lstat(name)
	return err == nil
}
