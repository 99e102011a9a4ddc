package plan

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
)

// Input is what a plan is made of.
type Input struct {
	Desired *Desired
	// Previous is the tree of the manifest's commit, to compare with by tree ids; nil compares every file. It saves work
	// and decides nothing: where it does not fit the manifest, or its objects are gone, every file is compared.
	Previous *Desired
	Manifest Manifest
	State    State
	// To is the commit of Desired, From that of Previous.
	To, From ID
	// AllowMassDeletion is asked about a plan that would be held as a mass deletion: whether these deletions were told and
	// then asked for. nil holds it.
	AllowMassDeletion func(*Changes) bool
	// Repair puts back what only the gateway changed, its version to lost+found first. What it changed beside git is for
	// the conflict policy, as ever. It makes the plan a full one.
	Repair bool
	// Verify hashes every file, also where stat agrees with the manifest. It makes the plan a full one.
	Verify bool
	// Brought names the paths at which another writer than a person may have been, the other gateway of a redundant pair; nil
	// for none. What differs there gives way to git, to lost+found first, whatever the policies say. It makes the plan a full
	// one.
	Brought func(path string) bool
}

// Compute decides what a sync does. It reads and never writes.
//
// With Previous it looks only at the paths that differ between the two trees; what the gateway changed elsewhere is
// drift and no part of it. Without, it joins the desired tree, the manifest and the disk as they stream by, so that its
// memory is that of the changes and not of the files. Under prune mirror the mapped directories are walked in both
// cases: a file that appeared there is in no tree.
func Compute(in Input) (*Changes, error) {
	if err := in.Desired.checkRendering(); err != nil {
		return nil, err
	}
	if in.incremental() {
		changes, err := compute(in)
		if !errors.Is(err, errPrevious) {
			return changes, err
		}
	}
	in.Previous = nil
	return compute(in)
}

func (in *Input) incremental() bool {
	h := in.Manifest.Header()
	rules := in.Desired.rules.Fingerprint()
	return in.Previous != nil && !in.Repair && !in.Verify && in.Brought == nil && h.Complete && h.Commit == in.From &&
		h.Rules == rules && in.Previous.rules.Fingerprint() == rules
}

// planner holds one plan while it is made.
type planner struct {
	Input
	header  Header
	rules   *Rules
	changes *Changes
	chunks  [][]Change // what join or diff adds; gather makes the list of it
	full    bool
	// sameRules says that the manifest was written under these rules: what is not desired has left the commit.
	sameRules bool
	owned     int               // records
	mirrors   []string          // the directories that prune mirror empties
	used      []bool            // by index in header.Mappings: a record names it
	noise     map[string]bool   // changes of files whose bytes the gateway made by itself
	dirs      []string          // desired files where a directory stands
	blocked   map[string]string // files that stand where a directory is needed, and for what
	clear     string            // the last directory that nothing blocks
	orphans   map[string]int    // files that go, by the source that the commit has lost
	conflicts map[string]bool   // paths that hold the plan
}

