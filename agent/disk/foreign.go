package disk

import (
	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/internal/failure"
)

// ForeignError means that the gateway wrote files between the plan and their replacement. Either the caller does not
// want such files replaced (see RefuseForeign), or they belong to a resource of which the run replaces only a part (see
// foreignCheck.torn). The next plan treats these files as conflicts.
type ForeignError struct {
	Paths []string // sorted
}

func (e *ForeignError) Error() string {
	return "the gateway wrote " + failure.First(e.Paths, 3) + " during the sync; the sync was rolled back"
}

// RefuseForeign makes Apply roll back and return a *ForeignError if it replaced or removed something that the plan did
// not see, other than the gateway's own rewriting. This also applies to recovery. Without it, such files go to
// lost+found and the sync continues. It must be called before Apply.
func (s *Staged) RefuseForeign() {
	s.d.writing.Lock()
	defer s.d.writing.Unlock()
	s.run.RefuseForeign = true
}

// foreignCheck compares what a run displaced with what the plan saw.
type foreignCheck struct{ run *run }

// check returns a *ForeignError for the files that the gateway wrote after the plan.
func (r foreignCheck) check() error {
	// If the new manifest is already in place, the run was checked before the crash.
	if r.run.replayed && format.BaseOf(r.run.d.manifest()) != r.run.Base {
		return nil
	}
	f := &ForeignError{}
	for i := range r.run.Changes {
		if !format.Moves(r.run.Changes[i].Op) {
			continue
		}
		name, err := r.run.displacedName(i)
		if err != nil {
			return err
		}
		if name == "" {
			continue
		}
		foreign, err := r.torn(i, name)
		if err == nil && !foreign && r.run.RefuseForeign {
			foreign, err = r.foreign(i, name)
		}
		if err != nil {
			return err
		}
		if foreign {
			f.Paths = append(f.Paths, r.run.Changes[i].Path)
		}
	}
	if len(f.Paths) > 0 {
		return f
	}
	return nil
}

// foreign reports whether a displaced file is neither what the plan saw, nor what git wants, nor rewritten by the gateway itself.
func (r foreignCheck) foreign(i int, name string) (bool, error) {
	c, stg := &r.run.Changes[i], r.run.stagingOf(i)
	fi, err := stg.Lstat(name)
	if err != nil {
		return false, err
	}
	switch safe.KindOf(fi.Mode()) {
	case plan.File:
		id, err := r.run.hash(stg, name)
		if err != nil || format.Writes(c.Op) && id == c.ID || c.Found.Kind == plan.File && id == c.FoundID && !id.IsZero() {
			return false, err
		}
		return !r.rewritten(i, stg, name, id), nil
	case c.Found.Kind: // a directory or a link, as the plan saw it
		return false, nil
	case plan.Dir:
		_, reason, err := r.run.reasonToSave(i, name)
		return reason != "", err // an empty directory has nothing to keep
	}
	return true, nil
}

// torn reports whether the run would leave a resource half from git and half from a Designer: the displaced file belongs to a
// resource that was saved on the gateway since the plan, and the run does not replace its resource.json. The gateway might
// compare only the resource.json and keep the version that it has loaded, and no later check would see the difference. After the
// run is undone, the next plan replaces the whole resource.
func (r foreignCheck) torn(i int, name string) (bool, error) {
	c, stg := &r.run.Changes[i], r.run.stagingOf(i)
	fi, err := stg.Lstat(name)
	if err != nil || safe.KindOf(fi.Mode()) != plan.File {
		return false, err
	}
	if now := safe.StatOf(fi); now.Size == c.Found.Size && now.Mtime == c.Found.Mtime {
		return false, nil
	}
	dir, _ := safe.Split(c.Path)
	saved, err := r.savedSince(dir + "/" + resource.File)
	if err != nil || !saved {
		return false, err
	}
	id, err := r.run.hash(stg, name)
	return id.IsZero() || id != c.FoundID && id != c.ID, err
}

// savedSince reports whether an owned file that the run leaves in place, unchanged or adopted, has other bytes than the plan saw.
func (r foreignCheck) savedSince(path string) (bool, error) {
	seen, known, err := r.run.d.manifest().Get(path)
	if i := r.run.Find(path); i >= 0 {
		c := &r.run.Changes[i]
		seen, known, err = plan.Owned{Have: c.FoundID, Size: c.Found.Size, Mtime: c.Found.Mtime}, c.Op == plan.Adopt, nil
	}
	if err != nil || !known {
		return false, err
	}
	st, err := r.run.d.Stat(path)
	if err != nil || st.Kind != plan.File || st.Size == seen.Size && st.Mtime == seen.Mtime {
		return false, err
	}
	id, err := r.run.d.BlobID(path)
	return id != seen.Have, err
}

// rewritten reports whether the gateway only rewrote the file, so that Drift would adopt it.
func (r foreignCheck) rewritten(i int, folder *safe.Folder, name string, id plan.ID) bool {
	rec, owned, err := r.run.d.manifest().Get(r.run.Changes[i].Path)
	return err == nil && owned && r.run.d.rewritten(folder, name, rec, id)
}
