package planner

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/relpath"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
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
	var files []plan.Found
	for f, err := range in.Desired.UnwantedIn(dir, in.Manifest, in.State) {
		if err != nil {
			return nil, err
		}
		if f.Stat, err = in.State.Stat(f.Path); err != nil {
			return nil, fmt.Errorf("stat %s: %w", f.Path, err)
		}
		if f.Stat.Kind == plan.File { // still there
			files = append(files, f)
		}
	}
	if len(files) == 0 {
		return nil, nil
	}
	files, err := withoutOtherSpellings(in, dir, files)
	if err != nil {
		return nil, err
	}
	list := make([]plan.Change, 0, len(files))
	for _, f := range files {
		if in.proposed(f.Path) {
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

// A volume may ignore case or Unicode normalization, so that one file answers to two names. A commit that only changes
// the spelling of a name deletes one name and adopts the other; on such a volume that would delete the adopted file.

// withoutOtherSpellings removes from list, which is of dir, the files that git has under another spelling.
func withoutOtherSpellings(in *Input, dir string, list []plan.Found) ([]plan.Found, error) {
	names := make(map[string]plan.Found, len(list))
	for _, f := range list {
		names[relpath.Fold(f.Path)] = f
	}
	same := make(map[string]bool)
	for path, err := range in.Desired.Paths(dir) {
		if err != nil {
			return nil, err
		}
		f, ok := names[relpath.Fold(path)]
		if !ok {
			continue
		}
		st, err := in.State.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("stat %s: %w", path, err)
		}
		if st == f.Stat {
			same[f.Path] = true
		}
	}
	return slices.DeleteFunc(list, func(f plan.Found) bool { return same[f.Path] }), nil
}

// settleSpellings turns the deletion of a name into a release if the same file is git's under another spelling. On a
// volume that distinguishes the two, the new name is missing or another file.
func (p *planner) settleSpellings() error {
	deleted := make(map[string]*plan.Change)
	for i := range p.list {
		if c := &p.list[i]; c.Op == plan.Delete {
			deleted[relpath.Fold(c.Path)] = c
		}
	}
	if len(deleted) == 0 {
		return nil
	}
	for i := range p.list {
		c := &p.list[i]
		if c.Op == plan.Delete || c.Op == plan.Release || c.Found.Kind != plan.File {
			continue
		}
		old := deleted[relpath.Fold(c.Path)]
		if old == nil || old.Found != c.Found || old.FoundID != c.FoundID {
			continue
		}
		if c.Op == plan.Keep && !old.Conflict { // it is as the last sync wrote it
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

// mappingTable translates between the indexes of the rules and those of the manifest. A record of the manifest names its mapping by
// an index into the header. A mapping keeps its index while a record uses it, even if the rules change around it; otherwise
// one changed file could rewrite 100,000 records. During planning, Change.Origin is the index in the rules; renumber
// translates it at the end.
type mappingTable struct {
	old   []plan.Origin // by index of the manifest
	rules []plan.Origin // by index of the rules
	used  []bool        // by index of the manifest: a record has it
}

func newMappingTable(old []plan.Origin, rules *plan.Rules) mappingTable {
	return mappingTable{old: old, rules: rules.Origins(), used: make([]bool, len(old))}
}

// isOrigin reports whether a record names a mapping of the rules.
func (t *mappingTable) isOrigin(mapping uint16, rec plan.Owned) bool {
	o, ok := t.origin(rec)
	return ok && o == t.rules[mapping]
}

// origin returns the mapping that a record names. It returns false if the manifest has no such mapping.
func (t *mappingTable) origin(rec plan.Owned) (plan.Origin, bool) {
	if int(rec.Origin) >= len(t.old) {
		return plan.Origin{}, false
	}
	return t.old[rec.Origin], true
}

// markUsed marks the index of a record as used, even if the plan drops the record: applying the change may fail, and
// then the record stays.
func (t *mappingTable) markUsed(rec plan.Owned) {
	if int(rec.Origin) < len(t.used) {
		t.used[rec.Origin] = true
	}
}

// renumber gives the changes the indexes of the next manifest, and returns its mappings. Mappings of the rules keep their old
// index, or get an index that no record uses, or are appended. Only a full plan has seen all records and can tell which indexes
// are free.
func (t *mappingTable) renumber(changes []plan.Change, full bool) ([]plan.Origin, error) {
	table := slices.Clone(t.old)
	index := make(map[plan.Origin]uint16, len(table))
	for i, o := range table {
		if _, ok := index[o]; !ok {
			index[o] = uint16(i)
		}
	}
	var free []uint16
	if full {
		free = t.unused()
	}
	translated := make([]uint16, len(t.rules))
	for i, o := range t.rules {
		slot, ok := index[o]
		switch {
		case ok:
		case len(free) > 0:
			slot, free = free[0], free[1:]
			table[slot] = o
		case len(table) > math.MaxUint16:
			return nil, failure.New(v1alpha1.ReasonLimitExceeded, "more than %d mappings were in force since the last full "+
				"comparison; request force-sync", math.MaxUint16)
		default:
			slot = uint16(len(table))
			table = append(table, o)
		}
		index[o], translated[i] = slot, slot
	}
	for i := range changes {
		c := &changes[i]
		switch c.Op {
		case plan.Create, plan.Update, plan.Adopt, plan.Keep:
			c.Origin = translated[c.Origin]
		default:
			c.Origin = 0
		}
	}
	return table, nil
}

// unused returns the indexes of the manifest that neither a record nor the rules use.
func (t *mappingTable) unused() []uint16 {
	var free []uint16
	for i, used := range t.used {
		if !used && !slices.Contains(t.rules, t.old[i]) {
			free = append(free, uint16(i))
		}
	}
	return free
}

// parents checks that new files can be written: their parents must be directories, or be missing.
type parents struct {
	state   plan.State
	checked string            // the last directory that check found writable
	blocked map[string]string // file in place of a directory → a path that needs the directory
}

// check returns an error if path cannot be written because a parent is not a directory. If that parent is a file, the plan may still
// delete it: check then records it in blocked.
func (p *parents) check(path string) error {
	dir := relpath.Parent(path)
	if dir == "" || p.checked == dir {
		return nil
	}
	parent, kind, err := p.state.Blocked(path)
	switch {
	case err != nil:
		return fmt.Errorf("open the parents of %s: %w", path, err)
	case parent == "":
		p.checked = dir
		return nil
	case kind == plan.Link:
		return failure.New(v1alpha1.ReasonUnsafePath, "%s is a symbolic link on the gateway, and git has %s "+
			"below it; the agent never follows links: replace the link with a directory", parent, path)
	case kind == plan.File:
		if _, ok := p.blocked[parent]; !ok {
			p.blocked[parent] = path
		}
		return nil
	}
	return errBlocked(parent, path)
}

// settle returns an error if a file in blocked remains, because the plan does not delete it.
func (p *parents) settle(deletes func(path string) bool) error {
	for _, file := range slices.Sorted(maps.Keys(p.blocked)) {
		if !deletes(file) {
			return errBlocked(file, p.blocked[file])
		}
	}
	return nil
}

func errBlocked(file, path string) error {
	return failure.New(v1alpha1.ReasonPathCollision, "%s on the gateway is in the place of a directory that %s needs, and "+
		"the agent does not own it: delete it, or change the mapping", file, path)
}
