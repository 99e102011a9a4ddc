package safe

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/relpath"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// AgentFolder is the open folder .stoker, which has the agent's own files. Users and the gateway can write there, too, so the
// methods expect anything at the names of the agent's files.
type AgentFolder struct {
	*Folder
	Vol      *Volume
	ReadOnly bool // OpenFile restores no permission bits
}

// Write replaces a file atomically; see Volume.WriteFile.
func (a *AgentFolder) Write(name string, content func(io.Writer) error) (renamed bool, err error) {
	return a.Vol.WriteFile(a.Folder, name, content)
}

// WriteBytes is Write for content in memory.
func (a *AgentFolder) WriteBytes(name string, content []byte) error {
	_, err := a.Write(name, func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	})
	return err
}

// OpenFile opens a file for reading. If it is not a regular file, the error is ErrDamaged. If its permission bits forbid reading,
// OpenFile restores them.
func (a *AgentFolder) OpenFile(name string) (*os.File, fs.FileInfo, error) {
	f, fi, err := a.File(name, os.O_RDONLY)
	if errors.Is(err, fs.ErrPermission) && !a.ReadOnly {
		cerr := a.Vol.Effect(Effect{Op: "chmod", Path: a.Join(name)}, func() error { return a.Chmod(name, 0o600) })
		if cerr == nil {
			f, fi, err = a.File(name, os.O_RDONLY)
		}
	}
	if _, irregular := errors.AsType[*IrregularError](err); irregular {
		return nil, nil, Damaged("%w", err)
	}
	return f, fi, err
}

// Read returns the content of a file, or nil if it does not exist. A file of more than limit bytes is ErrDamaged. A nil
// AgentFolder has no files.
func (a *AgentFolder) Read(name string, limit int64) ([]byte, error) {
	if a == nil {
		return nil, nil
	}
	f, fi, err := a.OpenFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", a.Join(name), err)
	}
	defer func() { _ = f.Close() }() // opened for reading
	if fi.Size() > limit {
		return nil, Damaged("%s has %d bytes; the limit is %d", a.Join(name), fi.Size(), limit)
	}
	b := make([]byte, fi.Size())
	if _, err := io.ReadFull(f, b); err != nil {
		return nil, fmt.Errorf("read %s: %w", a.Join(name), err)
	}
	return b, nil
}

// OpenExisting opens a folder, or returns nil if there is none. A nil AgentFolder has no folders.
func (a *AgentFolder) OpenExisting(name string) (*Folder, error) {
	if a == nil {
		return nil, nil
	}
	folder, err := a.Open(name)
	if NotThere(err) {
		return nil, nil
	}
	return folder, err
}

// OpenOrMake opens a folder, and makes it if it is missing; see Volume.OpenOrMake.
func (a *AgentFolder) OpenOrMake(name string) (*Folder, error) {
	return a.Vol.OpenOrMake(a.Folder, name)
}

// Drop durably removes a regular file. It sets anything else of that name aside; see Volume.SetAside.
func (a *AgentFolder) Drop(name string) error {
	err := a.Vol.Vacate(a.Folder, name)
	if err == nil {
		err = a.Vol.SyncDir(a.Folder)
	}
	return WriteError(err, "remove %s", a.Join(name))
}

// DropFolder removes a folder with its content, durably.
func (a *AgentFolder) DropFolder(name string) error {
	return errors.Join(a.Vol.ClearTree(a.Folder, name), a.Vol.SyncDir(a.Folder))
}

// Cursor opens directories of the data directory. It keeps the last one and all its parents open, so that work sorted by path
// rarely opens a directory twice; see ReopenAfter.
type Cursor struct {
	Top    *os.Root
	Chain  []*Folder // from the root to the last directory
	Opened time.Time // the time when Chain was opened from the root

	missing    string // what Look did not find below the last directory of Chain; "" after At
	missingErr error
}

// At returns the directory at a path. The Folder is valid until the next call. If a part of the path is missing, the error is
// fs.ErrNotExist; if one is not a directory, a *BlockedError.
func (c *Cursor) At(dir string) (*Folder, error) {
	c.missing = ""
	if now := time.Now(); len(c.Chain) == 0 || now.Sub(c.Opened) > ReopenAfter {
		c.Reset()
		c.Chain = append(c.Chain, &Folder{Root: c.Top})
		c.Opened = now
	}
	if last := c.Chain[len(c.Chain)-1]; last.Path == dir {
		return last, nil
	}
	c.up(dir)
	folder := c.Chain[len(c.Chain)-1]
	rest := dir
	if folder.Path != "" {
		rest = strings.TrimPrefix(dir[len(folder.Path):], "/")
	}
	for rest != "" {
		if len(c.Chain) > MaxDepth {
			return nil, fmt.Errorf("%s is more than %d directories deep", dir, MaxDepth)
		}
		name, more, _ := strings.Cut(rest, "/")
		child, err := folder.Open(name)
		if err != nil {
			return nil, err
		}
		c.Chain = append(c.Chain, child)
		folder, rest = child, more
	}
	return folder, nil
}

