package offline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Commit has the objects of one commit. Its blobs are fetched when they are read.
type Commit struct {
	plan.CancelableObjects
	root     plan.ID
	prefetch func([]plan.ID) error
}

// Commit returns the objects of a commit, of which it fetches only the trees. When ctx is done, reads fail.
func (c *Checkout) Commit(ctx context.Context, at repo.Resolution) (*Commit, error) {
	if _, err := c.store.FetchTrees(ctx, c.remote, at.Commit, at.Ref); err != nil {
		return nil, err
	}
	root, err := c.store.RootTree(at.Commit)
	if err != nil {
		return nil, err
	}
	objects := plan.CancelableObjects{Objects: c.store, Canceled: func() error { return context.Cause(ctx) }}
	prefetch := func(ids []plan.ID) error {
		_, err := c.store.FetchBlobs(ctx, ids)
		return err
	}
	return &Commit{objects, root, prefetch}, nil
}

// Root returns the tree of the commit.
func (c *Commit) Root() plan.ID { return c.root }

// Prefetch fetches blobs, all at once.
func (c *Commit) Prefetch(ids []plan.ID) error { return c.prefetch(ids) }

// maxFolder is the number of files and folders that a Folder may have.
const maxFolder = 1_000_000

// Folder has the files of a directory, like the objects of a commit. The ids of its objects are only numbers. It follows no links.
type Folder struct {
	root  *os.Root
	paths []string // by number
}

// OpenFolder opens a directory.
func OpenFolder(dir string) (*Folder, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &Folder{root: root, paths: []string{"."}}, nil
}

// Close closes the directory.
func (f *Folder) Close() error { return f.root.Close() }

// Root returns the id of the directory.
func (f *Folder) Root() plan.ID { return number(0) }

// Prefetch does nothing, because the files are on this machine.
func (f *Folder) Prefetch([]plan.ID) error { return nil }

// Tree implements plan.Objects. Each call gives the entries new ids.
func (f *Folder) Tree(id plan.ID) ([]plan.Entry, error) {
	dir, err := f.path(id)
	if err != nil {
		return nil, err
	}
	handle, err := f.root.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = handle.Close() }() // only read
	var entries []plan.Entry
	for {
		list, err := handle.ReadDir(1000)
		for _, e := range list {
			mode := plan.Regular
			switch {
			case e.IsDir():
				mode = plan.Directory
			case e.Type()&os.ModeSymlink != 0:
				mode = plan.Symlink
			case !e.Type().IsRegular():
				continue
			}
			entries = append(entries, plan.Entry{Name: e.Name(), Mode: mode, ID: number(len(f.paths))})
			f.paths = append(f.paths, filepath.Join(dir, e.Name()))
		}
		if len(f.paths) > maxFolder {
			return nil, failure.New(v1alpha1.ReasonLimitExceeded, "the directory has more than %d files and folders: name one below it", maxFolder)
		}
		if errors.Is(err, io.EOF) {
			return entries, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// Has implements plan.Objects.
func (f *Folder) Has(id plan.ID) bool {
	_, err := f.path(id)
	return err == nil
}

// WriteBlob implements plan.Objects.
func (f *Folder) WriteBlob(w io.Writer, id plan.ID) (int64, error) {
	name, err := f.path(id)
	if err != nil {
		return 0, err
	}
	file, err := f.root.Open(name)
	if err != nil {
		return 0, err
	}
	defer func() { _ = file.Close() }() // only read
	return io.Copy(w, file)
}

func (f *Folder) path(id plan.ID) (string, error) {
	n := int(id[16])<<24 | int(id[17])<<16 | int(id[18])<<8 | int(id[19])
	if n >= len(f.paths) || id != number(n) {
		return "", fmt.Errorf("the directory has no object %s", id.Short())
	}
	return f.paths[n], nil
}

func number(n int) plan.ID {
	return plan.ID{16: byte(n >> 24), 17: byte(n >> 16), 18: byte(n >> 8), 19: byte(n)}
}
