package disk

import (
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"
)

// cursor opens directories of the data directory and keeps the chain from the root to the last one open.
type cursor struct {
	top    *os.Root
	chain  []*node
	opened time.Time
}

// at returns the directory at a path. The node is valid until the next call. A missing parent is fs.ErrNotExist; one
// that is not a directory is a *blockedError.
func (c *cursor) at(dir string) (*node, error) {
	if now := time.Now(); len(c.chain) == 0 || now.Sub(c.opened) > trust {
		c.reset()
		c.chain = append(c.chain, &node{root: c.top})
		c.opened = now
	}
	if last := c.chain[len(c.chain)-1]; last.path == dir {
		return last, nil
	}
	c.up(dir)
	n := c.chain[len(c.chain)-1]
	rest := dir
	if n.path != "" {
		rest = strings.TrimPrefix(dir[len(n.path):], "/")
	}
	for rest != "" {
		if len(c.chain) > maxDepth {
			return nil, fmt.Errorf("%s is more than %d directories deep", dir, maxDepth)
		}
		name, more, _ := strings.Cut(rest, "/")
		child, err := n.open(name)
		if err != nil {
			return nil, err
		}
		c.chain = append(c.chain, child)
		n, rest = child, more
	}
	return n, nil
}

// up closes the directories that are not on the way to dir.
func (c *cursor) up(dir string) {
	for len(c.chain) > 1 {
		last := c.chain[len(c.chain)-1]
		if last.path == dir || strings.HasPrefix(dir, last.path) && dir[len(last.path)] == '/' {
			return
		}
		last.close()
		c.chain = c.chain[:len(c.chain)-1]
	}
}

// drop closes a directory and those below it, because its name may now be something else.
func (c *cursor) drop(dir string) {
	for len(c.chain) > 1 {
		last := c.chain[len(c.chain)-1]
		if last.path != dir && !strings.HasPrefix(last.path, dir+"/") {
			return
		}
		last.close()
		c.chain = c.chain[:len(c.chain)-1]
	}
}

// reset closes all.
func (c *cursor) reset() {
	for i, n := range c.chain {
		if i > 0 { // the first is the Dir's own root
			n.close()
		} else {
			n.closeFile()
		}
	}
	c.chain = c.chain[:0]
}

func (c *cursor) lstat(path string) (fs.FileInfo, error) {
	dir, name := split(path)
	n, err := c.at(dir)
	if err != nil {
		return nil, err
	}
	return n.root.Lstat(name)
}

// trust is how long an open chain of directories is used without checking its names again. Work sorted by path then
// opens each directory once, not once per path.
const trust = 100 * time.Millisecond
