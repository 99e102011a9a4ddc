package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/lostfound"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

// rollback undoes the steps of a run in reverse order.
type rollback struct{ *run }

// undo rolls a run back. It first renames the journal, so that recovery after a crash also rolls back. It may be repeated,
// because it skips steps that were never done or are already undone.
func (r rollback) undo() error {
	d := r.d
	if _, err := d.own.Root.Lstat(journalFile); err == nil {
		if err := d.vol.Rename(d.own.Folder, journalFile, d.own.Folder, undoFile); err != nil {
			return safe.WriteError(err, "mark the sync as rolled back")
		}
		if err := d.vol.SyncDir(d.own.Folder); err != nil {
			return safe.WriteError(err, "mark the sync as rolled back")
		}
	}
	// Files that went to lost+found are also in staging, from where they now return to their paths.
	if err := d.lost.Drop(r.Name); err != nil {
		return safe.WriteError(err, "clear lost+found")
	}
	if r.Snapshot != "" {
		if err := d.snapshots.Drop(r.Snapshot); err != nil {
			return safe.WriteError(err, "remove the snapshot of the sync")
		}
	}
	r.saver = d.lost.NewSaver(r.Name+lostfound.UndoSuffix, r.Header.Commit)
	r.back = true
	for i := len(r.Tasks) - 1; i >= 0; i-- {
		var err error
		switch t := r.Tasks[i]; t.Kind {
		case format.TaskWrite:
			err = r.moveBack(t.At)
		case format.TaskRemove:
			err = r.bringBack(t.At)
		case format.TaskMkdir:
			err = r.unmakeDir(&r.Dirs[t.At])
		case format.TaskRmdir:
			err = r.restoreDir(&r.Dirs[t.At])
		}
		if err != nil {
			return safe.WriteError(err, "roll back step %d of %d, %s", i+1, len(r.Tasks), r.PathOf(r.Tasks[i]))
		}
	}
	if err := r.saver.Sync(); err != nil {
		return err
	}
	if err := r.syncNames(); err != nil {
		return err
	}
	if r.doubtful || r.redo && format.BaseOf(d.manifest()) != r.Base {
		if err := (recovery{d}).distrust(); err != nil {
			return err
		}
	}
	return d.own.Drop(undoFile)
}

// moveBack returns what a write replaced to its place. If the place no longer has the bytes of the change, they are the
// gateway's and stay, and what was replaced is saved unless git has it.
func (r rollback) moveBack(at int) error {
	in, err := r.staged(at)
	if err == nil && in {
		in, err = r.halfMoved(at)
	}
	if err != nil {
		return err
	}
	if in {
		if r.redo { // may have been moved back before the crash without this check
			return r.saveForeign(at)
		}
		return nil
	}
	c, stg := &r.Changes[at], r.stagingOf(at)
	old, err := r.displaced(at)
	if err != nil {
		return err
	}
	if old == format.AsideName(at) { // the slot may have what a crash left of a rollback
		if err := r.saveForeign(at); err != nil {
			return err
		}
	}
	dir, name := safe.Split(c.Path)
	n, err := r.cur.At(dir)
	if safe.NotThere(err) {
		return r.saveIfLost(at, old)
	}
	if err != nil {
		return err
	}
	r.touch(n)
	id, err := r.id(n, name)
	if err == nil && id.IsZero() { // now unreadable: identify it by its attributes
		if fi, lerr := n.Root.Lstat(name); lerr == nil && r.itself(at, fi) {
			id = c.ID
		}
	}
	switch _, irregular := errors.AsType[*safe.IrregularError](err); {
	case errors.Is(err, fs.ErrNotExist) && old != "": // the gateway deleted our file: the old one may return
		return r.comeBack(at, old, n, name)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case irregular, err == nil && id != c.ID:
		return r.saveIfLost(at, old)
	case err != nil:
		return err
	case old == format.AsideName(at):
		return r.swapBack(at, n, name)
	case old == "":
		fi, lerr := n.Root.Lstat(name)
		if lerr != nil || r.redo && !r.d.vol.SameExec(fi, c.Exec) { // the old file with the same bytes, moved back before a crash
			return lerr
		}
		err = r.d.vol.Rename(n, name, stg, format.SlotName(at))
	default:
		if r.redo && c.Found.Kind == plan.Missing {
			// Two copies of a new file, because the directory was copied while the file had two names.
			if twin, err := r.id(stg, old); err == nil && twin == c.ID {
				r.doubt(at)
				return r.d.vol.Remove(n, name)
			}
		}
		err = r.d.vol.Exchange(stg, old, n, name)
		if errors.Is(err, safe.ErrNoExchange) { // the directory was copied from a file system that could exchange
			if err := r.d.vol.Rename(stg, old, stg, format.AsideName(at)); err != nil {
				return err
			}
			return r.swapBack(at, n, name)
		}
	}
	if err != nil {
		return err
	}
	return r.saveForeign(at)
}

