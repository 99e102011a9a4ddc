package disk

import (
	"errors"
	"io/fs"

	"stoker.io/stoker/agent/plan"
)

// staged reports whether the wanted bytes of a write still lie in staging.
//
// The staged file itself is known by its inode, size and mtime, which stay when it is renamed. They do not stay when the
// data directory was copied file by file between a crash and now, and a number may then belong to another file: so what
// is not the file itself is told by its bytes. Where neither the slot nor the place has them, nobody knows what
// happened: the run is in doubt, and its manifest will not be trusted for a short plan.
func (r *run) staged(at int) (bool, error) {
	stg, name := r.stagingOf(at), slotName(at)
	slot, err := stg.root.Lstat(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if err == nil && r.itself(at, slot) {
		return true, nil
	}
	dir, base := split(r.changes[at].Path)
	n, err := r.cur.at(dir)
	if err != nil && !notThere(err) {
		return false, err
	}
	if err == nil {
		fi, err := n.root.Lstat(base)
		if err != nil && !notThere(err) {
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
	if r.back && slot != nil && attrsOf(slot).known && attrsOf(slot).ino == r.slots[at].ino {
		return true, nil // it came back, and the gateway wrote into it at the last moment
	}
	r.doubt(at)
	return false, nil
}

// itself reports whether a file is the one that was staged, by what a copy of it does not share.
func (r *run) itself(at int, fi fs.FileInfo) bool {
	a, s := attrsOf(fi), &r.slots[at]
	return a.known && a.ino == s.ino && fi.Size() == s.size && fi.ModTime().UnixNano() == s.mtime
}

// equal reports whether what lies at a name, described by fi (nil where nothing does), is what git wants.
func (r *run) equal(at int, n *node, name string, fi fs.FileInfo) (bool, error) {
	c := &r.changes[at]
	if fi == nil || !fi.Mode().IsRegular() || fi.Size() != r.slots[at].size || !r.d.sameExec(fi, c.Exec) {
		return false, nil
	}
	id, err := r.id(n, name)
	if _, irregular := errors.AsType[*irregularError](err); irregular || notThere(err) {
		return false, nil
	}
	return id == c.ID, err
}

func (r *run) doubt(at int) {
	if !r.redo { // this process knows what it did; the gateway has replaced the file since
		return
	}
	if !r.doubtful {
		r.d.log.Warn("an interrupted sync left neither the staged file nor its bytes; the next sync compares every file", "path", r.changes[at].Path)
	}
	r.doubtful = true
}

// base is the manifest that a run starts from: the journal says it, so that a replay can tell whether it still has it.
type base struct {
	known  bool // there was one
	commit plan.ID
	files  int
}

func baseOf(m *manifest) base {
	if m.f == nil {
		return base{}
	}
	return base{known: true, commit: m.header.Commit, files: m.header.Files}
}

// rests reports whether a manifest is the one that the run starts from, or already the one that it ends with.
func (r *run) rests(m *manifest) bool {
	return baseOf(m) == r.base || m.f != nil && m.header.Commit == r.header.Commit
}
