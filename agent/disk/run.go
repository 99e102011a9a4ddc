package disk

import (
	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/lostfound"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/disk/snapshot"
)

// run is one apply, from staging to its end, which may come from its journal after a crash.
type run struct {
	format.Journal
	d       *Dir
	cur     safe.Cursor
	staging map[string]*safe.Folder // by area
	touched map[string]struct{}     // directories with changed names that are not durable yet; see touch
	redo    bool                    // after a crash
	back    bool                    // rolling back
	// doubtful reports that some files may not be what the new manifest says.
	doubtful bool
	retain   snapshot.Retention // of the snapshots; zero after a crash
	saver    *lostfound.Saver   // nil until something may be saved
	buf      []byte             // for copying and hashing
}

// Names in .stoker.
const (
	manifestFile = format.ManifestFile
	journalFile  = format.JournalFile
	undoFile     = format.UndoFile
	areasFile    = "areas"   // lists the directories with staging folders of their own
	modesFile    = "modes"   // created for a moment to check its mode bits
	stagingDir   = "staging" // the folder of staged files, in the .stoker of each area
)

// saved returns what went to lost+found.
func (r *run) saved() []Lost {
	if r.saver == nil {
		return nil
	}
	return r.saver.Entries
}
