package snapshot

import (
	"errors"
	"io/fs"
	"os"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

// Live is the data directory as it is now.
type Live struct {
	Top      *os.Root
	State    plan.State
	Manifest plan.Manifest
	// Rewritten reports whether the gateway itself rewrote a recorded file without changing its meaning. The file is called name
	// in n, and now is its blob id.
	Rewritten func(n *safe.Folder, name string, rec plan.Owned, now plan.ID) bool
}

// find returns a change without an operation, with what is at a path. rec is the record of the path, if owned is true.
func (l Live) find(path string, rec plan.Owned, owned bool) (plan.Change, error) {
	st, err := l.State.Stat(path)
	if err != nil {
		return plan.Change{}, err
	}
	c := plan.Change{Path: path, Found: st, Owned: owned}
	switch {
	case st.Kind != plan.File:
	case owned && st.Size == rec.Size && st.Mtime == rec.Mtime:
		c.FoundID = rec.Have
	default:
		c.FoundID, err = l.State.BlobID(path)
		if errors.Is(err, fs.ErrNotExist) {
			c.Found = plan.Stat{} // removed meanwhile
		} else if err != nil {
			return plan.Change{}, err
		}
	}
	c.Conflict = c.Found.Kind != plan.Missing && (!owned || c.Found.Kind != plan.File || c.FoundID != rec.Have && !l.rewritten(rec, c.FoundID))
	return c, nil
}

// rewritten is Rewritten for the file at its recorded path.
func (l Live) rewritten(rec plan.Owned, now plan.ID) bool {
	dir, name := safe.Split(rec.Path)
	c := safe.Cursor{Top: l.Top}
	defer c.Reset()
	n, err := c.At(dir)
	return err == nil && l.Rewritten(n, name, rec, now)
}
