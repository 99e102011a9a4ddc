package planner

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/agent/plan/relpath"
)

// maxCompared is the largest file, in bytes, that is compared by meaning. The largest JSON in public Ignition
// repositories is a third of that size.
const maxCompared = 4 << 20

// errTooLarge is returned for a blob larger than maxCompared.
var errTooLarge = errors.New("too large to compare as JSON")

// sameMeaning reports whether the file on the disk means the same as git's.
func (p *planner) sameMeaning(c plan.Change) (bool, error) {
	same := comparison(c.Path)
	if same == nil || c.Found.Size > maxCompared {
		return false, nil
	}
	want, err := p.blob(c.ID)
	if errors.Is(err, errTooLarge) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read %s of the commit: %w", c.Path, err)
	}
	return p.compare(c, want, same)
}

// sameAsBefore reports whether the file on the disk still means what git wanted at the last sync. It returns false if
// those bytes are no longer available, because the store lost the blob or the rules that rendered it are unknown. Then
// the file counts as changed on the gateway, so that its version is saved to lost+found before git's replaces it.
func (p *planner) sameAsBefore(c plan.Change, rec plan.Owned) (bool, error) {
	same := comparison(c.Path)
	if same == nil || c.Found.Size > maxCompared {
		return false, nil
	}
	before, err := p.before(rec)
	if err != nil {
		return false, nil //nolint:nilerr // see above
	}
	return p.compare(c, before, same)
}

func (p *planner) compare(c plan.Change, with []byte, same func(a, b []byte) (bool, error)) (bool, error) {
	found, err := p.State.Read(c.Path, maxCompared)
	if err != nil {
		return false, fmt.Errorf("read %s: %w", c.Path, err)
	}
	equal, err := same(found, with)
	if err != nil {
		return false, nil //nolint:nilerr // at least one is not JSON, so they cannot be compared by meaning
	}
	return equal, nil
}

// comparison returns the function that compares files of this name by meaning, or nil if only bytes count.
func comparison(name string) func(a, b []byte) (bool, error) {
	switch {
	case relpath.Base(name) == resource.File:
		return resource.SameButModification
	case path.Ext(name) == ".json":
		return resource.SameJSON
	}
	return nil
}

// blob reads at most maxCompared bytes of a wanted blob.
func (p *planner) blob(id plan.ID) ([]byte, error) { return read(p.Desired.WriteBlob, id) }

// before returns the content that git wanted for the file at the last sync (rec.Want): read from git, or rendered
// again.
func (p *planner) before(rec plan.Owned) ([]byte, error) {
	if p.Desired.Has(rec.Want) {
		return p.blob(rec.Want)
	}
	if p.Previous == nil || !p.Previous.Rules().Renders() {
		return nil, desired.ErrGone
	}
	w, ok, err := p.Previous.Lookup(rec.Path)
	if err != nil || !ok || w.ID != rec.Want {
		return nil, errors.Join(desired.ErrGone, err)
	}
	return read(p.Previous.WriteBlob, rec.Want)
}

func read(write func(io.Writer, plan.ID) (int64, error), id plan.ID) ([]byte, error) {
	var b limited
	_, err := write(&b, id)
	if b.over {
		return nil, errTooLarge
	}
	return b.buf.Bytes(), err
}

// limited is a buffer of at most maxCompared bytes.
type limited struct {
	buf  bytes.Buffer
	over bool
}

func (l *limited) Write(b []byte) (int, error) {
	if l.buf.Len()+len(b) > maxCompared {
		l.over = true
		return 0, errTooLarge
	}
	return l.buf.Write(b)
}
