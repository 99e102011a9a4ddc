package disk

import (
	"context"
	"errors"
	"io/fs"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/lostfound"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/disk/snapshot"
	"stoker.io/stoker/agent/plan"
)

// Names in .stoker.
const (
	manifestFile = format.ManifestFile
	journalFile  = format.JournalFile
	undoFile     = format.UndoFile
	areasFile    = "areas" // lists the directories with staging folders of their own
	modesFile    = "modes" // created for a moment to check its mode bits
)

// run is one apply, from staging to its end. After a crash, it comes from its journal. Its methods identify a change by the index
// in Changes.
type run struct {
	format.Journal
	d           *Dir
	cur         safe.Cursor
	trees       stagedTrees
	staging     *safe.Staging
	touched     map[string]struct{} // directories with changed names that are not durable yet; see recordTouched
	replayed    bool                // the run comes from a journal that a crash left
	rollingBack bool
	// doubtful reports that some files may not be what the new manifest says.
	doubtful  bool
	snapshots snapshot.Options // zero after a crash, and for a run without a snapshot
	saver     *lostfound.Saver // nil until something may be saved
	buf       []byte           // for hashing
}

func (r *run) init() {
	r.cur.Top = r.d.top
	r.trees = stagedTrees{cur: safe.Cursor{Top: r.d.top}, placed: map[string]struct{}{}, owners: map[int32]fs.FileInfo{}}
	r.staging = safe.NewStaging(r.d.own)
	r.touched = map[string]struct{}{}
	r.buf = make([]byte, 64<<10)
}

// close closes the open directories.
func (r *run) close() {
	r.cur.Reset()
	r.trees.cur.Reset()
	r.staging.Close()
}

// stagingOf returns the staging folder that has the slot of a change.
func (r *run) stagingOf(i int) *safe.Folder { return r.staging.In(r.Areas[r.Slots[i].Area]) }

// savedEntries returns what went to lost+found.
func (r *run) savedEntries() []Lost {
	if r.saver == nil {
		return nil
	}
	return r.saver.Entries
}

// recordTouched records that names in a directory changed. With syncfs it stops after FsyncFiles+1 directories, because syncNames
// then uses syncfs. A first sync would record tens of thousands.
func (r *run) recordTouched(folder *safe.Folder) {
	if !safe.HaveSyncfs || len(r.touched) <= r.d.o.FsyncFiles {
		r.touched[folder.Path] = struct{}{}
	}
}

// hash returns the blob id of a file. An unreadable or too large file has the null id, so that it counts as not in git. No
// context interrupts hash, because it runs while files move.
func (r *run) hash(folder *safe.Folder, name string) (plan.ID, error) {
	id, err := folder.Hash(context.Background(), name, r.buf, r.d.o.MaxBlob)
	if errors.Is(err, fs.ErrPermission) {
		return plan.ID{}, nil
	}
	return id, err
}
