package disk

import (
	"strconv"

	"stoker.io/stoker/agent/plan"
)

// run is one apply, from staging to its end, which may come from its journal after a crash.
type run struct {
	d       *Dir
	header  plan.Header
	name    string             // of its folder in lost+found
	areas   []string           // directories with .stoker/staging, "" first
	changes []plan.Change      // sorted by path
	signed  map[string]plan.ID // see plan.Changes.Signed
	slots   []slot             // one per change
	dirs    []directory        // that tasks make or remove
	tasks   []task             // in order
	refuse  bool               // see RefuseForeign
	base    base               // the manifest that the edits apply to

	cur     cursor
	staging map[string]*node    // by area
	touched map[string]struct{} // directories with changed names that are not durable yet; see touch
	redo    bool                // after a crash
	back    bool                // rolling back
	// doubtful reports that some files may not be what the new manifest says.
	doubtful bool
	saver    *saver // nil until something may be saved
	buf      []byte // for copying and hashing
}

// slot is the place of a change in a staging folder: first of the wanted bytes, then of what they replaced.
type slot struct {
	ino   uint64 // of the file with the wanted bytes
	size  int64
	mtime int64
	area  uint16
	// took reports that this process started to move something from its place to the slot; unknown after a crash.
	took bool
}

// directory is one that the run makes, or one of ours that it removes if empty.
type directory struct {
	path string
	made bool // to be made; otherwise to be removed
	perm uint32
	// kept reports that the directory to be made already existed, or that the one to be removed is not empty.
	kept bool
}

// task is one step of a run.
type task struct {
	kind taskKind
	at   int // index in changes or dirs
}

// pathOf returns the path of a step.
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

// stagingDir is the folder in the ownDir of an area.
const (
	ownDir     = ".stoker"
	stagingDir = "staging"
)

// saved returns what went to lost+found.
func (r *run) saved() []Lost {
	if r.saver == nil {
		return nil
	}
	return r.saver.entries
}

func slotName(at int) string { return strconv.Itoa(at) }

// asideName is the staging name of an old file on a file system that cannot exchange two names.
func asideName(at int) string { return strconv.Itoa(at) + ".old" }

func writes(op plan.Op) bool { return op == plan.Create || op == plan.Update }

func moves(op plan.Op) bool { return writes(op) || op == plan.Delete }

// edits yields the run's changes to the manifest.
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
				// A path may be both file and directory: a written file counts, and a directory counts in place of a
				// removed file.
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
