// Package planner computes the plan of a sync: it compares the desired tree with the manifest and the data directory. The plan depends only on
// its Input, so that the agent, a diff and a dry run get the same one. An incremental plan skips files whose git id is unchanged, unless they use
// the ref or the commit: everything else that changes content is in the fingerprint of the rules.
package planner

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Input is the input of Compute.
type Input struct {
	Desired *desired.Tree
	// Previous is the tree of the manifest's commit; comparing tree ids with it saves work. The plan is then incremental: it decides only
	// about paths that differ between the trees, and Drifted and Unchanged count only these. If Previous is nil, does not match the
	// manifest or cannot be read, the plan is a full one: Compute compares every file.
	Previous *desired.Tree
	Manifest plan.Manifest
	State    plan.State
	// To is the commit of Desired, From the commit of Previous.
	To, From plan.ID
	// AllowMassDeletion reports that an operator approved the mass deletion of this commit. Otherwise Compute holds a mass deletion.
	AllowMassDeletion bool
	// Repair replaces what only the gateway changed with git's version, after saving the gateway's version to lost+found (for the
	// exceptions see Proposed and policies.repairs). The conflict policy still decides about what both changed. Repair makes the plan a
	// full one.
	Repair bool
	// Verify hashes every file, even if stat agrees with the manifest. It makes the plan a full one.
	Verify bool
	// Replicated reports whether a redundant pair copies a path, so that the other gateway may have written it; nil means no path.
	// Git's version replaces differences there whatever the policies say, after saving them to lost+found. Replicated makes the
	// plan a full one.
	Replicated func(path string) bool
	// Proposed reports whether a change of the gateway at a path is being sent back to git. Neither Repair nor prune mirror undoes it; nil
	// means no path.
	Proposed func(path string) bool
	// GitWins reports whether git's version replaces what both changed at a path, whatever the conflict policy says; nil means no path.
	GitWins func(path string) bool
}

// Compute decides what a sync does. It only reads.
//
// For an incremental plan, Compute walks the differences between the two trees. Other changes of the gateway are drift and not part of
// the plan, except new files under prune mirror. For a full plan, it joins the sorted streams of the desired tree and the manifest, and looks up
// each path on the disk, so that memory grows with the changes and not with the files.
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

// incremental reports whether the manifest is that of Previous, and the input does not ask for a full plan.
func (in *Input) incremental() bool {
	h := in.Manifest.Header()
	rules := in.Desired.Rules().Fingerprint()
	return in.Previous != nil && !in.Repair && !in.Verify && in.Replicated == nil && h.Complete && h.Commit == in.From &&
		h.Rules == rules && in.Previous.Rules().Fingerprint() == rules
}

// proposed reports whether a change of the gateway at path is being sent back to git.
func (in *Input) proposed(path string) bool { return in.Proposed != nil && in.Proposed(path) }

// replicated reports whether a redundant pair copies path.
func (in *Input) replicated(path string) bool { return in.Replicated != nil && in.Replicated(path) }

// readLocally returns the content of a blob from the file that it was written to, so that a store that lost it need not fetch it.
func (in *Input) readLocally(path string, id plan.ID) ([]byte, bool) {
	rec, owned, err := in.Manifest.Get(path)
	if err != nil || !owned || rec.Have != id || rec.Size > resource.MaxCompared {
		return nil, false
	}
	content, err := in.State.Read(path, resource.MaxCompared)
	return content, err == nil && plan.BlobID(content) == id
}

// planner is the state of one Compute call. diff or join decides about each path; the settle methods then make the changes consistent
// with each other.
type planner struct {
	Input
	policies
	comparer
	changeList
	parents  parents
	mappings mappingTable
	changes  *plan.Changes // without the List

	rules  *plan.Rules
	header plan.Header
	// sameRules reports whether the manifest was written under the same rules. Then a file that is no longer desired
	// has left the commit.
	sameRules bool
	owned     int             // number of records
	noise     map[string]bool // paths at which the gateway changed only bytes without meaning: JSON means the same, or it is a thumbnail
	dirs      []string        // desired files at whose path a directory stands
	lost      lostSources
	conflicts map[string]bool // paths that hold the plan
}

func newPlanner(in Input) *planner {
	header, rules := in.Manifest.Header(), in.Desired.Rules()
	in.State = &boundedState{State: in.State, left: maxHashed}
	p := &planner{
		Input: in, header: header, rules: &rules,
		comparer:  comparer{state: in.State, tree: in.Desired, previous: in.Previous, verify: in.Verify},
		parents:   parents{state: in.State, blocked: make(map[string]string)},
		mappings:  newMappingTable(header.Mappings, &rules),
		changes:   &plan.Changes{From: header.Commit, To: in.To, Full: in.Previous == nil},
		sameRules: header.Rules == rules.Fingerprint(),
		noise:     make(map[string]bool),
		lost:      make(lostSources),
		conflicts: make(map[string]bool),
	}
	p.policies = policies{rules: &rules, in: &p.Input}
	if rules.Prune == plan.PruneMirror {
		p.mirrors = in.Desired.MappedDirs()
	}
	return p
}

