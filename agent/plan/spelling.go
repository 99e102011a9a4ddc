package plan

import (
	"fmt"
	"slices"
)

// A volume may ignore case, or the forms of Unicode: then one file answers to two names. A commit that only spells a name
// otherwise deletes the one and adopts the other, and on such a volume that would delete what it has just adopted.

// settleSpellings lets be what would be deleted under one name and is git's under another. A volume that tells the two
// apart shows nothing at the new name, or another file.
func (p *planner) settleSpellings() error {
	goes := make(map[string]int)
	for i := range p.changes.List {
		if c := &p.changes.List[i]; c.Op == Delete {
			goes[fold(c.Path)] = i
		}
	}
	if len(goes) == 0 {
		return nil
	}
	for i := range p.changes.List {
		c := &p.changes.List[i]
		if c.Op == Delete || c.Op == Release || c.Found.Kind != File {
			continue
		}
		k, ok := goes[fold(c.Path)]
		if !ok || p.changes.List[k].Found != c.Found || p.changes.List[k].FoundID != c.FoundID {
			continue
		}
		old := &p.changes.List[k]
		if c.Op == Keep && !old.Conflict { // it lies there as we wrote it
			c.Op = Update
		}
		if !old.Conflict { // nor is it a conflict that the new name has no record
			c.Conflict = false
			delete(p.conflicts, c.Path)
		}
		old.Op, old.Conflict = Release, false
		delete(p.conflicts, old.Path) // what becomes of the file is said under the new name
	}
	return nil
}

// respelled takes out of the files that git does not have in a mapped directory those that it has under another spelling.
func (p *planner) respelled(dir string, list []Found) ([]Found, error) {
	names := make(map[string]Found, len(list))
	for _, f := range list {
		names[fold(f.Path)] = f
	}
	same := make(map[string]bool)
	for w, err := range p.Desired.gitBelow(dir) {
		if err != nil {
			return nil, err
		}
		f, ok := names[fold(w.Path)]
		if !ok {
			continue
		}
		st, err := p.State.Stat(w.Path)
		if err != nil {
			return nil, fmt.Errorf("look at %s: %w", w.Path, err)
		}
		if st == f.Stat {
			same[f.Path] = true
		}
	}
	return slices.DeleteFunc(list, func(f Found) bool { return same[f.Path] }), nil
}
