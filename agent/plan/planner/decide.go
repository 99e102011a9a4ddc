package planner

import (
	"fmt"
	"slices"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/agent/plan/relpath"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// decideDesired decides about a file that git wants. It follows the tables of docs/reference/files.md.
func (p *planner) decideDesired(f desired.File, rec plan.Owned, owned bool) error {
	if mount := p.rules.Mounts.Below(f.Path); mount != "" {
		return failure.New(v1alpha1.ReasonPathCollision, "git has a file at %s, which must be a directory because the gateway's "+
			"container has a mount at %s: exclude the file, or remove it from git", f.Path, mount)
	}
	st, err := p.State.Stat(f.Path)
	if err != nil {
		return fmt.Errorf("stat %s: %w", f.Path, err)
	}
	c := plan.Change{Path: f.Path, ID: f.ID, Exec: f.Exec, Origin: f.Origin, Found: st, Owned: owned}
	switch st.Kind {
	case plan.Missing:
		return p.decideMissing(c, rec)
	case plan.File:
		return p.decideFile(c, rec)
	}
	p.decideOtherKind(c, rec)
	return nil
}

// sameWant reports whether git wants the same as at the last sync.
func sameWant(c *plan.Change, rec plan.Owned) bool { return c.ID == rec.Want && c.Exec == rec.Exec }

// decideMissing decides about a desired path that the disk does not have: the file is new, or was deleted on the gateway.
func (p *planner) decideMissing(c plan.Change, rec plan.Owned) error {
	c.Op = plan.Create
	switch same := sameWant(&c, rec); {
	case !c.Owned:
	case same && !p.repairs(rec):
		p.changes.Drifted++
		return nil
	case !same && p.conflictPolicy(c.Path) != plan.GitWins:
		p.addConflict(c)
		return nil
	}
	if err := p.parents.check(c.Path); err != nil {
		return err
	}
	p.add(c)
	return nil
}

// decideOtherKind decides about a desired path at which the disk has something other than a regular file.
func (p *planner) decideOtherKind(c plan.Change, rec plan.Owned) {
	same := c.Owned && sameWant(&c, rec)
	switch {
	case same && !p.repairs(rec):
		p.changes.Drifted++
	case c.Found.Kind == plan.Dir:
		// settleDirs decides whether the file can replace the directory, when all deletions are known.
		c.Op = plan.Create
		p.add(c)
		p.dirs = append(p.dirs, c.Path)
	case same:
		p.addOverwrite(c)
	default:
		c.Op = plan.Update
		p.addConflict(c)
	}
}

// decideFile decides about a desired path at which the disk has a file.
func (p *planner) decideFile(c plan.Change, rec plan.Owned) error {
	var err error
	if c.FoundID, err = p.foundID(c.Path, c.Found, rec, c.Owned); err != nil {
		return err
	}
	if c.FoundID == c.ID {
		p.decideEqual(c, rec)
		return nil
	}
	if !c.Owned {
		return p.decideUnowned(c)
	}
	onGateway, inGit := c.FoundID != rec.Have, c.ID != rec.Want
	switch {
	case !onGateway && !inGit:
		return p.decideUnchanged(c, rec)
	case !onGateway:
		return p.decideChangedInGit(c, rec)
	case !inGit:
		return p.decideChangedOnGateway(c, rec)
	}
	return p.decideChangedInBoth(c, rec)
}

// decideEqual decides about a file whose content is git's.
func (p *planner) decideEqual(c plan.Change, rec plan.Owned) {
	switch {
	case leavesMode(&p.Input, &c, rec):
		p.changes.Drifted++
	case otherMode(&c):
		c.Op = plan.Update
		p.add(c)
	case !c.Owned || !p.upToDate(c, rec):
		c.Op, c.Foreign = plan.Adopt, !c.Owned || rec.Have != c.FoundID
		p.add(c)
	default:
		p.changes.Unchanged++
	}
}

// otherMode reports whether the file on the disk has another mode than git's.
func otherMode(c *plan.Change) bool { return c.Found.Exec != c.Exec && !c.Found.NoModes }

// leavesMode reports whether the mode was changed on the gateway, and is not repaired.
func leavesMode(in *Input, c *plan.Change, rec plan.Owned) bool {
	return otherMode(c) && c.Owned && sameWant(c, rec) && (!in.Repair || in.proposed(c.Path))
}

// upToDate reports whether the record needs no change.
func (p *planner) upToDate(c plan.Change, rec plan.Owned) bool {
	return rec.Want == c.ID && rec.Have == c.FoundID && rec.Exec == c.Exec && rec.Size == c.Found.Size &&
		rec.Mtime == c.Found.Mtime && p.mappings.isOrigin(c.Origin, rec)
}

// decideUnowned decides about a file that is not owned and differs from git's.
func (p *planner) decideUnowned(c plan.Change) error {
	same, err := p.sameMeaning(c)
	if err != nil {
		return err
	}
	if (same || isThumbnail(c.Path)) && !otherMode(&c) { // with another mode, git's version would replace bytes that git lacks, without a copy
		c.Foreign = true
		p.adoptNoise(c, plan.Owned{})
		return nil
	}
	c.Op = plan.Update
	p.addConflict(c)
	return nil
}

// decideUnchanged decides about a file that an earlier sync left different from git, and that neither side has changed since.
// Have never differs from what git once wanted in more than noise, so git's version may replace it without a conflict.
func (p *planner) decideUnchanged(c plan.Change, rec plan.Owned) error {
	same := isThumbnail(c.Path)
	if !same {
		var err error
		if same, err = p.sameMeaning(c); err != nil {
			return err
		}
	}
	switch {
	case same && p.upToDate(c, rec) && !otherMode(&c):
		p.changes.Unchanged++
	case same:
		p.adoptNoise(c, rec)
	default: // git's version was held back by a change on the gateway, which is gone now
		c.Op = plan.Update
		p.add(c)
	}
	return nil
}

// decideChangedInGit decides about a file that only git changed: on the disk, it is as the last sync left it.
func (p *planner) decideChangedInGit(c plan.Change, rec plan.Owned) error {
	adopted := rec.Have != rec.Want
	if relpath.Base(c.Path) == resource.File || adopted {
		same, err := p.sameMeaning(c)
		if err != nil {
			return err
		}
		if same {
			p.adoptNoise(c, rec)
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

// decideChangedOnGateway decides about a file that only the gateway changed: it adopts noise (see planner.noise), and the rest is drift.
func (p *planner) decideChangedOnGateway(c plan.Change, rec plan.Owned) error {
	same, err := p.sameMeaning(c)
	if err != nil {
		return err
	}
	switch {
	case same || isThumbnail(c.Path):
		p.adoptNoise(c, rec)
	case p.repairs(rec):
		p.addOverwrite(c)
	default:
		p.changes.Drifted++
	}
	return nil
}

// decideChangedInBoth decides about a file that both changed. Noise from the gateway is not a conflict.
func (p *planner) decideChangedInBoth(c plan.Change, rec plan.Owned) error {
	same, err := p.sameMeaning(c)
	if err != nil {
		return err
	}
	if same {
		c.Foreign = true
		p.adoptNoise(c, rec)
		return nil
	}
	noise, err := p.isNoise(c, rec)
	if err != nil {
		return err
	}
	c.Op = plan.Update
	if noise {
		p.noise[c.Path] = true
		p.add(c)
		return nil
	}
	p.addConflict(c)
	return nil
}

// decideRemoved decides about a record whose path git does not want.
func (p *planner) decideRemoved(rec plan.Owned) error {
	c := plan.Change{Op: plan.Release, Path: rec.Path, Owned: true}
	var err error
	if c.Found, err = p.State.Stat(rec.Path); err != nil {
		return fmt.Errorf("stat %s: %w", rec.Path, err)
	}
	if c.Found.Kind != plan.File || p.rules.Prune == plan.PruneNone || !p.leftCommit(rec) {
		c.Foreign = c.Found.Kind == plan.Missing && !rec.Have.IsZero()
		p.add(c)
		return nil
	}
	if c.FoundID, err = p.foundID(rec.Path, c.Found, rec, true); err != nil {
		return err
	}
	c.Op = plan.Delete
	if o, ok := p.mappings.origin(rec); ok {
		p.lost.add(rec.Path, o, p.Desired.Missing())
	}
	if c.FoundID != rec.Have {
		noise, err := p.isNoise(c, rec)
		if err != nil {
			return err
		}
		if !noise {
			p.addConflict(c)
			return nil
		}
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
	o, ok := p.mappings.origin(rec)
	return ok && p.rules.HasMapping(o)
}

// addConflict adds a change to a file that the gateway changed, according to the policy. Under hold it adds what would
// happen, and holdForApproval holds the plan.
func (p *planner) addConflict(c plan.Change) {
	switch p.conflictPolicy(c.Path) {
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
		p.conflicts[c.Path] = true
	}
	c.Conflict = c.Found.Kind != plan.Missing
	p.add(c)
}

// addOverwrite replaces the gateway's version with git's whatever the policy, because Repair or Replicated asks for it.
func (p *planner) addOverwrite(c plan.Change) {
	c.Op, c.Conflict = plan.Update, true
	p.add(c)
}

// adoptNoise adopts a file whose content differs from git's only in noise. If it also has another mode, git's version replaces it.
func (p *planner) adoptNoise(c plan.Change, rec plan.Owned) {
	if leavesMode(&p.Input, &c, rec) {
		p.changes.Drifted++
		return
	}
	c.Op = plan.Adopt
	if otherMode(&c) {
		c.Op, c.Foreign = plan.Update, false
	}
	p.noise[c.Path] = true
	p.add(c)
}

// settleDirs decides about paths at which git has a file and the gateway has a directory. The file can replace the directory only if
// this plan deletes every file in the directory. Otherwise the conflict policy decides.
func (p *planner) settleDirs() error {
	for _, dir := range p.dirs {
		remaining, err := remainingFile(p.State, dir, p.deletes)
		if err != nil {
			return err
		}
		if remaining == "" {
			continue
		}
		switch p.conflictPolicy(dir) {
		case plan.GitWins:
			return failure.New(v1alpha1.ReasonPathCollision, "git has a file at %s, but the gateway has a directory there "+
				"with files that this sync does not delete, such as %s: move or delete the files in it", dir, remaining)
		case plan.Hold:
			p.conflicts[dir] = true
		case plan.GatewayWins:
			p.find(dir).Op = plan.Keep
		}
	}
	return nil
}

// remainingFile returns the first file below dir that a plan does not delete, or "".
func remainingFile(state plan.State, dir string, deletes func(path string) bool) (string, error) {
	for f, err := range state.Walk(dir) {
		if err != nil {
			return "", fmt.Errorf("walk %s: %w", dir, err)
		}
		if !deletes(f.Path) {
			return f.Path, nil
		}
	}
	return "", nil
}

// policies decide which version of a file wins.
type policies struct {
	rules   *plan.Rules
	in      *Input
	mirrors []string // the directories that prune mirror cleans
}

// conflictPolicy returns the conflict policy for a path.
func (p *policies) conflictPolicy(path string) plan.ConflictPolicy {
	if p.in.replicated(path) || p.in.GitWins != nil && p.in.GitWins(path) {
		return plan.GitWins
	}
	return p.rules.Conflict
}

// repairs reports whether git's version replaces a file that only the gateway changed. Under gatewayWins, a file stays if its record has
// another Have than Want: it may have been kept against git.
func (p *policies) repairs(rec plan.Owned) bool {
	if p.in.replicated(rec.Path) {
		return true
	}
	return p.in.Repair && !p.in.proposed(rec.Path) && (p.rules.Conflict != plan.GatewayWins || rec.Have == rec.Want)
}

// mirrored reports whether prune mirror deletes a file at path that git does not have.
func (p *policies) mirrored(path string) bool {
	return !p.in.proposed(path) && slices.ContainsFunc(p.mirrors, func(dir string) bool { return relpath.Below(path, dir) })
}
