//go:build linux

package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"stoker.io/stoker/agent/disk/safe"
)

var errCut = errors.New("the power is gone")

// powerCut simulates a file system that loses power at a step and then forgets what was not durable. It performs each step for real
// and records how to undo it.
type powerCut struct {
	t    testing.TB
	root string
	side string // holds what a step removes
	// stop is the step before which the power fails; 0 means never.
	stop int
	// fail is the only step that fails, with err; 0 means none.
	fail int
	err  error
	// strict forgets each name whose own directory was not synced. Otherwise a sync of any directory keeps all earlier names, as on
	// file systems with an ordered journal.
	strict bool

	steps   int
	dead    bool
	pending []pending
	dirty   map[uint64]*os.File // files with contents that are not durable, by inode
}

// pending is a step that is not yet durable.
type pending struct {
	dirs []string // directories still to be synced
	back func() error
}

// newPowerCut keeps what is not durable beside root, because it links files from there, and links need one file system.
func newPowerCut(t testing.TB, root string) *powerCut {
	side, err := os.MkdirTemp(filepath.Dir(root), "side-")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(side)) })
	return &powerCut{t: t, root: root, side: side, dirty: map[uint64]*os.File{}}
}

func (c *powerCut) around(e safe.Effect, do func() error) error {
	if c.dead {
		return errCut
	}
	c.steps++
	if c.steps == c.fail {
		return &os.PathError{Op: e.Op, Path: e.Path, Err: c.err}
	}
	if c.steps == c.stop {
		if e.Op == "fill" {
			_ = do() // the last step; cut decides how much of it remains
		}
		c.dead = true
		return errCut
	}
	return c.step(e, do)
}

func (c *powerCut) step(e safe.Effect, do func() error) error {
	path, dest := filepath.Join(c.root, e.Path), filepath.Join(c.root, e.Dest)
	keep := filepath.Join(c.side, strconv.Itoa(c.steps))
	switch e.Op {
	case "sync":
		c.settle(inode(c.t, path))
		return nil
	case "syncfs":
		for ino := range c.dirty {
			c.settle(ino)
		}
		c.pending = nil
		return nil
	case "syncdir":
		c.syncDir(path)
		return nil
	case "remove":
		if _, err := os.Lstat(path); err == nil {
			require.NoError(c.t, linkTree(path, keep))
		}
	case "rename":
		if fi, err := os.Lstat(dest); err == nil && !fi.IsDir() {
			require.NoError(c.t, os.Link(dest, keep))
		}
	}
	if err := do(); err != nil {
		return err
	}
	c.remember(e.Op, path, dest, keep)
	return nil
}

// remember records how to undo a step.
func (c *powerCut) remember(op, path, dest, keep string) {
	p := pending{dirs: []string{filepath.Dir(path)}}
	switch op {
	case "create":
		if fi, err := os.Lstat(path); err == nil && fi.Mode().IsRegular() {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			require.NoError(c.t, err)
			c.dirty[inode(c.t, path)] = f
		}
		p.back = func() error { return os.Remove(path) }
	case "mkdir":
		p.back = func() error { return os.Remove(path) }
	case "rmdir":
		p.back = func() error { return os.Mkdir(path, 0o755) }
	case "link":
		p.dirs[0] = filepath.Dir(dest)
		p.back = func() error { return os.Remove(dest) }
	case "exchange":
		p.dirs = append(p.dirs, filepath.Dir(dest))
		p.back = func() error { return unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, dest, unix.RENAME_EXCHANGE) }
	case "remove":
		p.back = func() error { return os.Rename(keep, path) }
	case "rename":
		p.dirs = append(p.dirs, filepath.Dir(dest))
		p.back = func() error {
			err := os.Rename(dest, path)
			if _, kerr := os.Lstat(keep); kerr == nil {
				err = errors.Join(err, os.Rename(keep, dest))
			}
			return err
		}
	default:
		return
	}
	c.pending = append(c.pending, p)
}

func (c *powerCut) settle(ino uint64) {
	if f := c.dirty[ino]; f != nil {
		_ = f.Close()
		delete(c.dirty, ino)
	}
}

func (c *powerCut) syncDir(dir string) {
	if !c.strict {
		c.pending = nil
		return
	}
	kept := c.pending[:0]
	for _, p := range c.pending {
		var left []string
		for _, d := range p.dirs {
			if d != dir {
				left = append(left, d)
			}
		}
		if p.dirs = left; len(left) > 0 {
			kept = append(kept, p)
		}
	}
	c.pending = kept
}

// cut undoes what was not durable when the power failed.
func (c *powerCut) cut() {
	for ino, f := range c.dirty {
		_ = f.Truncate(0)
		c.settle(ino)
	}
	for i := len(c.pending) - 1; i >= 0; i-- {
		// If a later durable step depends on this one, undo fails. Then this one was durable, too.
		_ = c.pending[i].back()
	}
	c.pending = nil
}

