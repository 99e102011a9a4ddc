package disk

import (
	"errors"
	"io/fs"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/safe"
)

// staged reports whether the wanted bytes of a write are still in staging.
//
// The staged file keeps its inode, size and mtime when it is renamed. If the data directory was copied file by file
// after a crash, these do not hold and an inode may belong to another file, so the bytes decide. If neither the slot
// nor the place has the bytes, the run is in doubt, and its manifest is marked incomplete.
func (r *run) staged(at int) (bool, error) {
	stg, name := r.stagingOf(at), format.SlotName(at)
	slot, err := stg.Root.Lstat(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if err == nil && r.itself(at, slot) {
		return true, nil
	}
	dir, base := safe.Split(r.Changes[at].Path)
	n, err := r.cur.At(dir)
	if err != nil && !safe.NotThere(err) {
		return false, err
	}
	if err == nil {
		fi, err := n.Root.Lstat(base)
		if err != nil && !safe.NotThere(err) {
			return false, err
		}
		if err == nil && r.itself(at, fi) {
			return false, nil
		}
		if in, err := r.equal(at, n, base, fi); err != nil || in {
			return false, err
		}
	}
	if in, err := r.equal(at, stg, name, slot); err != nil || in {
		return in, err
	}
	if r.back && slot != nil && safe.AttrsOf(slot).Known && safe.AttrsOf(slot).Ino == r.Slots[at].Ino {
		return true, nil // it was moved back, and the gateway wrote into it at the last moment
	}
	r.doubt(at)
	return false, nil
}

// itself reports whether a file is the staged one and not a copy.
func (r *run) itself(at int, fi fs.FileInfo) bool {
	a, s := safe.AttrsOf(fi), &r.Slots[at]
	return a.Known && a.Ino == s.Ino && fi.Size() == s.Size && fi.ModTime().UnixNano() == s.Mtime
}

// equal reports whether the file at a name is what git wants. fi is nil if the name does not exist.
func (r *run) equal(at int, n *safe.Folder, name string, fi fs.FileInfo) (bool, error) {
	c := &r.Changes[at]
	if fi == nil || !fi.Mode().IsRegular() || fi.Size() != r.Slots[at].Size || !r.d.vol.SameExec(fi, c.Exec) {
		return false, nil
	}
	id, err := r.id(n, name)
	if _, irregular := errors.AsType[*safe.IrregularError](err); irregular || safe.NotThere(err) {
		return false, nil
	}
	return id == c.ID, err
}

func (r *run) doubt(at int) {
	if !r.redo { // without a crash, the gateway replaced the file
		return
	}
	if !r.doubtful {
		r.d.log.Warn("staged file missing; next sync compares every file", "path", r.Changes[at].Path)
	}
	r.doubtful = true
}

// rests reports whether a manifest is the one that the run starts from, or the one that it ends with.
func (r *run) rests(m *format.Manifest) bool {
	return format.BaseOf(m) == r.Base || !m.Missing() && m.Header().Commit == r.Header.Commit
}
