package safe

import (
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"
)

// Cursor opens directories of the data directory. It keeps the last one and all its parents open, so that work sorted by path
// opens each directory once.
type Cursor struct {
	Top    *os.Root
	Chain  []*Folder // from the root to the last directory
	Opened time.Time // the time when Chain was opened from the root
}

// At returns the directory at a path. The Folder is valid until the next call. A missing parent is fs.ErrNotExist; one
// that is not a directory is a *BlockedError.
func (c *Cursor) At(dir string) (*Folder, error) {
	if now := time.Now(); len(c.Chain) == 0 || now.Sub(c.Opened) > ReopenAfter {
		c.Reset()
		c.Chain = append(c.Chain, &Folder{Root: c.Top})
		c.Opened = now
	}
	if last := c.Chain[len(c.Chain)-1]; last.Path == dir {
		return last, nil
	}
	c.up(dir)
	n := c.Chain[len(c.Chain)-1]
	rest := dir
	if n.Path != "" {
		rest = strings.TrimPrefix(dir[len(n.Path):], "/")
	}
	for rest != "" {
		if len(c.Chain) > MaxDepth {
			return nil, fmt.Errorf("%s is more than %d directories deep", dir, MaxDepth)
		}
		name, more, _ := strings.Cut(rest, "/")
		child, err := n.Open(name)
		if err != nil {
			return nil, err
		}
		c.Chain = append(c.Chain, child)
		n, rest = child, more
	}
	return n, nil
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
		if last.Path != dir && !strings.HasPrefix(last.Path, dir+"/") {
			return
		}
		last.Close()
		c.Chain = c.Chain[:len(c.Chain)-1]
	}
}

// Reset closes all directories except Top.
func (c *Cursor) Reset() {
	for i, n := range c.Chain {
		if i > 0 { // the first has Top, which the cursor does not own
			n.Close()
		} else {
			n.CloseFile()
		}
	}
	c.Chain = c.Chain[:0]
}

// Parent opens the directory of a path like At, and returns the name of the path in it.
func (c *Cursor) Parent(path string) (n *Folder, name string, err error) {
	dir, name := Split(path)
	n, err = c.At(dir)
	return n, name, err
}

// Lstat describes what is at a path. It never follows a link.
func (c *Cursor) Lstat(path string) (fs.FileInfo, error) {
	n, name, err := c.Parent(path)
	if err != nil {
		return nil, err
	}
	return n.Lstat(name)
}

// ReopenAfter is how long a Cursor uses its open directories before it opens them again from the root. Until then it does not
// notice if a directory was renamed or replaced.
const ReopenAfter = 100 * time.Millisecond
