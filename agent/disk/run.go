package disk

import (
	"strconv"

	"stoker.io/stoker/agent/plan"
)

// run is one apply, from its staging to its end, which may come after a crash from its journal.
type run struct {
	d       *Dir
	header  plan.Header
	name    string             // of its folder in lost+found
	areas   []string           // directories that hold .stoker/staging, "" first
	changes []plan.Change      // sorted by path
	signed  map[string]plan.ID // see plan.Changes.Signed
	slots   []slot             // one per change
	dirs    []directory        // that tasks make or remove
	tasks   []task             // what moves, in order
	refuse  bool               // see RefuseForeign
	base    base               // the manifest that the header and the edits are put on

	cur     cursor
	staging map[string]*node    // by area
	touched map[string]struct{} // directories whose names changed and are not durable yet; see touch
	redo    bool                // after a crash
	back    bool                // it is taken back
	// doubtful says that it is not known whether all files are what the manifest will say of them.
	doubtful bool
	saved    []Lost
	buf      []byte // for copying and hashing
}

// slot is the place of a change in a staging folder: first of the wanted bytes, then of what they replaced.
type slot struct {
	ino   uint64 // of the file with the wanted bytes
	size  int64
	mtime int64
	area  uint16
	// took says that this process moved something from its place to the slot, or began to; after a crash nobody knows.
	took bool
}

// directory is one that the run makes, or one of ours that it removes when it is empty.
type directory struct {
	path string
	made bool // true for one to be made; false for one to be removed
	perm uint32
	// kept is what happened: a directory to be made that was there, or one to be removed that is not empty.
	kept bool
}

// task is one step of a run.
type task struct {
	kind taskKind
	at   int // index in changes or dirs
}

// pathOf returns what a step is about.
func (r *run) pathOf(t task) string {
	if t.kind == taskWrite || t.kind == taskRemove {
		return r.changes[t.at].Path
	}
	return r.dirs[t.at].path
}

type taskKind uint8

const (
	taskWrite taskKind = iota + 1
	taskRemove
	taskMkdir
	taskRmdir
)

// stagingDir is the folder below an area.
const (
	ownDir     = ".stoker"
	stagingDir = "staging"
)

func slotName(at int) string { return strconv.Itoa(at) }

// asideName is where an old file lies on a file system that cannot exchange two names.
func asideName(at int) string { return strconv.Itoa(at) + ".old" }

func writes(op plan.Op) bool { return op == plan.Create || op == plan.Update }

func moves(op plan.Op) bool { return writes(op) || op == plan.Delete }

// edits yields what the run changes in the manifest.
func (r *run) edits() edits {
	dirs := r.editedDirs()
	c, k := 0, 0
	dir := func() *directory { return &r.dirs[dirs[k]] }
	return func() (edit, bool) {
		for {
			switch {
			case c == len(r.changes) && k == len(dirs):
				return edit{}, false
			case c == len(r.changes) || k < len(dirs) && dir().path < r.changes[c].Path:
				k++
				return r.dirs[dirs[k-1]].edit(), true
			case k < len(dirs) && dir().path == r.changes[c].Path:
				// The same path as file and as directory: what a write leaves there is a file, and where a file went
				// away for a directory, the directory counts.
				if !writes(r.changes[c].Op) && dir().made {
					c++
				} else {
					k++
				}
			default:
				c++
				return r.edit(c - 1), true
			}
		}
	}
}

func (r *run) edit(i int) edit {
	c, s := &r.changes[i], &r.slots[i]
	rec := record{Owned: plan.Owned{
		Path: c.Path, Want: c.ID, Have: c.ID, Size: s.size, Mtime: s.mtime, Exec: c.Exec, Origin: c.Origin,
	}}
	switch c.Op {
	case plan.Create, plan.Update:
		if git, ok := r.signed[c.Path]; ok {
			rec.Want = git
		}
		return edit{editSet, rec}
	case plan.Adopt:
		rec.Have, rec.Size, rec.Mtime = c.FoundID, c.Found.Size, c.Found.Mtime
		return edit{editSet, rec}
	case plan.Keep:
		return edit{editKeep, rec}
	default:
		return edit{editDrop, rec}
	}
}
