package disk

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"path"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/internal/bound"
)

// rewriteDetector detects files that the gateway itself rewrote without changing their meaning.
type rewriteDetector struct {
	wanted func(w io.Writer, id plan.ID) (int64, error) // see Options.Wanted
	log    *slog.Logger
}

// rewritten reports whether the gateway itself rewrote a recorded file without changing its meaning: it signed a resource.json
// again, wrote JSON of the same meaning, or made a thumbnail. The file is called name in folder, and now is its blob id.
func (d *rewriteDetector) rewritten(folder *safe.Folder, name string, rec plan.Owned, now plan.ID) bool {
	rec.Have = now
	return path.Base(rec.Path) == resource.Thumbnail || d.sameMeaning(folder, name, rec)
}

// sameMeaning reports whether a JSON file means the same as the content from git, rec.Want. The file is called name in folder,
// belongs to rec.Path and has the content rec.Have. sameMeaning returns false if the content from git is not available.
func (d *rewriteDetector) sameMeaning(folder *safe.Folder, name string, rec plan.Owned) bool {
	compare := resource.Comparison(rec.Path)
	if d.wanted == nil || compare == nil {
		return false
	}
	f, fi, err := folder.File(name, os.O_RDONLY)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }() // opened for reading
	if fi.Size() > resource.MaxCompared {
		return false
	}
	now, err := io.ReadAll(io.LimitReader(f, resource.MaxCompared))
	if err != nil || plan.BlobID(now) != rec.Have {
		return false
	}
	b := bound.NewBuffer(resource.MaxCompared, func() error { return errors.New("the blob is too large to compare as JSON") })
	if _, err := d.wanted(b, rec.Want); err != nil {
		d.log.Debug("cannot compare as JSON", "path", folder.Join(name), "error", err)
		return false
	}
	same, err := compare(now, b.Bytes())
	return err == nil && same
}
