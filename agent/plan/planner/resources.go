package planner

import (
	"fmt"
	"maps"
	"slices"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/agent/plan/relpath"
)

// settleResources makes each changed resource directory consistent. The signature in resource.json covers the other
// files, so a sync must write it together with them; otherwise the gateway may miss the change or sign the resource
// itself.
//
// Gateways rewrite resource.json and the thumbnail without changing their meaning (see planner.noise), and a plan normally
// keeps what the gateway wrote. But if a plan writes or deletes another file of the resource, it also replaces these two
// companions with git's. If a file of the resource goes to lost+found (Change.Conflict), so do the companions, so that
// lost+found has the whole resource.
func (p *planner) settleResources() error {
	s := companions{planner: p, more: make(map[string]plan.Change)}
	last, lastConflict := "", false
	for i := range p.list {
		c := &p.list[i]
		dir := relpath.Parent(c.Path)
		if !c.Writes() || dir == "" || dir == last && (lastConflict || !c.Conflict) {
			continue
		}
		for _, name := range [...]string{resource.File, resource.Thumbnail} {
			if path := relpath.Join(dir, name); path != c.Path {
				if err := s.settle(path, c.Conflict); err != nil {
					return err
				}
			}
		}
		last, lastConflict = dir, c.Conflict
	}
	p.insert(slices.Collect(maps.Values(s.more)))
	return nil
}

// companions makes a plan write the companions of changed files.
type companions struct {
	*planner
	more map[string]plan.Change // by path: the changes of companions that the plan does not have yet
}

// settle makes the plan write the companion at path, in the plan itself or in more. conflict reports that a file of
// the resource goes to lost+found.
func (s *companions) settle(path string, conflict bool) error {
	if c := s.find(path); c != nil {
		return s.write(c, conflict)
	}
	if c, ok := s.more[path]; ok {
		c.Conflict = c.Conflict || conflict
		s.more[path] = c
		return nil
	}
	c, ok, err := s.newChange(path, conflict)
	if ok {
		s.more[path] = c
	}
	return err
}

// write makes c, the change of a companion that the plan has already, write git's version. If the file on the disk is
// git's resource.json, c writes it only if its signature does not match the files beside it.
func (s *companions) write(c *plan.Change, conflict bool) error {
	switch {
	case s.noise[c.Path]:
		if c.Op == plan.Adopt {
			c.Op = plan.Update
		}
		c.Conflict = c.Conflict || conflict
	case c.Op == plan.Adopt && relpath.Base(c.Path) == resource.File:
		siblings, err := s.Desired.List(relpath.Parent(c.Path))
		if err != nil {
			return err
		}
		if err := s.sign(c, siblings); err != nil {
			return err
		}
		if c.ID != c.FoundID {
			c.Op, c.Conflict = plan.Update, conflict
		}
	}
	return nil
}

// sign makes c write a resource.json with a new signature, if git's signature does not match the files of the directory.
func (s *companions) sign(c *plan.Change, siblings desired.Listing) error {
	id, stale, err := siblings.SignedID()
	if err != nil || !stale {
		return err
	}
	if s.changes.Signed == nil {
		s.changes.Signed = make(map[string]plan.ID)
	}
	s.changes.Signed[c.Path], c.ID = c.ID, id
	return nil
}

// newChange returns the change that writes the companion at path, for which the plan has no change yet. It returns false if
// there is nothing to write.
func (s *companions) newChange(path string, conflict bool) (plan.Change, bool, error) {
	rec, owned, err := s.Manifest.Get(path)
	if err != nil {
		return plan.Change{}, false, fmt.Errorf("read the manifest: %w", err)
	}
	if !owned {
		return plan.Change{}, false, nil
	}
	st, err := s.State.Stat(path)
	if err != nil {
		return plan.Change{}, false, fmt.Errorf("stat %s: %w", path, err)
	}
	if st.Kind != plan.File {
		return plan.Change{}, false, nil // drift, which the plan does not repair here
	}
	found, err := s.foundID(path, st, rec, true)
	if err != nil || found == rec.Want && isThumbnail(path) { // a thumbnail that is git's needs no change
		return plan.Change{}, false, err
	}
	siblings, err := s.Desired.List(relpath.Parent(path))
	if err != nil {
		return plan.Change{}, false, err
	}
	f, wanted := siblings.File(relpath.Base(path))
	if !wanted {
		return plan.Change{}, false, nil
	}
	c := plan.Change{
		Op: plan.Update, Path: path, ID: f.ID, Exec: f.Exec, Origin: f.Origin, Found: st, FoundID: found, Owned: true,
		Conflict: conflict,
	}
	if isThumbnail(path) {
		return s.countedUnchanged(c)
	}
	if found != rec.Have && found != rec.Want {
		same, err := s.sameMeaning(c)
		if err != nil {
			return plan.Change{}, false, err
		}
		if !same { // it differs in more than the signature
			c, ok := s.replaceDrifted(c)
			return c, ok, nil
		}
	}
	if err := s.sign(&c, siblings); err != nil {
		return plan.Change{}, false, err
	}
	return s.countedUnchanged(c)
}

// countedUnchanged returns the change of a companion that a full plan has counted as unchanged, or as drifted because of its mode. It returns false if the file on the
// disk is right already.
func (s *companions) countedUnchanged(c plan.Change) (plan.Change, bool, error) {
	if c.FoundID == c.ID { // the file on the disk already has the right signature
		delete(s.changes.Signed, c.Path)
		return plan.Change{}, false, nil
	}
	switch {
	case !s.changes.Full:
	case otherMode(&c):
		s.changes.Drifted--
	default:
		s.changes.Unchanged--
	}
	return c, true, nil
}

// replaceDrifted returns the change that replaces a drifted resource.json, or false if the conflict policy keeps the gateway's.
func (s *companions) replaceDrifted(c plan.Change) (plan.Change, bool) {
	switch s.conflictPolicy(c.Path) {
	case plan.GatewayWins:
		return plan.Change{}, false
	case plan.Hold:
		s.conflicts[c.Path] = true
	}
	if s.changes.Full {
		s.changes.Drifted--
	}
	c.Conflict = true
	return c, true
}
