package disk

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
)

// maxCompared is the maximum size in bytes of a JSON file that is compared by meaning.
const maxCompared = 4 << 20

// rewritten reports whether the gateway itself rewrote a recorded file without changing its meaning: it signed a resource.json again, or made
// a thumbnail. The file is called name in n, and now is its blob id.
func (d *Dir) rewritten(n *safe.Folder, name string, rec plan.Owned, now plan.ID) bool {
	rec.Have = now
	return path.Base(rec.Path) == resource.Thumbnail || d.sameMeaning(n, name, rec)
}

// sameMeaning reports whether a JSON file means the same as the content from git, rec.Want. The file is called name in n,
// belongs to rec.Path and has the content rec.Have. sameMeaning returns false if the content from git is not available.
func (d *Dir) sameMeaning(n *safe.Folder, name string, rec plan.Owned) bool {
	compare := resource.SameJSON
	switch {
	case d.o.Wanted == nil || path.Ext(rec.Path) != ".json":
		return false
	case path.Base(rec.Path) == resource.File:
		compare = resource.SameButModification
	}
	f, fi, err := n.File(name, os.O_RDONLY)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }() // opened for reading
	if fi.Size() > maxCompared {
		return false
	}
	now, err := io.ReadAll(io.LimitReader(f, maxCompared))
	if err != nil || safe.BlobID(now) != rec.Have {
		return false
	}
	b := &limited{}
	if _, err := d.o.Wanted(b, rec.Want); err != nil {
		d.log.Debug("cannot compare as JSON", "path", n.Join(name), "error", err)
		return false
	}
	same, err := compare(now, b.Bytes())
	return err == nil && same
}

// limited is a buffer of at most maxCompared bytes.
type limited struct{ bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if l.Len()+len(p) > maxCompared {
		return 0, errors.New("the blob is too large to compare as JSON")
	}
	return l.Buffer.Write(p)
}
