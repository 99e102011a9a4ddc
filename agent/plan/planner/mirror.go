package planner

import (
	"fmt"
	"slices"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/relpath"
)

// mirror implements "prune: mirror": it plans to delete the regular files in mapped directories that are neither desired nor
// owned. They go to lost+found. It walks these directories on the disk, because a difference between commits does not show the
// files that the gateway added. So every sync with prune mirror costs a full walk, even if one file changed. A mapping whose
// source is missing is not mirrored.
func (p *planner) mirror() error {
	var deletions []plan.Change
	for _, dir := range p.mirrors {
		list, err := mirrorDir(&p.Input, dir)
		if err != nil {
			return err
		}
		deletions = append(deletions, list...)
	}
	p.insert(deletions)
	return nil
}

// mirrorDir returns the deletions in one directory. It leaves files that are proposed to git.
func mirrorDir(in *Input, dir string) ([]plan.Change, error) {
	var list []plan.Change
	for f, err := range in.Desired.UnwantedIn(dir, in.Manifest, in.State) {
		if err != nil {
			return nil, err
		}
		if in.proposed(f.Path) {
			continue
		}
		if f.Stat, err = in.State.Stat(f.Path); err != nil {
			return nil, fmt.Errorf("stat %s: %w", f.Path, err)
		}
		if f.Stat.Kind != plan.File { // no longer there
			continue
		}
		id, err := in.State.BlobID(f.Path)
		if err != nil {
			return nil, fmt.Errorf("hash %s: %w", f.Path, err)
		}
		list = append(list, plan.Change{Op: plan.Delete, Path: f.Path, Found: f.Stat, FoundID: id, Conflict: true})
	}
	return list, nil
}

// settleSpellings turns the deletion of a name into a release if the same file is git's under another spelling: a commit that only changes
// the spelling deletes one name and adopts the other. On a volume that distinguishes the two, the new name is missing or another file.
func (p *planner) settleSpellings() error {
	gone := make(map[string][]*plan.Change) // by spelling; under prune none, released names
	for i := range p.list {
		if c := &p.list[i]; c.Op == plan.Delete || c.Op == plan.Release && c.Found.Kind == plan.File {
			spelling := relpath.Fold(c.Path)
			gone[spelling] = append(gone[spelling], c)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	for i := range p.list {
		c := &p.list[i]
		if c.Op == plan.Delete || c.Op == plan.Release || c.Found.Kind != plan.File {
			continue
		}
		others := gone[relpath.Fold(c.Path)]
		var err error
		same := slices.IndexFunc(others, func(old *plan.Change) (same bool) {
			if err == nil {
				same, err = sameFile(p.Manifest, old, c)
			}
			return same
		})
		if err != nil {
			return err
		}
		if same < 0 {
			continue
		}
		old := others[same]
		if c.Op == plan.Keep && !old.Conflict { // the file is as the last sync wrote it
			c.Op = plan.Update
		}
		if !old.Conflict { // a missing record of the new name alone is not a conflict
			c.Conflict = false
			delete(p.conflicts, c.Path)
		}
		old.Op, old.Conflict = plan.Release, false
		delete(p.conflicts, old.Path) // the change of the new name reports the file
	}
	return nil
}

// sameFile reports whether old, a deletion or a release, found the same file as c. A release counts only if the gateway did not change the
// file.
func sameFile(m plan.Manifest, old, c *plan.Change) (bool, error) {
	if old.Found != c.Found {
		return false, nil
	}
	if old.Op == plan.Delete {
		return old.FoundID == c.FoundID, nil
	}
	rec, owned, err := m.Get(old.Path)
	if err != nil {
		return false, fmt.Errorf("read the manifest: %w", err)
	}
	return owned && rec.Have == c.FoundID, nil
}
