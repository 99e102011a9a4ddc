package plan

import (
	"fmt"
	"maps"
	"slices"

	"stoker.io/stoker/agent/ignition/resource"
)

// settleResources makes each resource directory one thing. A resource.json carries a signature over the other files: it
// must be written with them, or the gateway may overlook the change or sign anew. So where a file of a resource is
// written or deleted, its resource.json and its thumbnail become git's again, also where they would else be left as
// the gateway rewrote them. And where a file of a resource goes to lost+found, so do these two, so that what lies
// there is the whole resource.
func (p *planner) settleResources() error {
	more := make(map[string]Change)
	last, lastConflict := "", false
	for i := range p.changes.List {
		c := &p.changes.List[i]
		dir := parent(c.Path)
		if !c.writes() || dir == "" || dir == last && (lastConflict || !c.Conflict) {
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
		p.harden(&p.changes.List[i], conflict)
		return nil
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

// harden turns a resource.json or thumbnail that would be left as the gateway wrote it into one that is written.
func (p *planner) harden(c *Change, conflict bool) {
	if !p.noise[c.Path] {
		return
	}
	if c.Op == Adopt {
		c.Op = Update
	}
	c.Conflict = c.Conflict || conflict
}

// companion looks at a resource.json or thumbnail that the plan has left alone so far.
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
		return Change{}, false, fmt.Errorf("look at %s: %w", path, err)
	}
	if st.Kind != File {
		return Change{}, false, nil // drift
	}
	found, err := p.foundID(path, st, rec, true)
	if err != nil || found == rec.Want {
		return Change{}, false, err
	}
	w, desired, err := p.Desired.Lookup(path)
	if err != nil || !desired {
		return Change{}, false, err
	}
	c := Change{
		Op: Update, Path: path, ID: w.ID, Exec: w.Exec, Origin: w.Origin, Found: st, FoundID: found, Owned: true,
		Conflict: conflict,
	}
	if base(path) == resource.File && found != rec.Have {
		same, err := p.sameMeaning(c)
		if err != nil {
			return Change{}, false, err
		}
		if !same { // it says more than a new signature
			c, ok := p.takeBack(c)
			return c, ok, nil
		}
	}
	if p.full {
		p.changes.Unchanged--
	}
	return c, true, nil
}

// takeBack replaces a drifted resource.json where the conflict policy lets git have its resource.
func (p *planner) takeBack(c Change) (Change, bool) {
	switch p.rules.Conflict {
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

// writes reports whether a change touches the file itself.
func (c *Change) writes() bool { return c.Op == Create || c.Op == Update || c.Op == Delete }
