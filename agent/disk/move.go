package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

// mover does the steps of a run.
type mover struct{ *run }

// move does the steps. It skips steps that were done before a crash.
func (r mover) move() error {
	for i, t := range r.Tasks {
		var err error
		switch t.Kind {
		case format.TaskWrite:
			err = r.moveIn(t.At)
		case format.TaskRemove:
			err = r.moveOut(t.At)
		case format.TaskMkdir:
			err = r.makeDir(&r.Dirs[t.At])
		case format.TaskRmdir:
			err = r.removeDir(&r.Dirs[t.At])
		}
		if errors.Is(err, syscall.EBUSY) { // the next plan sees a mount
			err = fmt.Errorf("%w: a volume was mounted there, or the file server has the file open", err)
		}
		if err != nil {
			return safe.WriteError(err, "step %d of %d, %s", i+1, len(r.Tasks), r.PathOf(t))
		}
	}
	return nil
}

// touch records that names in a directory changed.
func (r *run) touch(n *safe.Folder) {
	// More than FsyncFiles directories are settled by one syncfs and need not be remembered: a first sync has tens of
	// thousands.
	if safe.HaveSyncfs && len(r.touched) > r.d.o.FsyncFiles {
		return
	}
	r.touched[n.Path] = struct{}{}
}

func (r *run) stagingOf(at int) *safe.Folder { return r.staging[r.Areas[r.Slots[at].Area]] }

// swaps bounds how often the gateway may interfere with a write before it fails.
const swaps = 100