func compute(in Input) (*Changes, error) {
	header := in.Manifest.Header()
	p := &planner{
		Input: in, header: header, rules: &in.Desired.rules, full: in.Previous == nil,
		sameRules: header.Rules == in.Desired.rules.Fingerprint(),
		used:      make([]bool, len(header.Mappings)),
		noise:     make(map[string]bool),
		blocked:   make(map[string]string),
		changes:   &Changes{From: header.Commit, To: in.To, Full: in.Previous == nil},
	}
	in.Desired.local = p.local
	if p.rules.Prune == PruneMirror {
		p.mirrors = in.Desired.mappedDirs()
	}
	steps := []func() error{p.join, p.gather, p.mirror, p.settleSpellings, p.settleResources, p.settleDirs, p.settleBlocked, p.guard, p.finish}
	if !p.full {
		steps[0] = p.diff
		p.owned = header.Files
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return p.changes, nil
}

// local returns the bytes of a blob from the file that they were written to. A store that was lost need not fetch them again.
func (p *planner) local(path string, id ID) ([]byte, bool) {
	rec, owned, err := p.Manifest.Get(path)
	if err != nil || !owned || rec.Have != id || rec.Size > maxCompared {
		return nil, false
	}
	content, err := p.State.Read(path, maxCompared)
	return content, err == nil && blobID(content) == id
}

// diff judges the paths that differ between two commits.
func (p *planner) diff() error {
	for d, err := range diff(p.Previous, p.Desired) {
		if err != nil {
			return err
		}
		rec, owned, err := p.Manifest.Get(d.path)
		if err != nil {
			return fmt.Errorf("read the manifest: %w", err)
		}
		switch {
		case d.maybe && owned && rec.Want == d.after.ID && rec.Exec == d.after.Exec && p.sameOrigin(rec, *d.after):
		case d.after != nil:
			err = p.desired(*d.after, rec, owned)
		case owned:
			err = p.gone(rec)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// join judges every desired file and every record.
func (p *planner) join() error {
	next, stop := iter.Pull2(p.Manifest.All(""))
	defer stop()
	rec, err, more := next()
	advance := func() {
		p.owned++
		p.keepOrigin(rec)
		rec, err, more = next()
	}
	for w, werr := range p.Desired.Walk() {
		if werr != nil {
			return werr
		}
		for more && err == nil && rec.Path < w.Path {
			if err := p.gone(rec); err != nil {
				return err
			}
			advance()
		}
		if err != nil {
			return fmt.Errorf("read the manifest: %w", err)
		}
		owned := more && rec.Path == w.Path
		if err := p.desired(w, rec, owned); err != nil {
			return err
		}
		if owned {
			advance()
		}
	}
	for ; more && err == nil; advance() {
		if err := p.gone(rec); err != nil {
			return err
		}
	}
	if err != nil {
		return fmt.Errorf("read the manifest: %w", err)
	}
	return nil
}

// chunkSize is the number of changes that add takes at a time. A growing slice would be copied again and again, and a
// first sync of 100,000 files would hold several of them.
const chunkSize = 1024

// add appends a change while join or diff walks in the order of the paths.
func (p *planner) add(c Change) {
	last := len(p.chunks) - 1
	if last < 0 || len(p.chunks[last]) == cap(p.chunks[last]) {
		size := chunkSize
		if last < 0 {
			size = 16 // most plans are small
		}
		p.chunks = append(p.chunks, make([]Change, 0, size))
		last++
	}
	p.chunks[last] = append(p.chunks[last], c)
}

// gather makes one list of the chunks.
func (p *planner) gather() error {
	p.changes.List = slices.Concat(p.chunks...)
	p.chunks = nil
	return nil
}

// insert adds changes that do not come in the order of their paths.
func (p *planner) insert(list []Change) {
	if len(list) == 0 {
		return
	}
	p.changes.List = append(p.changes.List, list...)
	slices.SortFunc(p.changes.List, func(a, b Change) int { return strings.Compare(a.Path, b.Path) })
}

// find returns the change of a path; the list is sorted.
func (p *planner) find(path string) (int, bool) {
	return slices.BinarySearchFunc(p.changes.List, path, func(c Change, path string) int {
		return strings.Compare(c.Path, path)
	})
}

// finish counts, names the mappings and checks the limit.
func (p *planner) finish() error {
	c := p.changes
	c.Total = p.owned
	for i := range c.List {
		switch x := &c.List[i]; x.Op {
		case Create, Update, Adopt:
			if !x.Owned {
				c.Total++
			}
		case Delete, Release:
			if x.Owned {
				c.Total--
			}
		}
	}
	if limit := p.rules.Limits.Files; c.Total > limit {
		return tooManyFiles(limit)
	}
	if len(p.rules.Mappings) > 0 && len(p.Desired.missing) == len(p.rules.Mappings) && p.owned == 0 && p.header.Commit.IsZero() {
		return p.Desired.noSource()
	}
	c.Warnings, c.Mounted = p.Desired.Warnings(), slices.Sorted(slices.Values(p.Desired.mounted))
	return p.nameMappings()
}
