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
// files, so it must be written together with them; otherwise the gateway may miss the change or sign the resource
// itself.
//
// Gateways rewrite resource.json and the thumbnail without changing their meaning (see planner.noise), and a plan normally
// keeps what the gateway wrote. But if a plan writes or deletes another file of the resource, it also replaces these two
// companions by git's. If a file of the resource goes to lost+found (Change.Conflict), so do the companions, so that
// lost+found has the whole resource.
func (p *planner) settleResources() error {
	more := make(map[string]plan.Change) // changes of companions that the plan does not have yet, by path
	last, lastConflict := "", false
	for i := range p.changes.List {
		c := &p.changes.List[i]
		dir := relpath.Parent(c.Path)
		if !c.Writes() || dir == "" || dir == last && (lastConflict || !c.Conflict) {
			continue
		}
		for _, name := range [...]string{resource.File, resource.Thumbnail} {
			if path := relpath.Join(dir, name); path != c.Path {
				if err := p.settleCompanion(path, c.Conflict, more); err != nil {
					return err
				}
			}
		}
		last, lastConflict = dir, c.Conflict
	}
	p.insert(slices.Collect(maps.Values(more)))
	return nil
}

// settleCompanion makes the plan write the companion at path, in the plan itself or in more. conflict reports that a file of
// the resource goes to lost+found.
func (p *planner) settleCompanion(path string, conflict bool, more map[string]plan.Change) error {
	if i, ok := p.find(path); ok {
		return p.writeCompanion(&p.changes.List[i], conflict)
	}
	if c, ok := more[path]; ok {
		c.Conflict = c.Conflict || conflict
		more[path] = c
		return nil
	}
	c, ok, err := p.companion(path, conflict)
	if ok {
		more[path] = c
	}
	return err
}

// writeCompanion makes c, the change of a companion that the plan has already, write git's version. If the file on the disk is
// git's resource.json, c writes it only if its signature does not match the files beside it.
func (p *planner) writeCompanion(c *plan.Change, conflict bool) error {
	switch {
	case p.noise[c.Path]:
		if c.Op == plan.Adopt {
			c.Op = plan.Update
		}
		c.Conflict = c.Conflict || conflict
	case c.Op == plan.Adopt && relpath.Base(c.Path) == resource.File:
		siblings, err := p.Desired.List(relpath.Parent(c.Path))
		if err != nil {
			return err
		}
		if err := p.sign(c, siblings); err != nil {
			return err
		}
		if c.ID != c.FoundID {
			c.Op, c.Conflict = plan.Update, conflict
		}
	}
	return nil
}

// sign makes c write a resource.json with a new signature, if git's signature does not match the files of the directory.
func (p *planner) sign(c *plan.Change, siblings desired.Listing) error {
	id, stale, err := siblings.SignedID()
	if err != nil || !stale {
		return err
	}
	if p.changes.Signed == nil {
		p.changes.Signed = make(map[string]plan.ID)
	}
	p.changes.Signed[c.Path], c.ID = c.ID, id
	return nil
}

// companion returns the change that writes the companion at path, for which the plan has no change yet. It returns false if
// there is nothing to write, for example because the agent does not own the file or it is right already.
func (p *planner) companion(path string, conflict bool) (plan.Change, bool, error) {
	rec, owned, err := p.Manifest.Get(path)
	if err != nil {
		return plan.Change{}, false, fmt.Errorf("read the manifest: %w", err)
	}
	if !owned {
		return plan.Change{}, false, nil
	}
	st, err := p.State.Stat(path)
	if err != nil {
		return plan.Change{}, false, fmt.Errorf("stat %s: %w", path, err)
	}
	if st.Kind != plan.File {
		return plan.Change{}, false, nil // drift, which the plan does not repair here
	}
	found, err := p.foundID(path, st, rec, true)
	if err != nil || found == rec.Want && relpath.Base(path) != resource.File { // a thumbnail that is git's needs no change
		return plan.Change{}, false, err
	}
	siblings, err := p.Desired.List(relpath.Parent(path))
	if err != nil {
		return plan.Change{}, false, err
	}
	w, wanted := siblings.File(relpath.Base(path))
	if !wanted {
		return plan.Change{}, false, nil
	}
	c := plan.Change{
		Op: plan.Update, Path: path, ID: w.ID, Exec: w.Exec, Origin: w.Origin, Found: st, FoundID: found, Owned: true,
		Conflict: conflict,
	}
	if relpath.Base(path) == resource.File && found != rec.Have && found != rec.Want {
		same, err := p.sameMeaning(c)
		if err != nil {
			return plan.Change{}, false, err
		}
		if !same { // it differs in more than the signature
			c, ok := p.replaceDrifted(c)
			return c, ok, nil
		}
	}
	if relpath.Base(path) == resource.File {
		if err := p.sign(&c, siblings); err != nil {
			return plan.Change{}, false, err
		}
	}
	if found == c.ID { // the file on the disk already has the right signature
		delete(p.changes.Signed, path)
		return plan.Change{}, false, nil
	}
	if p.full {
		p.changes.Unchanged--
	}
	return c, true, nil
}

// replaceDrifted returns the change that replaces a drifted resource.json, or false if the conflict policy keeps the gateway's.
func (p *planner) replaceDrifted(c plan.Change) (plan.Change, bool) {
	switch p.policy(c.Path) {
	case plan.GatewayWins:
		return plan.Change{}, false
	case plan.Hold:
		p.hold(c.Path)
	}
	if p.full {
		p.changes.Drifted--
	}
	c.Conflict = true
	return c, true
}
