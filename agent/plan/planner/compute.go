// Package planner computes the plan of a sync: it compares the desired tree with the manifest and the data directory.
package planner

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
)

// Input is the input of Compute.
type Input struct {
	Desired *desired.Tree
	// Previous is the tree of the manifest's commit; comparing tree ids with it saves work. It never changes the
	// result: if it is nil, does not match the manifest or cannot be read, every file is compared.
	Previous *desired.Tree
	Manifest plan.Manifest
	State    plan.State
	// To is the commit of Desired, From the commit of Previous.
	To, From plan.ID
	// AllowMassDeletion reports that an operator approved the mass deletion of this commit; otherwise the plan is held.
	AllowMassDeletion bool
	// Repair replaces what only the gateway changed with git's version, after saving the gateway's version to lost+found.
	// The conflict policy still decides about what both changed. Repair makes the plan a full one.
	Repair bool
	// Verify hashes every file, even if stat agrees with the manifest. It makes the plan a full one.
	Verify bool
	// Brought reports whether the other gateway of a redundant pair may have written a path; nil means no path.
	// Differences there are replaced with git's version whatever the policies say, after saving them to lost+found.
	// Brought makes the plan a full one.
	Brought func(path string) bool
	// Proposed reports whether a change of the gateway at a path is being sent back to git. Neither Repair nor prune mirror undoes it; nil
	// means no path.
	Proposed func(path string) bool
	// GitWins reports whether git's version replaces what both changed at a path, whatever the conflict policy says; nil means no path.
	GitWins func(path string) bool
}

// Compute decides what a sync does. It only reads.
//
// With Previous, Compute judges only the paths that differ between the two trees; other changes of the gateway are
// drift and not part of the plan. Without it, Compute joins the sorted streams of the desired tree, the manifest and
// the disk, so that memory grows with the changes and not with the files. Under prune mirror it always walks the mapped
// directories, because no tree tells of files that the gateway added.
func Compute(in Input) (*plan.Changes, error) {
	if err := in.Desired.CheckRendering(); err != nil {
		return nil, err
	}
	if in.incremental() {
		changes, err := compute(in)
		if !errors.Is(err, desired.ErrPrevious) {
			return changes, err
		}
	}
	in.Previous = nil
	return compute(in)
}

func (in *Input) incremental() bool {
	h := in.Manifest.Header()
	rules := in.Desired.Rules().Fingerprint()
	return in.Previous != nil && !in.Repair && !in.Verify && in.Brought == nil && h.Complete && h.Commit == in.From &&
		h.Rules == rules && in.Previous.Rules().Fingerprint() == rules
}

// planner is the state of one Compute call.
type planner struct {
	Input
	header  plan.Header
	rules   *plan.Rules
	changes *plan.Changes
	chunks  [][]plan.Change // changes that join or diff add; gather concatenates them
	full    bool
	// sameRules reports whether the manifest was written under the same rules. Then a file that is no longer desired
	// has left the commit.
	sameRules bool
	owned     int               // number of records
	mirrors   []string          // directories that prune mirror cleans
	used      []bool            // by index in header.Mappings: a record references it
	noise     map[string]bool   // paths at which the gateway changed the bytes but not the meaning
	dirs      []string          // desired files at whose path a directory stands
	blocked   map[string]string // file that stands in place of a needed directory → the path that needs it
	clear     string            // the last directory whose parents were checked
	orphans   map[string]int    // source that the commit has lost → number of files that go with it
	conflicts map[string]bool   // paths that hold the plan
}