// moveIn moves the wanted bytes of a change into place. Whatever was there, even if it just appeared, is in staging
// afterwards.
func (r mover) moveIn(at int) error {
	if r.redo {
		if in, err := r.staged(at); err != nil || !in {
			return err
		}
	}
	c, stg := &r.Changes[at], r.stagingOf(at)
	dir, name := safe.Split(c.Path)
	n, err := r.cur.At(dir)
	if b, ok := errors.AsType[*safe.BlockedError](err); ok {
		return blocked(c.Path, b)
	}
	if err != nil {
		return err
	}
	r.touch(n)
	create := c.Found.Kind == plan.Missing
	for range swaps {
		if create {
			err = r.d.vol.RenameNew(stg, format.SlotName(at), n, name)
			if !errors.Is(err, fs.ErrExist) {
				return err
			}
		} else {
			err = r.replace(at, n, name)
			if !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		create = !create
	}
	return fmt.Errorf("%s was created and deleted repeatedly during the write: %w", c.Path, err)
}

// replace exchanges the staged file with the file at the name, or returns fs.ErrNotExist if there is none.
func (r mover) replace(at int, n *safe.Folder, name string) error {
	c, stg := &r.Changes[at], r.stagingOf(at)
	fi, err := n.Root.Lstat(name)
	if err != nil {
		return err
	}
	if r.redo {
		if slot, err := stg.Root.Lstat(format.SlotName(at)); err == nil && os.SameFile(fi, slot) { // linked before a crash
			return r.d.vol.Remove(stg, format.SlotName(at))
		}
	}
	if fi.IsDir() {
		if err := r.mayReplaceDir(c, n, name); err != nil {
			return err
		}
	}
	r.cur.Drop(c.Path)
	r.Slots[at].Took = true
	if err := r.d.vol.Exchange(stg, format.SlotName(at), n, name); !errors.Is(err, safe.ErrNoExchange) {
		return err
	}
	return r.replaceInTwo(at, n, name)
}

// replaceInTwo is replace for a file system that cannot exchange: it moves the file at the name aside, whatever it is
// by then, and the staged file to the free name. The name is missing for a moment. A hard link to the old file followed
// by a rename over it would avoid that, but lose what the gateway writes in between.
func (r mover) replaceInTwo(at int, n *safe.Folder, name string) error {
	c, stg := &r.Changes[at], r.stagingOf(at)
	cameBack := fmt.Errorf("the gateway wrote %s during its replacement", c.Path)
	if _, err := stg.Root.Lstat(format.AsideName(at)); err == nil {
		return cameBack
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := r.d.vol.Rename(n, name, stg, format.AsideName(at)); err != nil {
		return err
	}
	err := r.d.vol.RenameNew(stg, format.SlotName(at), n, name)
	if errors.Is(err, fs.ErrExist) {
		return cameBack
	}
	return err
}

// mayReplaceDir refuses to replace a directory that still has files that the plan does not know.
func (r mover) mayReplaceDir(c *plan.Change, n *safe.Folder, name string) error {
	if c.Conflict {
		return nil
	}
	child, err := n.Open(name)
	if safe.NotThere(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer child.Close()
	first, err := safe.FirstFile(child)
	if err != nil || first == "" {
		return err
	}
	return occupied(c.Path, first)
}

// moveOut moves a deleted file to staging.
func (r mover) moveOut(at int) error {
	c, stg := &r.Changes[at], r.stagingOf(at)
	if r.redo {
		if _, err := stg.Root.Lstat(format.SlotName(at)); err == nil {
			return nil
		}
	}
	dir, name := safe.Split(c.Path)
	n, err := r.cur.At(dir)
	if safe.NotThere(err) {
		return nil // the gateway was faster
	}
	if err != nil {
		return err
	}
	fi, err := n.Root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if fi.IsDir() && c.Found.Kind != plan.Dir {
		r.d.log.Warn("kept a directory in place of a deleted file", "path", c.Path)
		return nil
	}
	r.touch(n)
	r.cur.Drop(c.Path)
	r.Slots[at].Took = true
	if err := r.d.vol.Rename(n, name, stg, format.SlotName(at)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (r mover) makeDir(x *format.Directory) error {
	parent, name := safe.Split(x.Path)
	n, err := r.cur.At(parent)
	if b, ok := errors.AsType[*safe.BlockedError](err); ok {
		return blocked(x.Path, b)
	}
	if err != nil {
		return err
	}
	err = r.d.vol.Mkdir(n, name, fs.FileMode(x.Perm))
	if errors.Is(err, fs.ErrExist) {
		// Before a crash this run made it; otherwise the gateway did, and it is not ours.
		x.Kept = !r.redo
		return nil
	}
	if err != nil {
		return err
	}
	r.touch(n)
	like, err := n.Stat()
	if err != nil {
		return err
	}
	child, err := n.Open(name)
	if b, ok := errors.AsType[*safe.BlockedError](err); ok {
		return blocked(x.Path, b)
	}
	if err != nil {
		return err
	}
	defer child.Close()
	return r.d.vol.SetDirAttrs(child, like, fs.FileMode(x.Perm))
}

func (r mover) removeDir(x *format.Directory) error {
	parent, name := safe.Split(x.Path)
	r.cur.Drop(x.Path)
	n, err := r.cur.At(parent)
	if safe.NotThere(err) {
		return nil
	}
	if err != nil {
		return err
	}
	err = r.d.vol.Rmdir(n, name)
	switch {
	case err == nil:
		r.touch(n)
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case safe.IsNotEmpty(err), errors.Is(err, syscall.EBUSY): // or a mount
		x.Kept = true
		return nil
	}
	if fi, lerr := n.Root.Lstat(name); lerr == nil && !fi.IsDir() {
		return nil // replaced by something else
	}
	return err
}

// syncNames makes all changed names durable: directory by directory, or by syncing their file systems.
func (r *run) syncNames() error {
	if r.redo || safe.HaveSyncfs && len(r.touched) > r.d.o.FsyncFiles {
		for _, a := range r.Areas {
			if err := r.d.vol.SyncFS(r.staging[a]); err != nil && !errors.Is(err, errors.ErrUnsupported) {
				return safe.WriteError(err, "sync the new files to disk")
			}
		}
		return nil
	}
	dirs := make([]string, 0, len(r.touched))
	for dir := range r.touched {
		dirs = append(dirs, dir)
	}
	slices.Sort(dirs)
	for _, dir := range dirs {
		n, err := r.cur.At(dir)
		if safe.NotThere(err) {
			continue // removed since, which a sync of its parent makes durable
		}
		if err != nil {
			return fmt.Errorf("open %s to sync it: %w", dir, err)
		}
		if err := r.d.vol.SyncDir(n); err != nil {
			return safe.WriteError(err, "sync %s to disk", dir)
		}
	}
	for _, a := range r.Areas {
		if err := r.d.vol.SyncDir(r.staging[a]); err != nil {
			return safe.WriteError(err, "sync the staging folder to disk")
		}
	}
	return nil
}