// halfMoved undoes a write that stopped between its steps on a file system that cannot exchange: the old file was moved
// aside without a replacement, or the wanted bytes have two names. It reports whether the wanted bytes are only in
// staging.
func (r rollback) halfMoved(at int) (in bool, err error) {
	if !r.redo && !r.d.vol.NoExchange.Load() {
		return true, nil
	}
	stg := r.stagingOf(at)
	slot, err := stg.Root.Lstat(format.SlotName(at))
	if err != nil {
		return true, err
	}
	old := format.AsideName(at)
	if _, err := stg.Root.Lstat(old); errors.Is(err, fs.ErrNotExist) {
		old = ""
	} else if err != nil {
		return true, err
	}
	dir, name := safe.Split(r.Changes[at].Path)
	n, err := r.cur.At(dir)
	if safe.NotThere(err) {
		return true, r.saveIfLost(at, old)
	}
	if err != nil {
		return true, err
	}
	switch fi, err := n.Root.Lstat(name); {
	case err == nil && os.SameFile(fi, slot):
		return false, r.d.vol.Remove(stg, format.SlotName(at))
	case err == nil: // the gateway was faster
		return true, r.saveIfLost(at, old)
	case !errors.Is(err, fs.ErrNotExist):
		return true, err
	case old == "":
		return true, nil
	}
	r.touch(n)
	return true, r.comeBack(at, old, n, name)
}

// comeBack moves what was replaced to its free place. If the place is taken by then, it saves it instead.
func (r rollback) comeBack(at int, old string, n *safe.Folder, name string) error {
	err := r.d.vol.RenameNew(r.stagingOf(at), old, n, name)
	if errors.Is(err, fs.ErrExist) {
		return r.saveIfLost(at, old)
	}
	return err
}

// swapBack reverses replaceInTwo.
func (r rollback) swapBack(at int, n *safe.Folder, name string) error {
	err := r.d.vol.Rename(n, name, r.stagingOf(at), format.SlotName(at))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := r.comeBack(at, format.AsideName(at), n, name); err != nil {
		return err
	}
	return r.saveForeign(at)
}

// saveForeign saves a file that came back from the place of a write, if the gateway wrote into it at the last moment.
func (r rollback) saveForeign(at int) error {
	stg := r.stagingOf(at)
	id, err := r.id(stg, format.SlotName(at))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if _, irregular := errors.AsType[*safe.IrregularError](err); err != nil && !irregular {
		return err
	}
	if err == nil && id == r.Changes[at].ID {
		return nil
	}
	return r.saver.Save(stg, format.SlotName(at), r.Changes[at].Path, "written by the gateway during a rolled-back sync")
}

// bringBack puts a file back that the run moved away to delete it.
func (r rollback) bringBack(at int) error {
	c, stg := &r.Changes[at], r.stagingOf(at)
	old, err := r.displaced(at)
	if err != nil || old == "" {
		return err
	}
	dir, name := safe.Split(c.Path)
	n, err := r.cur.At(dir)
	if err == nil {
		r.touch(n)
		err = r.d.vol.RenameNew(stg, old, n, name)
	}
	if errors.Is(err, fs.ErrExist) || safe.NotThere(err) {
		return r.saveIfLost(at, old)
	}
	return err
}

func (r rollback) unmakeDir(x *format.Directory) error {
	if x.Kept {
		return nil
	}
	return mover(r).removeDir(x)
}

func (r rollback) restoreDir(x *format.Directory) error {
	parent, _ := safe.Split(x.Path)
	if _, err := r.cur.At(parent); safe.NotThere(err) {
		return nil
	}
	y := format.Directory{Path: x.Path, Perm: x.Perm}
	if err := mover(r).makeDir(&y); err != nil {
		return fmt.Errorf("recreate %s: %w", x.Path, err)
	}
	return nil
}

// displaced returns the staging name of what a change replaced or removed, or "".
func (r *run) displaced(at int) (string, error) {
	if !r.redo && !r.Slots[at].Took {
		return "", nil
	}
	stg := r.stagingOf(at)
	if _, err := stg.Root.Lstat(format.AsideName(at)); err == nil {
		return format.AsideName(at), nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	fi, err := stg.Root.Lstat(format.SlotName(at))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if r.Changes[at].Op == plan.Delete {
		return format.SlotName(at), nil
	}
	if !r.redo {
		if a := safe.AttrsOf(fi); a.Known && a.Ino == r.Slots[at].Ino {
			return "", nil
		}
		return format.SlotName(at), nil
	}
	if in, err := r.staged(at); err != nil || in {
		return "", err
	}
	return format.SlotName(at), nil
}
