package disk

import (
	"errors"
	"fmt"
	"io/fs"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/lostfound"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

// rollback undoes the steps of a run in reverse order.
type rollback struct{ run *run }

// undo rolls a run back. It first renames the journal, so that recovery after a crash also rolls back. undo can be repeated,
// because it skips steps that were never done or are already undone.
func (r rollback) undo() error {
	d := r.run.d
	if _, err := d.own.Lstat(journalFile); err == nil {
		if err := d.vol.Rename(d.own.Folder, journalFile, d.own.Folder, undoFile); err != nil {
			return safe.WriteError(err, "mark the sync as rolled back")
		}
		if err := d.vol.SyncDir(d.own.Folder); err != nil {
			return safe.WriteError(err, "mark the sync as rolled back")
		}
	}
	// Files that went to lost+found are also in staging, from where they now return to their paths.
	if err := d.lost.Drop(r.run.LostFolder); err != nil {
		return safe.WriteError(err, "clear lost+found")
	}
	if r.run.Snapshot != "" {
		if err := d.snapshots.Drop(r.run.Snapshot); err != nil {
			return safe.WriteError(err, "remove the snapshot of the sync")
		}
	}
	r.run.saver = d.lost.NewSaver(r.run.LostFolder+lostfound.UndoSuffix, r.run.Header.Commit)
	r.run.rollingBack = true
	for i := len(r.run.Steps) - 1; i >= 0; i-- {
		var err error
		switch step := r.run.Steps[i]; step.Kind {
		case format.StepWrite:
			err = r.undoWrite(int(step.Index))
		case format.StepRemove:
			err = r.undoRemove(int(step.Index))
		case format.StepMkdir:
			err = r.undoMkdir(&r.run.Dirs[step.Index])
		case format.StepRmdir:
			err = r.undoRmdir(&r.run.Dirs[step.Index])
		}
		if err != nil {
			return safe.WriteError(err, "roll back step %d of %d, %s", i+1, len(r.run.Steps), r.run.PathOf(r.run.Steps[i]))
		}
	}
	if err := r.run.saver.Sync(); err != nil {
		return err
	}
	if err := r.run.syncNames(); err != nil {
		return err
	}
	m := d.manifest()
	changed := r.run.replayed && format.BaseOf(m) != r.run.Base
	if changed && !m.Missing() && r.run.Restores != "" && !r.run.hasSnapshot() {
		// The run committed before a crash, and may have removed a snapshot without which the older ones cannot be restored.
		if err := d.snapshots.DropAll(); err != nil {
			return err
		}
	}
	if changed || r.run.doubtful {
		if err := (recoverer{d}).markIncomplete(); err != nil {
			return err
		}
	}
	return d.own.Drop(undoFile)
}

// undoWrite returns what a write replaced to its place. If the gateway has written other bytes there meanwhile, these stay, and
// what was replaced goes to lost+found unless git has it.
func (r rollback) undoWrite(i int) error {
	in, err := r.run.inStaging(i)
	if err == nil && in {
		in, err = r.undoHalfWrite(i)
	}
	if err != nil {
		return err
	}
	if in {
		if r.run.replayed { // a rollback before the crash may have moved it here without this check
			return r.saveForeign(i)
		}
		return nil
	}
	c, stg := &r.run.Changes[i], r.run.stagingOf(i)
	old, err := r.run.displacedName(i)
	if err != nil {
		return err
	}
	if old == format.AsideName(i) { // a rollback before a crash may have left something in the slot
		if err := r.saveForeign(i); err != nil {
			return err
		}
	}
	folder, name, err := r.run.cur.Parent(c.Path)
	if safe.NotThere(err) {
		return r.run.saveIfLost(i, old)
	}
	if err != nil {
		return err
	}
	r.run.recordTouched(folder)
	id, err := r.run.hash(folder, name)
	if err == nil && id.IsZero() { // unreadable: identify it by its attributes
		if fi, lerr := folder.Lstat(name); lerr == nil && isStagedFile(&r.run.Slots[i], fi) {
			id = c.ID
		}
	}
	switch _, irregular := errors.AsType[*safe.IrregularError](err); {
	case errors.Is(err, fs.ErrNotExist) && old != "": // the gateway deleted our file
		return r.putBack(i, old, folder, name)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case irregular, err == nil && id != c.ID:
		return r.run.saveIfLost(i, old)
	case err != nil:
		return err
	case old == format.AsideName(i):
		return r.undoReplaceInTwo(i, folder, name)
	case old == "":
		fi, lerr := folder.Lstat(name)
		if lerr != nil || r.run.replayed && !r.run.d.vol.SameExec(fi, c.Exec) { // the old file with the same bytes, moved back before a crash
			return lerr
		}
		err = r.run.d.vol.Rename(folder, name, stg, format.SlotName(i))
	default:
		return r.undoExchange(i, old, folder, name)
	}
	if err == nil {
		err = r.saveForeign(i)
	}
	if err != nil || r.run.Slots[i].Tree == 0 {
		return err
	}
	// A file that moved with its directory had no name in staging, and a full disk may have no room for it.
	return r.run.d.vol.Remove(stg, format.SlotName(i))
}

// undoExchange exchanges the file at name, which has our bytes, with the file that it replaced, which is called old in staging.
func (r rollback) undoExchange(i int, old string, folder *safe.Folder, name string) error {
	c, stg := &r.run.Changes[i], r.run.stagingOf(i)
	if r.run.replayed && c.Found.Kind == plan.Missing {
		// Two copies of a new file, because the directory was copied while the file had two names.
		if twin, err := r.run.hash(stg, old); err == nil && twin == c.ID {
			r.run.doubt(i)
			return r.run.d.vol.Remove(folder, name)
		}
	}
	err := r.run.d.vol.Exchange(stg, old, folder, name)
	if errors.Is(err, safe.ErrNoExchange) { // the directory was copied from a file system that could exchange
		if err := r.run.d.vol.Rename(stg, old, stg, format.AsideName(i)); err != nil {
			return err
		}
		return r.undoReplaceInTwo(i, folder, name)
	}
	if err != nil {
		return err
	}
	return r.saveForeign(i)
}

// undoHalfWrite undoes a write that stopped between its steps on a file system that cannot exchange: the old file was moved
// aside without a replacement, or the wanted bytes have two names. It reports whether the wanted bytes are still in staging.
func (r rollback) undoHalfWrite(i int) (in bool, err error) {
	if !r.run.replayed && !r.run.d.vol.NoExchange.Load() {
		return true, nil
	}
	stg := r.run.stagingOf(i)
	slot, err := stg.Lstat(format.SlotName(i))
	if errors.Is(err, fs.ErrNotExist) && r.run.Slots[i].Tree > 0 {
		return true, nil // in its tree
	}
	if err != nil {
		return true, err
	}
	old := format.AsideName(i)
	if _, err := stg.Lstat(old); errors.Is(err, fs.ErrNotExist) {
		old = ""
	} else if err != nil {
		return true, err
	}
	folder, name, err := r.run.cur.Parent(r.run.Changes[i].Path)
	if safe.NotThere(err) {
		return true, r.run.saveIfLost(i, old)
	}
	if err != nil {
		return true, err
	}
	switch fi, err := folder.Lstat(name); {
	case err == nil && safe.SameFile(fi, slot):
		return false, r.run.d.vol.Remove(stg, format.SlotName(i))
	case err == nil: // the gateway has written there
		return true, r.run.saveIfLost(i, old)
	case !errors.Is(err, fs.ErrNotExist):
		return true, err
	case old == "":
		return true, nil
	}
	r.run.recordTouched(folder)
	return true, r.putBack(i, old, folder, name)
}

// putBack moves what was replaced to its free place. If something appears there meanwhile, putBack saves what was replaced
// instead.
func (r rollback) putBack(i int, old string, folder *safe.Folder, name string) error {
	err := r.run.d.vol.RenameNew(r.run.stagingOf(i), old, folder, name)
	if errors.Is(err, fs.ErrExist) {
		return r.run.saveIfLost(i, old)
	}
	return err
}

// undoReplaceInTwo reverses replaceInTwo.
func (r rollback) undoReplaceInTwo(i int, folder *safe.Folder, name string) error {
	err := r.run.d.vol.Rename(folder, name, r.run.stagingOf(i), format.SlotName(i))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := r.putBack(i, format.AsideName(i), folder, name); err != nil {
		return err
	}
	return r.saveForeign(i)
}

// saveForeign saves the file in the slot of a write that was undone, if the gateway wrote into it at the last moment.
func (r rollback) saveForeign(i int) error {
	stg := r.run.stagingOf(i)
	id, err := r.run.hash(stg, format.SlotName(i))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if _, irregular := errors.AsType[*safe.IrregularError](err); err != nil && !irregular {
		return err
	}
	if err == nil && id == r.run.Changes[i].ID {
		return nil
	}
	return r.run.saver.Save(stg, format.SlotName(i), r.run.Changes[i].Path, "written by the gateway during a rolled-back sync")
}

// undoRemove puts a file back that the run moved to staging to delete it.
func (r rollback) undoRemove(i int) error {
	c, stg := &r.run.Changes[i], r.run.stagingOf(i)
	old, err := r.run.displacedName(i)
	if err != nil || old == "" {
		return err
	}
	folder, name, err := r.run.cur.Parent(c.Path)
	if err == nil {
		r.run.recordTouched(folder)
		err = r.run.d.vol.RenameNew(stg, old, folder, name)
	}
	if errors.Is(err, fs.ErrExist) || safe.NotThere(err) {
		return r.run.saveIfLost(i, old)
	}
	return err
}

// undoMkdir removes a directory that the run made, if it is empty.
func (r rollback) undoMkdir(x *format.Directory) error {
	if x.Kept {
		return nil
	}
	return mover(r).removeDir(x)
}

// undoRmdir makes a directory again that the run removed.
func (r rollback) undoRmdir(x *format.Directory) error {
	parent, _ := safe.Split(x.Path)
	if _, err := r.run.cur.At(parent); safe.NotThere(err) {
		return nil
	}
	y := format.Directory{Path: x.Path, Perm: x.Perm}
	if err := mover(r).makeDir(&y); err != nil {
		return fmt.Errorf("recreate %s: %w", x.Path, err)
	}
	return nil
}
