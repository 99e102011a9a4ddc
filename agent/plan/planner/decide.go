package planner

import (
	"fmt"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/agent/plan/relpath"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// desired judges a path that git wants. It follows the table "What happens to a file" in the documentation.
func (p *planner) desired(w desired.File, rec plan.Owned, owned bool) error {
	if err := p.checkMounts(w.Path); err != nil {
		return err
	}
	st, err := p.State.Stat(w.Path)
	if err != nil {
		return fmt.Errorf("stat %s: %w", w.Path, err)
	}
	c := plan.Change{Path: w.Path, ID: w.ID, Exec: w.Exec, Origin: w.Origin, Found: st, Owned: owned}
	switch st.Kind {
	case plan.Missing:
		return p.missing(c, rec)
	case plan.File:
		return p.file(c, rec)
	}
	return p.replaced(c, rec)
}

// missing judges a desired path that the disk does not have: the file is new, or was deleted on the gateway.
func (p *planner) missing(c plan.Change, rec plan.Owned) error {
	c.Op = plan.Create
	switch same := sameWant(&c, rec); {
	case !c.Owned:
	case same && !p.repairs(rec):
		p.changes.Drifted++
		return nil
	case !same && p.policy(c.Path) != plan.GitWins:
		p.conflict(c)
		return nil
	}
	if err := p.checkParents(c.Path); err != nil {
		return err
	}
	p.add(c)
	return nil
}

// replaced judges a desired path at which the disk has something other than a regular file.
func (p *planner) replaced(c plan.Change, rec plan.Owned) error {
	same := c.Owned && sameWant(&c, rec)
	switch {
	case same && !p.repairs(rec):
		p.changes.Drifted++
	case c.Found.Kind == plan.Dir:
		// settleDirs decides whether the directory may go, when all deletions are known.
		c.Op = plan.Create
		p.add(c)
		p.dirs = append(p.dirs, c.Path)
	case same:
		p.overwrite(c)
	default:
		c.Op = plan.Update
		p.conflict(c)
	}
	return nil
}

// sameWant reports whether git wants the same as at the last sync.
func sameWant(c *plan.Change, rec plan.Owned) bool { return c.ID == rec.Want && c.Exec == rec.Exec }

// file judges a desired path at which the disk has a file.
func (p *planner) file(c plan.Change, rec plan.Owned) error {
	found, err := p.foundID(c.Path, c.Found, rec, c.Owned)
	if err != nil {
		return err
	}
	c.FoundID = found
	if found == c.ID {
		p.equal(c, rec)
		return nil
	}
	if !c.Owned {
		return p.foreign(c)
	}
	touched, wanted := found != rec.Have, c.ID != rec.Want
	switch {
	case !touched && !wanted:
		return p.settled(c, rec)
	case !touched:
		return p.changedInGit(c, rec)
	case !wanted:
		return p.changedOnGateway(c, rec)
	}
	return p.changedInBoth(c, rec)
}

// foundID returns the blob id of a file: the record's if stat agrees with it, otherwise the hash of the content.
func (p *planner) foundID(path string, st plan.Stat, rec plan.Owned, owned bool) (plan.ID, error) {
	if owned && !p.Verify && st.Size == rec.Size && st.Mtime == rec.Mtime {
		return rec.Have, nil
	}
	id, err := p.State.BlobID(path)
	if err != nil {
		return plan.ID{}, fmt.Errorf("hash %s: %w", path, err)
	}
	return id, nil
}

// equal judges a file whose content is git's.
func (p *planner) equal(c plan.Change, rec plan.Owned) {
	chmod := c.Found.Exec != c.Exec && !c.Found.NoModes
	switch {
	case chmod && c.Owned && sameWant(&c, rec) && !p.Repair:
		p.changes.Drifted++ // a chmod on the gateway
	case chmod:
		c.Op = plan.Update
		p.add(c)
	case !c.Owned || !p.upToDate(c, rec):
		c.Op = plan.Adopt
		p.add(c)
	default:
		p.changes.Unchanged++
	}
}

// upToDate reports whether the record needs no change.
func (p *planner) upToDate(c plan.Change, rec plan.Owned) bool {
	return rec.Want == c.ID && rec.Have == c.FoundID && rec.Exec == c.Exec && rec.Size == c.Found.Size &&
		rec.Mtime == c.Found.Mtime && p.sameOrigin(rec, desired.File{Origin: c.Origin})
}

// foreign judges a file that is not owned and differs from git's.
func (p *planner) foreign(c plan.Change) error {
	same, err := p.sameMeaning(c)
	if err != nil {
		return err
	}
	if same || relpath.Base(c.Path) == resource.Thumbnail {
		p.adoptNoise(c)
		return nil
	}
	c.Op = plan.Update
	p.conflict(c)
	return nil
}

// settled judges a file that differs from git because an earlier sync left it, and that has not changed since. Have
// never differs from what git once wanted in more than noise, so Have may be replaced without a conflict.
func (p *planner) settled(c plan.Change, rec plan.Owned) error {
	same := relpath.Base(c.Path) == resource.Thumbnail
	if !same {
		var err error
		if same, err = p.sameMeaning(c); err != nil {
			return err
		}
	}
	switch {
	case same && p.upToDate(c, rec):
		p.changes.Unchanged++
	case same:
		p.adoptNoise(c)
	default: // a change on the gateway kept git's version back, and is gone now
		c.Op = plan.Update
		p.add(c)
	}
	return nil
}

// changedInGit judges a file that is still as the last sync left it.
func (p *planner) changedInGit(c plan.Change, rec plan.Owned) error {
	adopted := rec.Have != rec.Want
	if relpath.Base(c.Path) == resource.File || adopted {
		same, err := p.sameMeaning(c)
		if err != nil {
			return err
		}
		if same {
			p.adoptNoise(c)
			return nil
		}
	}
	c.Op = plan.Update
	p.add(c)
	if adopted {
		p.noise[c.Path] = true
	}
	return nil
}

// changedOnGateway judges a file that only the gateway changed: noise is adopted, the rest is drift.
func (p *planner) changedOnGateway(c plan.Change, rec plan.Owned) error {
	same, err := p.sameMeaning(c)
	if err != nil {
		return err
	}
	switch {
	case same || relpath.Base(c.Path) == resource.Thumbnail:
		p.adoptNoise(c)
	case p.repairs(rec):
		p.overwrite(c)
	default:
		p.changes.Drifted++
	}
	return nil
}

// changedInBoth judges a file that both changed. Noise from the gateway is not a conflict.
func (p *planner) changedInBoth(c plan.Change, rec plan.Owned) error {
	same, err := p.sameMeaning(c)
	if err != nil {
		return err
	}
	if same {
		p.adoptNoise(c)
		return nil
	}
	noise := relpath.Base(c.Path) == resource.Thumbnail
	if !noise {
		if noise, err = p.sameAsBefore(c, rec); err != nil {
			return err
		}
	}
	c.Op = plan.Update
	if noise {
		p.noise[c.Path] = true
		p.add(c)
		return nil
	}
	p.conflict(c)
	return nil
}

// removedFromGit judges a record whose path git does not want.
func (p *planner) removedFromGit(rec plan.Owned) error {
	c := plan.Change{Op: plan.Release, Path: rec.Path, Owned: true}
	st, err := p.State.Stat(rec.Path)
	if err != nil {
		return fmt.Errorf("stat %s: %w", rec.Path, err)
	}
	c.Found = st
	if st.Kind != plan.File || p.rules.Prune == plan.PruneNone || !p.leftCommit(rec) {
		p.add(c)
		return nil
	}
	if c.FoundID, err = p.foundID(rec.Path, st, rec, true); err != nil {
		return err
	}
	c.Op = plan.Delete
	p.countOrphan(rec)
	noise := c.FoundID == rec.Have || relpath.Base(c.Path) == resource.Thumbnail
	if !noise {
		if noise, err = p.sameAsBefore(c, rec); err != nil {
			return err
		}
	}
	if !noise {
		p.conflict(c)
		return nil
	}
	if c.FoundID != rec.Want {
		p.noise[c.Path] = true
	}
	p.add(c)
	return nil
}

// leftCommit reports whether the commit, and not a change of the rules, removed the file of a record. Under the same
// rules it was the commit. Under other rules it was the commit if the file's mapping still exists and no exclude or
// mount covers the path. In doubt the file stays, unless prune mirror would delete it at the next sync anyway.
func (p *planner) leftCommit(rec plan.Owned) bool {
	if p.rules.LeavesAlone(rec.Path) {
		return false
	}
	if p.sameRules || p.mirrored(rec.Path) {
		return true
	}
	return int(rec.Origin) < len(p.header.Mappings) && p.rules.HasMapping(p.header.Mappings[rec.Origin])
}

// conflict adds a change to a file that the gateway changed, according to the policy. Under hold it adds what would
// happen, and guard holds the plan.
func (p *planner) conflict(c plan.Change) {
	switch p.policy(c.Path) {
	case plan.GatewayWins:
		switch {
		case c.Op != plan.Delete:
			c.Op = plan.Keep
		case p.mirrored(c.Path): // the next sync would delete it
			c.Conflict = true
		default:
			c.Op = plan.Release
		}
		p.add(c)
		return
	case plan.Hold:
		p.hold(c.Path)
	}
	c.Conflict = c.Found.Kind != plan.Missing
	p.add(c)
}

// policy returns the conflict policy for a path.
func (p *planner) policy(path string) plan.ConflictPolicy {
	if p.brought(path) || p.GitWins != nil && p.GitWins(path) {
		return plan.GitWins
	}
	return p.rules.Conflict
}

func (p *planner) proposed(path string) bool { return p.Proposed != nil && p.Proposed(path) }

func (p *planner) brought(path string) bool { return p.Brought != nil && p.Brought(path) }

// repairs reports whether git's version replaces a file that only the gateway changed. Under gatewayWins, a file that
// was once kept against git stays.
func (p *planner) repairs(rec plan.Owned) bool {
	return p.brought(rec.Path) || p.Repair && !p.proposed(rec.Path) && (p.rules.Conflict != plan.GatewayWins || rec.Have == rec.Want)
}

// overwrite replaces the gateway's version by git's whatever the policy, because Repair or Brought asks for it.
func (p *planner) overwrite(c plan.Change) {
	c.Op, c.Conflict = plan.Update, true
	p.add(c)
}

func (p *planner) adoptNoise(c plan.Change) {
	c.Op = plan.Adopt
	p.noise[c.Path] = true
	p.add(c)
}

// checkParents refuses a path that cannot be written because a parent is not a directory. This plan may still delete a
// parent that is an owned file; settleBlocked checks that later.
func (p *planner) checkParents(path string) error {
	dir := relpath.Parent(path)
	if dir == "" || p.clear == dir {
		return nil
	}
	at, kind, err := p.State.Blocked(path)
	switch {
	case err != nil:
		return fmt.Errorf("open the parents of %s: %w", path, err)
	case at == "":
		p.clear = dir
		return nil
	case kind == plan.Link:
		return failure.New(v1alpha1.ReasonUnsafePath, "%s is a symbolic link on the gateway, and git has %s "+
			"below it; the agent never follows links: replace the link with a directory", at, path)
	case kind == plan.File:
		if _, ok := p.blocked[at]; !ok {
			p.blocked[at] = path
		}
		return nil
	}
	return blockedBy(at, path)
}

func blockedBy(at, path string) error {
	return failure.New(v1alpha1.ReasonPathCollision, "%s on the gateway is in the place of a directory that %s needs, and "+
		"the agent does not own it: delete it, or change the mapping", at, path)
}

// checkMounts refuses a file at a path that has to stay a directory because of a mount below it.
func (p *planner) checkMounts(path string) error {
	if mount := p.rules.Mounts.Below(path); mount != "" {
		return failure.New(v1alpha1.ReasonPathCollision, "git has a file at %s, which must be a directory because the gateway's "+
			"container has a mount at %s: exclude the file, or remove it from git", path, mount)
	}
	return nil
}
