package plan

import (
	"fmt"
	"maps"
	"slices"

	"stoker.io/stoker/agent/ignition/resource"
)

// settleResources makes each changed resource directory consistent. The signature in resource.json covers the other
// files, so it must be written together with them; otherwise the gateway may miss the change or sign the resource
// itself. If a plan writes or deletes a file of a resource, its resource.json and thumbnail also become git's, even if
// they would otherwise stay as the gateway rewrote them. If a file of a resource goes to lost+found, so do these two,
// so that lost+found has the whole resource.
func (p *planner) settleResources() error {
	more := make(map[string]Change)
	last, lastConflict := "", false
	for i := range p.changes.List {
		c := &p.changes.List[i]
		dir := parent(c.Path)
		if !c.Writes() || dir == "" || dir == last && (lastConflict || !c.Conflict) {
			continue
		}
		for _, name := range [...]string{resource.File, resource.Thumbnail} {
			if path := join(dir, name); path != c.Path {
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

func (p *planner) settleCompanion(path string, conflict bool, more map[string]Change) error {
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

// writeCompanion turns a change that leaves a resource.json or thumbnail as the gateway wrote it into one that writes it. It
// does the same for a resource.json that is git's, if its signature does not match the files beside it.
func (p *planner) writeCompanion(c *Change, conflict bool) error {
	switch {
	case p.noise[c.Path]:
		if c.Op == Adopt {
			c.Op = Update
		}
		c.Conflict = c.Conflict || conflict
	case c.Op == Adopt && base(c.Path) == resource.File:
		directory, err := p.Desired.beside(c.Path, p.Desired.list)
		if err != nil {
			return err
		}
		if err := p.sign(c, directory); err != nil {
			return err
		}
		if c.ID != c.FoundID {
			c.Op, c.Conflict = Update, conflict
		}
	}
	return nil
}

// sign makes a change write a resource.json with a matching signature, if git's does not match.
func (p *planner) sign(c *Change, directory []child) error {
	id, stale, err := p.Desired.signedID(c.Path, directory)
	if err != nil || !stale {
		return err
	}
	if p.changes.Signed == nil {
		p.changes.Signed = make(map[string]ID)
	}
	p.changes.Signed[c.Path], c.ID = c.ID, id
	return nil
}

// companion returns a change for a resource.json or thumbnail that the plan has none for yet, if it needs one.
func (p *planner) companion(path string, conflict bool) (Change, bool, error) {
	rec, owned, err := p.Manifest.Get(path)
	if err != nil {
		return Change{}, false, fmt.Errorf("read the manifest: %w", err)
	}
	if !owned {
		return Change{}, false, nil
	}
	st, err := p.State.Stat(path)
	if err != nil {
		return Change{}, false, fmt.Errorf("stat %s: %w", path, err)
	}
	if st.Kind != File {
		return Change{}, false, nil // drift
	}
	found, err := p.foundID(path, st, rec, true)
	if err != nil || found == rec.Want && base(path) != resource.File {
		return Change{}, false, err
	}
	directory, err := p.Desired.beside(path, p.Desired.list)
	if err != nil {
		return Change{}, false, err
	}
	w, desired := pick(directory, path)
	if !desired {
		return Change{}, false, nil
	}
	c := Change{
		Op: Update, Path: path, ID: w.ID, Exec: w.Exec, Origin: w.Origin, Found: st, FoundID: found, Owned: true,
		Conflict: conflict,
	}
	if base(path) == resource.File && found != rec.Have && found != rec.Want {
		same, err := p.sameMeaning(c)
		if err != nil {
			return Change{}, false, err
		}
		if !same { // it differs in more than the signature
			c, ok := p.replaceDrifted(c)
			return c, ok, nil
		}
	}
	if base(path) == resource.File {
		if err := p.sign(&c, directory); err != nil {
			return Change{}, false, err
		}
	}
	if found == c.ID { // it matches what will lie beside it
		delete(p.changes.Signed, path)
		return Change{}, false, nil
	}
	if p.full {
		p.changes.Unchanged--
	}
	return c, true, nil
}

// replaceDrifted replaces a drifted resource.json unless the conflict policy prefers the gateway.
func (p *planner) replaceDrifted(c Change) (Change, bool) {
	switch p.policy(c.Path) {
	case GatewayWins:
		return Change{}, false
	case Hold:
		p.hold(c.Path)
	}
	if p.full {
		p.changes.Drifted--
	}
	c.Conflict = true
	return c, true
}

// Writes reports whether a change touches the file itself.
func (c *Change) Writes() bool { return c.Op == Create || c.Op == Update || c.Op == Delete }