// Look is At for a caller that creates nothing: if dir is, or is in, the directory that did not exist at the last call, Look returns
// the same error without a system call, for as long as the cursor keeps directories open.
func (c *Cursor) Look(dir string) (*Folder, error) {
	if c.missing != "" && (dir == c.missing || relpath.Below(dir, c.missing)) && time.Since(c.Opened) <= ReopenAfter {
		return nil, c.missingErr
	}
	folder, err := c.At(dir)
	if errors.Is(err, fs.ErrNotExist) {
		last := c.Chain[len(c.Chain)-1]
		name, _, _ := strings.Cut(strings.TrimPrefix(dir[len(last.Path):], "/"), "/")
		c.missing, c.missingErr = last.Join(name), err
	}
	return folder, err
}

// Has reports whether the directory is open. At then opens nothing, unless ReopenAfter has passed.
func (c *Cursor) Has(dir string) bool {
	return slices.ContainsFunc(c.Chain, func(f *Folder) bool { return f.Path == dir })
}

// up closes the directories that are not on the way to dir.
func (c *Cursor) up(dir string) {
	for len(c.Chain) > 1 {
		last := c.Chain[len(c.Chain)-1]
		if last.Path == dir || strings.HasPrefix(dir, last.Path) && dir[len(last.Path)] == '/' {
			return
		}
		last.Close()
		c.Chain = c.Chain[:len(c.Chain)-1]
	}
}

// Drop closes a directory and those below it, because its name may now be something else.
func (c *Cursor) Drop(dir string) {
	for len(c.Chain) > 1 {
		last := c.Chain[len(c.Chain)-1]
		if last.Path != dir && !relpath.Below(last.Path, dir) {
			return
		}
		last.Close()
		c.Chain = c.Chain[:len(c.Chain)-1]
	}
}

// Reset closes all directories except Top.
func (c *Cursor) Reset() {
	for i, folder := range c.Chain {
		if i > 0 { // the first has Top, which the cursor does not own
			folder.Close()
		} else {
			folder.CloseFile()
		}
	}
	c.Chain = c.Chain[:0]
}

// Parent opens the directory of a path like At, and returns the name of the path in it.
func (c *Cursor) Parent(path string) (folder *Folder, name string, err error) {
	dir, name := Split(path)
	folder, err = c.At(dir)
	return folder, name, err
}

// Lstat describes what is at a path. It never follows a link.
func (c *Cursor) Lstat(path string) (fs.FileInfo, error) {
	folder, name, err := c.Parent(path)
	if err != nil {
		return nil, err
	}
	return folder.Lstat(name)
}

// ReopenAfter is how long a Cursor uses its open directories before it opens them again from the root. Until then it does not
// notice if a directory was renamed or replaced.
const ReopenAfter = 100 * time.Millisecond

// Walk calls yield for each entry below a folder that is not a directory, in the order of full paths. It leaves out what is named .stoker. It
// stops and returns false when yield does. depth is that of folder. stat converts the state of a file; if it is nil, Walk sets only the kind,
// which spares a system call for each file.
func Walk(folder *Folder, depth int, stat func(fs.FileInfo) plan.Stat, yield func(plan.Found, error) bool) bool {
	if depth > MaxDepth {
		return yield(plan.Found{}, failure.New(v1alpha1.ReasonLimitExceeded, "%s is more than %d directories deep", folder.Path, MaxDepth))
	}
	list, err := folder.Entries()
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	if err != nil {
		return yield(plan.Found{}, fmt.Errorf("list %s: %w", folder.Path, err))
	}
	slices.SortFunc(list, byPath)
	for _, e := range list {
		if strings.EqualFold(e.Name(), OwnDir) {
			continue
		}
		if !e.IsDir() {
			f := plan.Found{Path: folder.Join(e.Name()), Stat: plan.Stat{Kind: KindOf(e.Type())}}
			if stat != nil {
				fi, err := folder.Lstat(e.Name())
				if errors.Is(err, fs.ErrNotExist) {
					continue // removed meanwhile
				}
				if err != nil {
					return yield(plan.Found{}, fmt.Errorf("stat %s: %w", f.Path, err))
				}
				f.Stat = stat(fi)
			}
			if f.Stat.Kind != plan.Dir && !yield(f, nil) { // it may have become a directory since it was listed
				return false
			}
			continue
		}
		child, err := folder.Open(e.Name())
		if NotThere(err) {
			continue
		}
		if err != nil {
			return yield(plan.Found{}, fmt.Errorf("open %s: %w", folder.Join(e.Name()), err))
		}
		more := Walk(child, depth+1, stat, yield)
		child.Close()
		if !more {
			return false
		}
	}
	return true
}

// byPath orders names like the paths below them: a directory sorts as if its name ended in a slash.
func byPath(a, b fs.DirEntry) int {
	x, y := a.Name(), b.Name()
	if a.IsDir() {
		x += "/"
	}
	if b.IsDir() {
		y += "/"
	}
	return strings.Compare(x, y)
}

// FirstFile returns the path of the first file that Walk finds in the directory name of a folder, or "" if that directory has no files.
func FirstFile(in *Folder, name string) (first string, err error) {
	folder, err := in.Open(name)
	if err != nil {
		return "", err
	}
	defer folder.Close()
	Walk(folder, 0, StatOf, func(f plan.Found, walkErr error) bool {
		first, err = f.Path, walkErr
		return false
	})
	return first, err
}
