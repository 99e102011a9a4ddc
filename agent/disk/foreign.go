package disk

import (
	"fmt"
	"strings"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
)

// ForeignError says that the gateway wrote between the plan and the moment in which its files were replaced, and that
// the caller had asked for nothing of it to be replaced: see RefuseForeign. The next plan sees these files as conflicts.
type ForeignError struct {
	Paths []string // sorted
}

func (e *ForeignError) Error() string {
	shown, more := e.Paths, ""
	if len(shown) > 3 {
		shown, more = shown[:3], fmt.Sprintf(" and %d more", len(e.Paths)-3)
	}
	return fmt.Sprintf("the gateway wrote %s%s during the sync; nothing of it was replaced", strings.Join(shown, ", "), more)
}

// RefuseForeign makes Apply take everything back, and return a *ForeignError, where it has replaced or removed something
// that the plan did not see there, and that is more than a gateway's own rewriting. It counts for a recovery too. Without
// it such files go to lost+found and the sync goes on. It is called before Apply.
func (s *Staged) RefuseForeign() {
	s.d.work.Lock()
	defer s.d.work.Unlock()
	s.run.refuse = true
}

// checkForeign looks through what the run displaced, where that was asked for.
func (r *run) checkForeign() error {
	// After a crash the manifest may be in place already: it says that this was looked at.
	if !r.refuse || r.redo && baseOf(r.d.manifest()) != r.base {
		return nil
	}
	f := &ForeignError{}
	for i := range r.changes {
		if !moves(r.changes[i].Op) {
			continue
		}
		name, err := r.displaced(i)
		if err != nil {
			return err
		}
		if name == "" {
			continue
		}
		foreign, err := r.foreign(i, name)
		if err != nil {
			return err
		}
		if foreign {
			f.Paths = append(f.Paths, r.changes[i].Path)
		}
	}
	if len(f.Paths) > 0 {
		return f
	}
	return nil
}

// foreign reports whether what was displaced is neither what the plan saw, nor what git wants, nor noise.
func (r *run) foreign(at int, name string) (bool, error) {
	c, stg := &r.changes[at], r.stagingOf(at)
	fi, err := stg.root.Lstat(name)
	if err != nil {
		return false, err
	}
	switch kindOf(fi) {
	case plan.File:
		id, err := stg.id(name, r.buf)
		if err != nil || writes(c.Op) && id == c.ID || c.Found.Kind == plan.File && id == c.FoundID {
			return false, err
		}
		return !r.noise(at, stg, name, id), nil
	case c.Found.Kind:
		return false, nil
	case plan.Dir:
		why, err := r.why(at, name)
		return why != "", err // an empty one has nothing of anybody's
	}
	return true, nil
}

// noise reports whether a file is one that the gateway rewrote by itself, as Drift adopts it.
func (r *run) noise(at int, n *node, name string, id plan.ID) bool {
	p := r.changes[at].Path
	_, base := split(p)
	rec, ok, err := r.d.manifest().get(p)
	if err != nil || !ok || rec.dir {
		return false
	}
	rec.Have = id
	return base == resource.Thumbnail || r.d.means(n, name, rec.Owned)
}
