package planner

import (
	"fmt"
	"slices"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/relpath"
)

// A volume may ignore case or Unicode normalization, so that one file answers to two names. A commit that only changes
// the spelling of a name deletes one name and adopts the other; on such a volume that would delete the adopted file.

// settleSpellings turns the deletion of a name into a release if the same file is git's under another spelling. On a
// volume that distinguishes the two, the new name is missing or another file.
func (p *planner) settleSpellings() error {
	deleted := make(map[string]int)
	for i := range p.changes.List {
		if c := &p.changes.List[i]; c.Op == plan.Delete {
			deleted[relpath.Fold(c.Path)] = i
		}
	}
	if len(deleted) == 0 {
		return nil
	}
	for i := range p.changes.List {
		c := &p.changes.List[i]
		if c.Op == plan.Delete || c.Op == plan.Release || c.Found.Kind != plan.File {
			continue
		}
		k, ok := deleted[relpath.Fold(c.Path)]
		if !ok || p.changes.List[k].Found != c.Found || p.changes.List[k].FoundID != c.FoundID {
			continue
		}
		old := &p.changes.List[k]
		if c.Op == plan.Keep && !old.Conflict { // it is as the last sync wrote it
			c.Op = plan.Update
		}
		if !old.Conflict { // a missing record of the new name alone is no conflict
			c.Conflict = false
			delete(p.conflicts, c.Path)
		}
		old.Op, old.Conflict = plan.Release, false
		delete(p.conflicts, old.Path) // the change of the new name reports the file
	}
	return nil
}

// respelled removes from list the files that git has under another spelling.
func (p *planner) respelled(dir string, list []plan.Found) ([]plan.Found, error) {
	names := make(map[string]plan.Found, len(list))
	for _, f := range list {
		names[relpath.Fold(f.Path)] = f
	}
	same := make(map[string]bool)
	for path, err := range p.Desired.Paths(dir) {
		if err != nil {
			return nil, err
		}
		f, ok := names[relpath.Fold(path)]
		if !ok {
			continue
		}
		st, err := p.State.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("stat %s: %w", path, err)
		}
		if st == f.Stat {
			same[f.Path] = true
		}
	}
	return slices.DeleteFunc(list, func(f plan.Found) bool { return same[f.Path] }), nil
}