// F14: if the removal of the journal was not made durable, the next sync makes it durable before it empties staging. Otherwise a power cut would
// bring the journal back without the files that it names, and repeating its sync would clear lost+found.
func TestPowerCutAfterFailedRemovalOfJournal(t *testing.T) {
	const path = "projects/p/a"
	root := seededIn(t, memory(t))
	c := newPowerCut(t, root)
	c.strict = true
	armed, removed := false, false
	d, err := Open(root, Options{Around: func(e safe.Effect, do func() error) error {
		removed = removed || armed && e.Op == "remove" && e.Path == journalPath
		if removed && armed && e.Op == "syncdir" {
			armed = false
			return unix.EIO
		}
		return c.around(e, do)
	}})
	require.NoError(t, err)
	apply(t, d, text(map[string]string{path: "1"}))
	put(t, root, path, "gateway")
	armed = true
	res, err := tryApply(t, d, text(map[string]string{path: "2"}))
	require.ErrorIs(t, err, unix.EIO)
	assert.True(t, res.Committed)
	staged(t, d, text(map[string]string{path: "3"}))
	require.NoError(t, d.Close())
	c.cut()
	open(t, root, Options{Around: quick})
	assert.Equal(t, "2", contents(t, root)[path])
	assert.Contains(t, everything(t, root), "gateway")
}

func inode(t testing.TB, path string) uint64 {
	var st unix.Stat_t
	require.NoError(t, unix.Lstat(path, &st))
	return st.Ino
}

// linkTree copies a tree, with hard links for its files.
func linkTree(from, to string) error {
	return filepath.WalkDir(from, func(p string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, p)
		if err != nil {
			return err
		}
		if e.IsDir() {
			return os.Mkdir(filepath.Join(to, rel), 0o755)
		}
		return os.Link(p, filepath.Join(to, rel))
	})
}

// The gateway saves a file by rename before any one step of a sync that replaces the file. The saved version must be live or in
// lost+found, and so must the previous one unless the gateway replaced it. This also holds after a rollback, after a crash two
// steps later, and without exchange.
func TestSaveByRenameBeforeAnyStep(t *testing.T) {
	const path = "projects/p/a"
	for _, plain := range []bool{false, true} {
		for i, end := range []string{"delivered", "rolled back", "dies", "dies in rollback"} {
			t.Run(fmt.Sprintf("plain=%v %s", plain, end), func(t *testing.T) {
				at, every := 1, 1
				if testing.Short() { // the ends share the steps; otherwise each has all of them
					at, every = 1+i%3, 3
				}
				for saved := true; saved; at += every {
					root := seededIn(t, memory(t))
					d, err := Open(root, Options{Around: quick, plain: plain})
					require.NoError(t, err)
					apply(t, d, text(map[string]string{path: "1", "projects/p/b": "1"}))
					put(t, root, path, "gateway 1")
					kept := []string{"gateway 1", "gateway 2"}
					n, dead := 0, false
					d.vol.Around = func(e safe.Effect, do func() error) error {
						if n++; n == at {
							live, err := os.ReadFile(filepath.Join(root, path))
							if err == nil && string(live) == "gateway 1" {
								kept = kept[1:]
							}
							put(t, root, path+".tmp", "gateway 2")
							assert.NoError(t, os.Rename(filepath.Join(root, path+".tmp"), filepath.Join(root, path)))
						}
						switch back := end == "rolled back" || end == "dies in rollback"; {
						case dead, n == at+2 && (end == "dies" || end == "dies in rollback"):
							dead = true
							return errCut
						case back && e.Op == "create" && e.Path == safe.OwnDir+"/"+manifestFile+".new":
							return errors.New("not now")
						}
						return quick(e, do)
					}
					two := text(map[string]string{path: "2", "projects/p/b": "2"})
					_, _ = tryApply(t, d, two) // the result does not matter
					if saved = n >= at; !saved {
						kept = kept[:1]
					}
					require.NoError(t, d.Close())
					d, err = Open(root, Options{Around: quick, plain: plain})
					require.NoError(t, err)
					all := everything(t, root)
					for _, k := range kept {
						require.Contains(t, all, k, "saved before step %d", at)
					}
					assertNoLeftovers(t, root)
					apply(t, d, two)
					assert.Equal(t, "2", contents(t, root)[path])
					all = everything(t, root)
					for _, k := range kept {
						require.Contains(t, all, k, "saved before step %d, and after the next sync", at)
					}
					require.NoError(t, d.Close())
				}
				assert.Greater(t, at, 30, "a sync has more steps than that")
			})
		}
	}
}
