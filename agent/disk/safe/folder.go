// Package safe reads and changes the data directory without following links. A Folder is an open directory. To reach one, the
// package opens each directory on its path, one after the other, and refuses links. A Cursor keeps the folders on the last path
// open. A Volume makes all changes, so that tests can interrupt each of them. CheckPath refuses paths that leave the data
// directory, and WriteError gives write errors their reason.
package safe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// MaxDepth bounds the depth of a path and of a walk: deeper than what the plan allows. The agent keeps one open directory per level.
const MaxDepth = 1024

// Folder is an open directory below the data directory. When it was opened, no part of its path was a symbolic link.
// Operations through it stay in that directory, even if a part of the path is renamed or replaced later. A name is one part of a
// path; no operation follows a link, but Chmod and Volume.SetMtime may follow one to another name in the same folder.
type Folder struct {
	Path string   // relative to the data directory; "" for the data directory
	Root *os.Root // of the data directory and, outside Linux, of every directory; otherwise nil
	dir  *os.File // see dirFile
}

// BlockedError means that something else is at a path that should be a directory.
type BlockedError struct {
	Path string
	Kind plan.Kind
}

func (e *BlockedError) Error() string {
	return fmt.Sprintf("%s is %s, not a directory", e.Path, kindName(e.Kind))
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

// Lstat describes what has a name.
func (n *Folder) Lstat(name string) (fs.FileInfo, error) { return lstatAt(n, name) }

// Open opens the directory with that name. It never follows a link.
func (n *Folder) Open(name string) (*Folder, error) { return openDirAt(n, name) }

// File opens a regular file. The error for a link or anything else is an *IrregularError.
func (n *Folder) File(name string, flag int) (*os.File, fs.FileInfo, error) {
	want, err := n.Lstat(name)
	if err != nil {
		return nil, nil, err
	}
	if !want.Mode().IsRegular() {
		return nil, nil, &IrregularError{n.Join(name), KindOf(want.Mode())}
	}
	f, err := openFileAt(n, name, flag|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	got, err := f.Stat()
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	if !SameFile(want, got) { // replaced meanwhile
		return nil, nil, errors.Join(&IrregularError{n.Join(name), plan.Link}, f.Close())
	}
	return f, got, nil
}

// IrregularError means that something to be read is not a regular file.
type IrregularError struct {
	path string
	kind plan.Kind
}

func (e *IrregularError) Error() string {
	return fmt.Sprintf("%s is %s, not a file", e.path, kindName(e.kind))
}

// SameFile reports whether two results of a stat describe the same file. Unlike os.SameFile, it accepts results of Folder.Lstat.
func SameFile(a, b fs.FileInfo) bool {
	x, y := AttrsOf(a), AttrsOf(b)
	if !x.Known || !y.Known {
		return os.SameFile(a, b)
	}
	return x.Dev == y.Dev && x.Ino == y.Ino
}

// dirFile returns the directory as a file, for system calls that take its descriptor.
func (n *Folder) dirFile() (*os.File, error) {
	if n.dir != nil {
		return n.dir, nil
	}
	f, err := n.Root.Open(".")
	if err != nil {
		return nil, err
	}
	n.dir = f
	return f, nil
}

// maxEntries bounds a directory, which a walk holds in memory.
const maxEntries = 500_000

// Entries lists the directory. Each call reads it from the start.
func (n *Folder) Entries() ([]fs.DirEntry, error) {
	var entries []fs.DirEntry
	err := n.Each(func(e fs.DirEntry) error {
		entries = append(entries, e)
		return nil
	})
	return entries, err
}

// Handle opens the directory once more, so that a lock on the result is only the caller's.
func (n *Folder) Handle() (*os.File, error) { return listAt(n) }

// Each calls do for the entries of the directory, in no order, until it returns an error.
func (n *Folder) Each(do func(fs.DirEntry) error) error {
	f, err := listAt(n)
	if err != nil {
		return err
	}
	count := 0
	err = readEntries(f, func(e fs.DirEntry) error {
		if count++; count > maxEntries {
			return failure.New(v1alpha1.ReasonLimitExceeded, "the directory %s has more than %d entries", n.Path, maxEntries)
		}
		return do(e)
	})
	return errors.Join(err, f.Close())
}

// readEntries calls do for the entries of an open directory.
func readEntries(f *os.File, do func(fs.DirEntry) error) error {
	for {
		entries, err := f.ReadDir(1 << 10)
		for _, e := range entries {
			if err := do(e); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if failed, ok := errors.AsType[*fs.PathError](err); ok {
			return failed.Err // the callers name the directory
		}
		if err != nil {
			return err
		}
	}
}

// Join returns the path of a name in the folder.
func (n *Folder) Join(name string) string {
	if n.Path == "" {
		return name
	}
	return n.Path + "/" + name
}

// Stat describes the folder itself.
func (n *Folder) Stat() (fs.FileInfo, error) {
	if n.dir != nil {
		return n.dir.Stat()
	}
	return n.Root.Stat(".")
}

// Chmod sets the mode of a name.
func (n *Folder) Chmod(name string, perm fs.FileMode) error {
	return n.withRoot(func(r *os.Root) error { return r.Chmod(name, perm) })
}

// Symlink makes a symbolic link.
func (n *Folder) Symlink(target, name string) error {
	return n.withRoot(func(r *os.Root) error { return r.Symlink(target, name) })
}

// Readlink returns the target of a symbolic link.
func (n *Folder) Readlink(name string) (target string, err error) {
	err = n.withRoot(func(r *os.Root) error {
		target, err = r.Readlink(name)
		return err
	})
	return target, err
}

// withRoot calls do with the directory as an os.Root.
func (n *Folder) withRoot(do func(r *os.Root) error) error {
	if n.Root != nil {
		return do(n.Root)
	}
	r, err := openRootOf(n)
	if err != nil {
		return err
	}
	return errors.Join(do(r), r.Close())
}

// Close closes the folder.
func (n *Folder) Close() {
	if n.dir != nil {
		_ = n.dir.Close() // opened for reading
	}
	if n.Root != nil {
		_ = n.Root.Close()
	}
}

// CloseFile closes the file that dirFile opened, if any, but not Root. Use it instead of Close for a folder that does not own
// its Root.
func (n *Folder) CloseFile() {
	if n.dir != nil {
		_ = n.dir.Close() // opened for reading
		n.dir = nil
	}
}

// Split cuts a path into its directory ("" for the data directory) and its name.
func Split(p string) (dir, name string) {
	dir, name = path.Split(p)
	return strings.TrimSuffix(dir, "/"), name
}

// KindOf returns the kind of a file with mode m.
func KindOf(m fs.FileMode) plan.Kind {
	switch {
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

// StatOf converts fi. Unlike Volume.Stat, it does not mark files on volumes that keep no modes.
func StatOf(fi fs.FileInfo) plan.Stat {
	return plan.Stat{
		Kind:  KindOf(fi.Mode()),
		Size:  fi.Size(),
		Mtime: fi.ModTime().UnixNano(),
		Exec:  fi.Mode().IsRegular() && fi.Mode()&0o111 != 0,
	}
}

// NotThere reports whether err means that a path does not exist: a name is missing or too long, or a parent is not a directory.
func NotThere(err error) bool {
	_, blocked := errors.AsType[*BlockedError](err)
	return blocked || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ENAMETOOLONG)
}

// ReadFile returns the content of a file. If it has more than limit bytes, the reason of the error is LimitExceeded.
func (n *Folder) ReadFile(name string, limit int64) ([]byte, error) {
	f, fi, err := n.File(name, os.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", n.Join(name), err)
	}
	defer func() { _ = f.Close() }()                                             // opened for reading
	buf := bytes.NewBuffer(make([]byte, 0, min(fi.Size(), limit)+bytes.MinRead)) // read without copies, unless the file grows
	_, err = buf.ReadFrom(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", n.Join(name), err)
	}
	b := buf.Bytes()
	if int64(len(b)) > limit {
		return nil, failure.New(v1alpha1.ReasonLimitExceeded, "%s has more than %d bytes", n.Join(name), limit)
	}
	return b, nil
}

// Has reports whether the path of these names exists and no part of it is a symbolic link.
func (n *Folder) Has(names ...string) bool {
	for i, name := range names {
		if i == len(names)-1 {
			fi, err := n.Lstat(name)
			return err == nil && fi.Mode()&fs.ModeSymlink == 0
		}
		child, err := n.Open(name)
		if err != nil {
			return false
		}
		defer child.Close()
		n = child
	}
	return false
}

// OwnDir is the agent's own folder.
const OwnDir = ".stoker"

// MaxPath bounds a path in files of the agent, in bytes. The plan's limit is lower.
const MaxPath = 64 << 10

// CheckPath refuses a path that could leave the data directory, or that is in the agent's folder. Plans check their paths much
// earlier; this is the last check.
func CheckPath(p string) error {
	switch {
	case p == "" || p == ".":
		return errors.New("the path names no file")
	case len(p) > MaxPath:
		return fmt.Errorf("the path is too long: %d bytes", len(p))
	case strings.ContainsRune(p, 0) || !filepath.IsLocal(filepath.FromSlash(p)):
		return fmt.Errorf("%q leads out of the data directory", p)
	}
	depth := 0
	for name := range strings.SplitSeq(p, "/") {
		depth++
		switch {
		case name == "" || name == "." || name == "..":
			return fmt.Errorf("%q is not a clean path", p)
		case strings.EqualFold(name, OwnDir):
			return fmt.Errorf("%q is in a folder that belongs to the agent", p)
		case depth > MaxDepth:
			return fmt.Errorf("%q has more than %d parts", p, MaxDepth)
		}
	}
	return nil
}

// AreaOf returns the top directory of the mount of folder, which must be the directory that the cursor opened last. "" is the data
// directory. A mount inside a project is an error.
func AreaOf(cur *Cursor, folder *Folder) (string, error) {
	here, err := MountOf(folder)
	if err != nil {
		return "", fmt.Errorf("find the mount of %s: %w", folder.Path, err)
	}
	top := ""
	for k := len(cur.Chain) - 1; k >= 0; k-- {
		m, err := MountOf(cur.Chain[k])
		if err != nil {
			return "", fmt.Errorf("find the mount of %s: %w", cur.Chain[k].Path, err)
		}
		if m != here {
			break
		}
		top = cur.Chain[k].Path
	}
	if strings.HasPrefix(top, "projects/") {
		return "", failure.New(v1alpha1.ReasonUnsafePath, "%s is a mount inside a project, and the agent cannot stage files there; mount all of projects, or all of the data directory", top)
	}
	return top, nil
}

// HashFile returns the git blob id of an open file, read from its start through buf. If the file changes while HashFile reads, the
// id may belong to no version of the file, so the caller must compare it with an expected id. HashFile fails when ctx is done.
func HashFile(ctx context.Context, f *os.File, buf []byte) (plan.ID, error) {
	fi, err := f.Stat()
	if err != nil {
		return plan.ID{}, err
	}
	h := plan.NewBlob(fi.Size())
	if _, err := io.CopyBuffer(struct{ io.Writer }{h}, ContextReader(ctx, io.NewSectionReader(f, 0, fi.Size())), buf); err != nil {
		return plan.ID{}, err
	}
	return plan.ID(h.Sum(nil)), nil
}

// ContextReader returns a reader of r that fails when ctx is done.
func ContextReader(ctx context.Context, r io.Reader) io.Reader { return contextReader{ctx, r} }

type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// Hash returns the git blob id of a file in the folder, read through buf. For a file of more than limit bytes, it returns the null
// id, which no blob has. A limit of 0 means no limit.
func (n *Folder) Hash(ctx context.Context, name string, buf []byte, limit int64) (plan.ID, error) {
	f, fi, err := n.File(name, os.O_RDONLY)
	if err != nil {
		return plan.ID{}, err
	}
	if limit > 0 && fi.Size() > limit {
		return plan.ID{}, f.Close()
	}
	id, err := HashFile(ctx, f, buf)
	if err = errors.Join(err, f.Close()); err != nil {
		return plan.ID{}, fmt.Errorf("read %s: %w", n.Join(name), err)
	}
	return id, nil
}