func compute(in Input) (*plan.Changes, error) {
	p := newPlanner(in)
	in.Desired.ReadLocally(p.readLocally)
	decide := p.join
	if in.Previous != nil {
		decide = p.diff
		p.owned = p.header.Files
	}
	gather := func() error { p.gather(); return nil }
	settleParents := func() error { return p.parents.settle(p.deletes) }
	steps := []func() error{
		decide, gather, p.mirror, p.settleSpellings, p.settleResources, p.settleDirs, settleParents, p.holdForApproval, p.finish,
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return p.changes, nil
}

// diff decides about the paths that differ between two commits.
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
		case d.Uncertain && owned && rec.Want == d.After.ID && rec.Exec == d.After.Exec && p.mappings.isOrigin(d.After.Origin, rec):
			// The record already has what the commit asks for.
		case d.After != nil:
			err = p.decideDesired(*d.After, rec, owned)
		case owned:
			err = p.decideRemoved(rec)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// join decides about every desired file and every record.
func (p *planner) join() error {
	next, stop := iter.Pull2(p.Manifest.All(""))
	defer stop()
	rec, err, more := next()
	advance := func() {
		p.owned++
		p.mappings.markUsed(rec)
		rec, err, more = next()
	}
	for f, ferr := range p.Desired.Walk() {
		if ferr != nil {
			return ferr
		}
		for more && err == nil && rec.Path < f.Path {
			if err := p.decideRemoved(rec); err != nil {
				return err
			}
			advance()
		}
		if err != nil {
			return fmt.Errorf("read the manifest: %w", err)
		}
		owned := more && rec.Path == f.Path
		if err := p.decideDesired(f, rec, owned); err != nil {
			return err
		}
		if owned {
			advance()
		}
	}
	for ; more && err == nil; advance() {
		if err := p.decideRemoved(rec); err != nil {
			return err
		}
	}
	if err != nil {
		return fmt.Errorf("read the manifest: %w", err)
	}
	return nil
}

// finish computes the totals, checks the file limit and names the mappings.
func (p *planner) finish() error {
	c := p.changes
	c.List = p.list
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
	noSource := len(p.rules.Mappings) > 0 && len(p.Desired.Missing()) == len(p.rules.Mappings)
	if noSource && p.owned == 0 && p.header.Commit.IsZero() {
		return p.Desired.NoSourceError()
	}
	c.Warnings, c.Mounted = p.Desired.Warnings(), p.Desired.Mounted()
	var err error
	c.Mappings, err = p.mappings.renumber(c.List, c.Full)
	return err
}

// changeList collects the changes of a plan. Until gather, it has them in chunks: a single growing slice would be copied
// repeatedly, and a first sync of 100,000 files would hold several copies.
type changeList struct {
	chunks [][]plan.Change
	list   []plan.Change // sorted by path; set by gather
}

// chunkSize is the number of changes that add allocates at a time.
const chunkSize = 1024

// add appends a change before gather. The caller adds changes in path order.
func (l *changeList) add(c plan.Change) {
	last := len(l.chunks) - 1
	if last < 0 || len(l.chunks[last]) == cap(l.chunks[last]) {
		size := chunkSize
		if last < 0 {
			size = 16 // most plans are small
		}
		l.chunks = append(l.chunks, make([]plan.Change, 0, size))
		last++
	}
	l.chunks[last] = append(l.chunks[last], c)
}

// gather concatenates the chunks.
func (l *changeList) gather() {
	l.list = slices.Concat(l.chunks...)
	l.chunks = nil
}

// insert adds changes after gather, in any order.
func (l *changeList) insert(list []plan.Change) {
	if len(list) == 0 {
		return
	}
	l.list = append(l.list, list...)
	slices.SortFunc(l.list, func(a, b plan.Change) int { return strings.Compare(a.Path, b.Path) })
}

// find returns the change of a path after gather, or nil.
func (l *changeList) find(path string) *plan.Change {
	i, ok := slices.BinarySearchFunc(l.list, path, func(c plan.Change, path string) int {
		return strings.Compare(c.Path, path)
	})
	if !ok {
		return nil
	}
	return &l.list[i]
}

// deletes reports whether the plan deletes the file at path.
func (l *changeList) deletes(path string) bool {
	c := l.find(path)
	return c != nil && c.Op == plan.Delete
}

// maxHashed bounds the files that one plan reads to hash them, in bytes. It is several times what a gateway has, and takes less than a minute.
const maxHashed = 16 << 30

// boundedState is a plan.State that refuses to hash more files when those that it has hashed are together larger than maxHashed. A program
// of the gateway can make thousands of huge sparse files, and the agent does nothing else while it reads them.
type boundedState struct {
	plan.State
	left int64
}

func (s *boundedState) BlobID(path string) (plan.ID, error) {
	if s.left < 0 {
		return plan.ID{}, failure.New(v1alpha1.ReasonWriteFailed,
			"the files that differ from the last sync have more than %d GiB, and are not read: remove what does not belong there", maxHashed>>30)
	}
	st, err := s.Stat(path)
	if err != nil {
		return plan.ID{}, err
	}
	id, err := s.State.BlobID(path)
	if !id.IsZero() { // otherwise it was too large to be read
		s.left -= st.Size
	}
	return id, err
}
