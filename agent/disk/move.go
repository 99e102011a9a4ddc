package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"syscall"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

// mover does the steps of a run.
type mover struct{ run *run }

// move does the steps, except those that were done before a crash.
func (r mover) move() error {
	for i, step := range r.run.Steps {
		var err error
		switch step.Kind {
		case format.StepWrite:
			err = r.moveIn(int(step.Index))
		case format.StepRemove:
			err = r.moveOut(int(step.Index))
		case format.StepMkdir:
			err = r.makeDir(&r.run.Dirs[step.Index])
		case format.StepRmdir:
			err = r.removeDir(&r.run.Dirs[step.Index])
		}
		if errors.Is(err, syscall.EBUSY) { // the next plan detects a mount
			err = fmt.Errorf("%w: a volume was mounted there, or the file server has the file open", err)
		}
		if err != nil {
			return safe.WriteError(err, "step %d of %d, %s", i+1, len(r.run.Steps), r.run.PathOf(step))
		}
	}
	return nil
}

// openParent opens the directory of a path to write, and returns the name of the path in it.
func (r mover) openParent(path string) (folder *safe.Folder, name string, err error) {
	folder, name, err = r.run.cur.Parent(path)
	if b, ok := errors.AsType[*safe.BlockedError](err); ok {
		err = blocked(path, b)
	}
	return folder, name, err
}

// maxAttempts bounds how often the gateway may create or delete a file during its write before the write fails.
const maxAttempts = 100

