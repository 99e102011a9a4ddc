package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// maxDepth bounds the depth of a walk: deeper than any --max-depth, which is at most 1000.
const maxDepth = 1024

// node is an open directory of the data directory. It was opened from the root name by name, and no name was a symbolic
// link at the time; operations through it stay in that directory whatever happens to the names.
type node struct {
	path string // relative to the data directory; "" for the data directory
	root *os.Root
	f    *os.File // see dirFile
}

// blockedError means that the name of a directory is something else.
type blockedError struct {
	path string
	kind plan.Kind
}

func (e *blockedError) Error() string {
	return fmt.Sprintf("%s is %s, not a directory", e.path, kindName(e.kind))
}

func kindName(k plan.Kind) string {
	switch k {
	case plan.Missing:
		return "missing"
	case plan.File:
		return "a file"
	case plan.Dir:
		return "a directory"
	case plan.Link:
		return "a symbolic link"
	default:
		return "neither file nor directory"
	}
}

// open opens the directory of that name. It never follows a link: the opened directory must be the one that Lstat saw.
func (n *node) open(name string) (*node, error) {
	want, err := n.root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !want.IsDir() {
		return nil, &blockedError{n.join(name), kindOf(want)}
	}
	r, err := n.root.OpenRoot(name)
	if err != nil {
		// It is no longer a directory: now a link out of the data directory, which os.Root refuses, or gone.
		if now, lerr := n.root.Lstat(name); lerr == nil && !now.IsDir() {
			return nil, &blockedError{n.join(name), kindOf(now)}
		}
		return nil, err
	}
	got, err := r.Stat(".")
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	if !os.SameFile(want, got) {
		return nil, errors.Join(&blockedError{n.join(name), plan.Link}, r.Close())
	}
	return &node{path: n.join(name), root: r}, nil
}

// file opens a regular file, and refuses a link or anything else.
func (n *node) file(name string, flag int) (*os.File, fs.FileInfo, error) {
	want, err := n.root.Lstat(name)
	if err != nil {
		return nil, nil, err
	}
	if !want.Mode().IsRegular() {
		return nil, nil, &irregularError{n.join(name), kindOf(want)}
	}
	f, err := n.root.OpenFile(name, flag|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	got, err := f.Stat()
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	if !os.SameFile(want, got) {
		return nil, nil, errors.Join(&irregularError{n.join(name), plan.Link}, f.Close())
	}
	return f, got, nil
}

// irregularError means that something to be read is not a regular file.
type irregularError struct {
	path string
	kind plan.Kind
}

func (e *irregularError) Error() string {
	return fmt.Sprintf("%s is %s, not a file", e.path, kindName(e.kind))
}

// dirFile returns the directory as a file, for operations that os.Root lacks: entries, fsync, renameat2.
func (n *node) dirFile() (*os.File, error) {
	if n.f != nil {
		return n.f, nil
	}
	f, err := n.root.Open(".")
	if err != nil {
		return nil, err
	}
	n.f = f
	return f, nil
}

// maxEntries bounds a directory, which a walk holds in memory.
const maxEntries = 500_000

// entries lists the directory again, from the start.
func (n *node) entries() ([]fs.DirEntry, error) {
	f, err := n.root.Open(".")
	if err != nil {
		return nil, err
	}
	list, err := f.ReadDir(maxEntries + 1)
	if errors.Is(err, io.EOF) { // it is empty
		err = nil
	}
	if len(list) > maxEntries {
		list, err = nil, failure.New(v1alpha1.ReasonLimitExceeded, "the directory %s has more than %d entries", n.path, maxEntries)
	}
	return list, errors.Join(err, f.Close())
}

func (n *node) join(name string) string {
	if n.path == "" {
		return name
	}
	return n.path + "/" + name
}

func (n *node) stat() (fs.FileInfo, error) { return n.root.Stat(".") }

func (n *node) close() {
	n.closeFile()
	_ = n.root.Close()
}

// closeFile closes the file of dirFile, if it is open, and keeps the folder open.
func (n *node) closeFile() {
	if n.f != nil {
		_ = n.f.Close() // opened for reading
	}
}

// split cuts a path into its directory ("" for the data directory) and its name.
func split(p string) (dir, name string) {
	dir, name = path.Split(p)
	return strings.TrimSuffix(dir, "/"), name
}

func kindOf(fi fs.FileInfo) plan.Kind {
	switch m := fi.Mode(); {
	case m.IsRegular():
		return plan.File
	case m.IsDir():
		return plan.Dir
	case m&fs.ModeSymlink != 0:
		return plan.Link
	default:
		return plan.Other
	}
}

func statOf(fi fs.FileInfo) plan.Stat {
	return plan.Stat{
		Kind:  kindOf(fi),
		Size:  fi.Size(),
		Mtime: fi.ModTime().UnixNano(),
		Exec:  fi.Mode().IsRegular() && fi.Mode()&0o111 != 0,
	}
}

// notThere reports whether a path does not exist: a name is missing, or a parent is not a directory.
func notThere(err error) bool {
	_, blocked := errors.AsType[*blockedError](err)
	return blocked || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

func (n *node) readFile(name string, limit int64) ([]byte, error) {
	f, _, err := n.file(name, os.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", n.join(name), err)
	}
	defer func() { _ = f.Close() }() // opened for reading
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", n.join(name), err)
	}
	if int64(len(b)) > limit {
		return nil, failure.New(v1alpha1.ReasonLimitExceeded, "%s has more than %d bytes, too much to compare by meaning", n.join(name), limit)
	}
	return b, nil
}

// has reports whether a path of real directories leads to the last name.
func (n *node) has(names ...string) bool {
	for i, name := range names {
		if i == len(names)-1 {
			fi, err := n.root.Lstat(name)
			return err == nil && fi.Mode()&fs.ModeSymlink == 0
		}
		child, err := n.open(name)
		if err != nil {
			return false
		}
		defer child.close()
		n = child
	}
	return false
}
