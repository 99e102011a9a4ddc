package disk

import (
	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/lostfound"
	"stoker.io/stoker/agent/disk/safe"
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
	retain   Snapshots        // limits of the snapshots; zero after a crash
	saver    *lostfound.Saver // nil until something may be saved
	buf      []byte           // for copying and hashing
}

// stagingDir is the folder of staged files in the .stoker of an area.
const stagingDir = "staging"

// saved returns what went to lost+found.
func (r *run) saved() []Lost {
	if r.saver == nil {
		return nil
	}
	return r.saver.Entries
}