// moveIn moves the wanted bytes of a change into place. What was in that place, even if it just appeared, is in staging
// afterwards.
func (r mover) moveIn(i int) error {
	if r.run.replayed {
		if in, err := r.run.inStaging(i); err != nil || !in {
			return err
		}
	}
	if r.run.Slots[i].Tree > 0 {
		if in, err := r.leaveTree(i); err != nil || !in {
			return err
		}
	}
	c, stg := &r.run.Changes[i], r.run.stagingOf(i)
	folder, name, err := r.openParent(c.Path)
	if err != nil {
		return err
	}
	r.run.recordTouched(folder)
	create := c.Found.Kind == plan.Missing
	for range maxAttempts {
		if create {
			err = r.run.d.vol.RenameNew(stg, format.SlotName(i), folder, name)
			if !errors.Is(err, fs.ErrExist) {
				return err
			}
		} else {
			err = r.replace(i, folder, name)
			if !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		create = !create
	}
	return fmt.Errorf("%s was created and deleted repeatedly during the write: %w", c.Path, err)
}

// replace exchanges the staged file with the file at the name, or returns fs.ErrNotExist if there is none.
func (r mover) replace(i int, folder *safe.Folder, name string) error {
	c, stg := &r.run.Changes[i], r.run.stagingOf(i)
	fi, err := folder.Lstat(name)
	if err != nil {
		return err
	}
	if r.run.replayed {
		if slot, err := stg.Lstat(format.SlotName(i)); err == nil && safe.SameFile(fi, slot) { // linked before a crash
			return r.run.d.vol.Remove(stg, format.SlotName(i))
		}
	}
	if fi.IsDir() {
		if err := r.checkReplaceDir(c, folder, name); err != nil {
			return err
		}
	}
	r.run.cur.Drop(c.Path)
	r.run.Slots[i].Displaced = true
	if err := r.run.d.vol.Exchange(stg, format.SlotName(i), folder, name); !errors.Is(err, safe.ErrNoExchange) {
		return err
	}
	return r.replaceInTwo(i, folder, name)
}

// replaceInTwo is replace for a file system that cannot exchange: it moves the file at the name aside, whatever it is
// by then, and the staged file to the free name. The name is missing for a moment. A hard link to the old file followed
// by a rename over it would avoid that, but lose what the gateway writes in between.
func (r mover) replaceInTwo(i int, folder *safe.Folder, name string) error {
	c, stg := &r.run.Changes[i], r.run.stagingOf(i)
	cameBack := fmt.Errorf("the gateway wrote %s during its replacement", c.Path)
	if _, err := stg.Lstat(format.AsideName(i)); err == nil {
		return cameBack
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := r.run.d.vol.Rename(folder, name, stg, format.AsideName(i)); err != nil {
		return err
	}
	err := r.run.d.vol.RenameNew(stg, format.SlotName(i), folder, name)
	if errors.Is(err, fs.ErrExist) {
		return cameBack
	}
	return err
}

// checkReplaceDir refuses to replace a directory that still has files that the plan does not know.
func (r mover) checkReplaceDir(c *plan.Change, folder *safe.Folder, name string) error {
	if c.Conflict {
		return nil
	}
	first, err := safe.FirstFile(folder, name)
	if safe.NotThere(err) {
		return nil
	}
	if err != nil || first == "" {
		return err
	}
	return occupied(c.Path, first)
}

// moveOut moves a deleted file to staging.
func (r mover) moveOut(i int) error {
	c, stg := &r.run.Changes[i], r.run.stagingOf(i)
	if r.run.replayed {
		if _, err := stg.Lstat(format.SlotName(i)); err == nil {
			return nil
		}
	}
	folder, name, err := r.run.cur.Parent(c.Path)
	if safe.NotThere(err) {
		return nil // the gateway removed it
	}
	if err != nil {
		return err
	}
	fi, err := folder.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if fi.IsDir() && c.Found.Kind != plan.Dir {
		r.run.d.log.Warn("kept a directory that replaces a deleted file", "path", c.Path)
		return nil
	}
	r.run.recordTouched(folder)
	r.run.cur.Drop(c.Path)
	r.run.Slots[i].Displaced = true
	if err := r.run.d.vol.Rename(folder, name, stg, format.SlotName(i)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// makeDir makes a directory with the owner of its parent.
func (r mover) makeDir(x *format.Directory) error {
	if x.Tree > 0 {
		if done, err := r.placeTree(x); err != nil || done {
			return err
		}
	}
	folder, name, err := r.openParent(x.Path)
	if err != nil {
		return err
	}
	err = r.run.d.vol.Mkdir(folder, name, fs.FileMode(x.Perm))
	if errors.Is(err, fs.ErrExist) {
		// After a crash, this run may have made it before. Otherwise the gateway did, and it is not ours.
		x.Kept = !r.run.replayed
		if x.Kept || !isNew(folder, name) {
			return nil
		}
	} else if err != nil {
		return err
	}
	r.run.recordTouched(folder)
	like, err := folder.Stat()
	if err != nil {
		return err
	}
	child, err := folder.Open(name)
	if b, ok := errors.AsType[*safe.BlockedError](err); ok {
		return blocked(x.Path, b)
	}
	if err != nil {
		return err
	}
	defer child.Close()
	return r.run.d.vol.SetDirAttrs(child, like, fs.FileMode(x.Perm))
}

// isNew reports whether a directory is as the agent makes it, before it sets the owner and the mode: it has no file, and the agent's user owns
// it. If the gateway runs as that user and made it meanwhile, nothing shows that, and the run counts it as its own anyway.
func isNew(in *safe.Folder, name string) bool {
	fi, err := in.Lstat(name)
	if err != nil || safe.AttrsOf(fi).UID != uint32(os.Geteuid()) {
		return false
	}
	first, err := safe.FirstFile(in, name)
	return err == nil && first == ""
}

// removeDir removes a directory if it is empty.
func (r mover) removeDir(x *format.Directory) error {
	parent, name := safe.Split(x.Path)
	r.run.cur.Drop(x.Path)
	folder, err := r.run.cur.At(parent)
	if safe.NotThere(err) {
		return nil
	}
	if err != nil {
		return err
	}
	err = r.run.d.vol.Rmdir(folder, name)
	switch {
	case err == nil:
		r.run.recordTouched(folder)
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case safe.IsNotEmpty(err), errors.Is(err, syscall.EBUSY): // EBUSY: a mount
		x.Kept = true
		return nil
	}
	if fi, lerr := folder.Lstat(name); lerr == nil && !fi.IsDir() {
		return nil // replaced by something else
	}
	return err
}

// syncNames makes all changed names durable: directory by directory, or by syncing their file systems.
func (r *run) syncNames() error {
	if r.replayed || safe.HaveSyncfs && len(r.touched) > r.d.o.FsyncFiles || len(r.trees.placed) > 0 {
		for _, a := range r.Areas {
			if err := r.d.vol.SyncFS(r.staging.In(a)); err != nil && !errors.Is(err, errors.ErrUnsupported) {
				return safe.WriteError(err, "sync the new files to disk")
			}
		}
		return nil
	}
	for _, dir := range slices.Sorted(maps.Keys(r.touched)) {
		folder, err := r.cur.At(dir)
		if safe.NotThere(err) {
			continue // removed since, which a sync of its parent makes durable
		}
		if err != nil {
			return fmt.Errorf("open %s to sync it: %w", dir, err)
		}
		if err := r.d.vol.SyncDir(folder); err != nil {
			return safe.WriteError(err, "sync %s to disk", dir)
		}
	}
	for _, a := range r.Areas {
		if err := r.d.vol.SyncDir(r.staging.In(a)); err != nil {
			return safe.WriteError(err, "sync the staging folder to disk")
		}
	}
	return nil
}