func compute(in Input) (*plan.Changes, error) {
	header, rules := in.Manifest.Header(), in.Desired.Rules()
	p := &planner{
		Input: in, header: header, rules: &rules, full: in.Previous == nil,
		sameRules: header.Rules == rules.Fingerprint(),
		used:      make([]bool, len(header.Mappings)),
		noise:     make(map[string]bool),
		blocked:   make(map[string]string),
		changes:   &plan.Changes{From: header.Commit, To: in.To, Full: in.Previous == nil},
	}
	in.Desired.ReadLocally(p.local)
	if p.rules.Prune == plan.PruneMirror {
		p.mirrors = in.Desired.MappedDirs()
	}
	steps := []func() error{p.join, p.gather, p.mirror, p.settleSpellings, p.settleResources, p.settleDirs, p.settleBlocked, p.holdForApproval, p.finish}
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

// local returns the content of a blob from the file that it was written to, so that a lost store need not fetch it
// again.
func (p *planner) local(path string, id plan.ID) ([]byte, bool) {
	rec, owned, err := p.Manifest.Get(path)
	if err != nil || !owned || rec.Have != id || rec.Size > maxCompared {
		return nil, false
	}
	content, err := p.State.Read(path, maxCompared)
	return content, err == nil && plan.BlobID(content) == id
}

// diff judges the paths that differ between two commits.
func (p *planner) diff() error {
	for d, err := range desired.Diff(p.Previous, p.Desired) {
		if err != nil {
			return err
		}
		rec, owned, err := p.Manifest.Get(d.Path)
		if err != nil {
			return fmt.Errorf("read the manifest: %w", err)
		}
		switch {
		case d.Uncertain && owned && rec.Want == d.After.ID && rec.Exec == d.After.Exec && p.sameOrigin(rec, *d.After):
		case d.After != nil:
			err = p.desired(*d.After, rec, owned)
		case owned:
			err = p.removedFromGit(rec)
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
			if err := p.removedFromGit(rec); err != nil {
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
		if err := p.removedFromGit(rec); err != nil {
			return err
		}
	}
	if err != nil {
		return fmt.Errorf("read the manifest: %w", err)
	}
	return nil
}

// chunkSize is the number of changes that add allocates at a time. A single growing slice would be copied repeatedly,
// and a first sync of 100,000 files would hold several copies.
const chunkSize = 1024

// add appends a change. join and diff call it in path order.
func (p *planner) add(c plan.Change) {
	last := len(p.chunks) - 1
	if last < 0 || len(p.chunks[last]) == cap(p.chunks[last]) {
		size := chunkSize
		if last < 0 {
			size = 16 // most plans are small
		}
		p.chunks = append(p.chunks, make([]plan.Change, 0, size))
		last++
	}
	p.chunks[last] = append(p.chunks[last], c)
}

// gather concatenates the chunks into one list.
func (p *planner) gather() error {
	p.changes.List = slices.Concat(p.chunks...)
	p.chunks = nil
	return nil
}

// insert adds changes that are not in path order.
func (p *planner) insert(list []plan.Change) {
	if len(list) == 0 {
		return
	}
	p.changes.List = append(p.changes.List, list...)
	slices.SortFunc(p.changes.List, func(a, b plan.Change) int { return strings.Compare(a.Path, b.Path) })
}

// find returns the index of the change of a path.
func (p *planner) find(path string) (int, bool) {
	return slices.BinarySearchFunc(p.changes.List, path, func(c plan.Change, path string) int {
		return strings.Compare(c.Path, path)
	})
}

// finish computes the totals, checks the file limit and names the mappings.
func (p *planner) finish() error {
	c := p.changes
	c.Total = p.owned
	for i := range c.List {
		switch x := &c.List[i]; x.Op {
		case plan.Create, plan.Update, plan.Adopt:
			if !x.Owned {
				c.Total++
			}
		case plan.Delete, plan.Release:
			if x.Owned {
				c.Total--
			}
		}
	}
	if err := p.rules.Limits.CheckFiles(c.Total); err != nil {
		return err
	}
	if len(p.rules.Mappings) > 0 && len(p.Desired.Missing()) == len(p.rules.Mappings) && p.owned == 0 && p.header.Commit.IsZero() {
		return p.Desired.NoSourceError()
	}
	c.Warnings, c.Mounted = p.Desired.Warnings(), p.Desired.Mounted()
	return p.nameMappings()
}
