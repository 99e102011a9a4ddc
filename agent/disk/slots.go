package disk

import (
	"errors"
	"io/fs"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

// A slot is the place of a change in a staging folder. First it has the new file, unless stagedTrees has it. Then it has what the new file replaced.

// inStaging reports whether the wanted bytes of a write are still in staging.
//
// The staged file keeps its inode, size and mtime when it is renamed. If the data directory was copied file by file
// after a crash, these have changed, and an inode may belong to another file, so the bytes decide. If neither the slot
// nor the destination has them, inStaging calls doubt, except in two cases of a rollback.
func (r *run) inStaging(i int) (bool, error) {
	_, _, slot, err := r.stagedAt(i)
	if err != nil {
		return false, err
	}
	if slot != nil && isStagedFile(&r.Slots[i], slot) {
		return true, nil
	}
	folder, base, err := r.cur.Parent(r.Changes[i].Path)
	if err != nil && !safe.NotThere(err) {
		return false, err
	}
	if err == nil {
		fi, err := folder.Lstat(base)
		if err != nil && !safe.NotThere(err) {
			return false, err
		}
		if err == nil && isStagedFile(&r.Slots[i], fi) {
			return false, nil
		}
		if in, err := r.hasWantedBytes(i, folder, base, fi); err != nil || in {
			return false, err
		}
	}
	stg, name, slot, err := r.stagedAt(i)
	if err != nil {
		return false, err
	}
	if in, err := r.hasWantedBytes(i, stg, name, slot); err != nil || in {
		return in, err
	}
	if r.rollingBack && slot != nil && safe.AttrsOf(slot).Known && safe.AttrsOf(slot).Ino == r.Slots[i].Ino {
		return true, nil // the file was moved back, and the gateway wrote into it at the last moment
	}
	if r.rollingBack && slot == nil && r.Slots[i].Tree > 0 {
		return false, nil // a rollback before the crash has removed its tree; see stagedTrees
	}
	r.doubt(i)
	return false, nil
}

// isStagedFile reports whether a file is the one that was staged in a slot and not a copy.
func isStagedFile(s *format.Slot, fi fs.FileInfo) bool {
	a := safe.AttrsOf(fi)
	return a.Known && a.Ino == s.Ino && fi.Size() == s.Size && fi.ModTime().UnixNano() == s.Mtime
}

// hasWantedBytes reports whether the file at a name is what git wants. fi is nil if the name does not exist.
func (r *run) hasWantedBytes(i int, folder *safe.Folder, name string, fi fs.FileInfo) (bool, error) {
	c := &r.Changes[i]
	if fi == nil || !fi.Mode().IsRegular() || fi.Size() != r.Slots[i].Size || !r.d.vol.SameExec(fi, c.Exec) {
		return false, nil
	}
	id, err := r.hash(folder, name)
	if _, irregular := errors.AsType[*safe.IrregularError](err); irregular || safe.NotThere(err) {
		return false, nil
	}
	return id == c.ID, err
}

// doubt makes a run doubtful after a crash, because a staged file is missing or exists twice: then the run marks its manifest
// incomplete. Without a crash, doubt does nothing: then the gateway replaced the file.
func (r *run) doubt(i int) {
	if !r.replayed {
		return
	}
	if !r.doubtful {
		r.d.log.Warn("staged file missing; next sync compares every file", "path", r.Changes[i].Path)
	}
	r.doubtful = true
}

// displacedName returns the staging name of what a change replaced or removed, or "".
func (r *run) displacedName(i int) (string, error) {
	if !r.replayed && !r.Slots[i].Displaced {
		return "", nil
	}
	stg := r.stagingOf(i)
	if _, err := stg.Lstat(format.AsideName(i)); err == nil {
		return format.AsideName(i), nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	fi, err := stg.Lstat(format.SlotName(i))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	wanted := false // the slot still has the wanted bytes
	switch {
	case r.Changes[i].Op == plan.Delete:
	case r.replayed:
		wanted, err = r.inStaging(i)
	default:
		a := safe.AttrsOf(fi)
		wanted = a.Known && a.Ino == r.Slots[i].Ino
	}
	if err != nil || wanted {
		return "", err
	}
	return format.SlotName(i), nil
}
