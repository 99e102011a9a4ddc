package disk

import (
	"context"
	"errors"
	"fmt"
	"os"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// PlanReplace plans to make the owned files those of list, which is sorted by path and comes from an archive of Contents with the header h.
// It deletes the owned files that are not in it. Like all that comes from outside, the list is checked: no path leaves the data
// directory or is one that the agent never writes. The bytes are checked when they are staged.
func (d *Dir) PlanReplace(ctx context.Context, h plan.Header, list []Content) (*plan.Changes, error) {
	d.work.Lock()
	defer d.work.Unlock()
	if err := d.Current(); err != nil {
		return nil, err
	}
	if err := checkContents(h, list); err != nil {
		return nil, err
	}
	p := replacement{d: d, changes: &plan.Changes{
		From: d.manifest().Header().Commit, To: h.Commit, Mappings: h.Mappings, Signed: map[string]plan.ID{}, Total: h.Files, Full: true,
	}}
	for is, err := range d.manifest().All("") {
		for err == nil && len(list) > 0 && list[0].Path < is.Path {
			err = p.put(ctx, list[0], plan.Owned{}, false)
			list = list[1:]
		}
		switch {
		case err != nil:
		case len(list) > 0 && list[0].Path == is.Path:
			err = p.put(ctx, list[0], is, true)
			list = list[1:]
		default:
			err = p.remove(is)
		}
		if err != nil {
			return nil, err
		}
	}
	for _, f := range list {
		if err := p.put(ctx, f, plan.Owned{}, false); err != nil {
			return nil, err
		}
	}
	return p.changes, nil
}

// checkContents checks paths as those of a commit are checked.
func checkContents(h plan.Header, list []Content) error {
	unsafe := func(path, why string) error {
		return failure.New(v1alpha1.ReasonUnsafePath, "the archive has %s, which %s; nothing was changed", failure.Quote(path), why)
	}
	dirs := map[string]bool{}
	for i, f := range list {
		path, err := plan.ParsePath(f.Path)
		switch {
		case err != nil:
			return fmt.Errorf("the archive is not one of a gateway: %w; nothing was changed", err)
		case string(path) != f.Path || safe.CheckPath(f.Path) != nil:
			return unsafe(f.Path, "is not a clean path")
		case resource.NeverTouch(f.Path):
			return unsafe(f.Path, "the agent never writes")
		case i > 0 && f.Path <= list[i-1].Path:
			return unsafe(f.Path, "is not in its place")
		case f.Recorded && int(f.Origin) >= max(1, len(h.Mappings)):
			return unsafe(f.Path, "has an unknown mapping")
		}
		for dir, _ := safe.Split(f.Path); dir != "" && !dirs[dir]; dir, _ = safe.Split(dir) {
			dirs[dir] = true
		}
	}
	for _, f := range list {
		if dirs[f.Path] {
			return unsafe(f.Path, "is a file and a directory")
		}
	}
	return nil
}

// replacement is a plan that is made.
type replacement struct {
	d       *Dir
	changes *plan.Changes
}

// find returns a change of what is at a path.
func (p *replacement) find(path string, is plan.Owned, owned bool) (plan.Change, error) {
	st, err := p.d.Stat(path)
	if err != nil {
		return plan.Change{}, err
	}
	c := plan.Change{Path: path, Found: st, Owned: owned}
	if c.FoundID, err = p.d.foundID(path, st, is, owned); err != nil && !errors.Is(err, os.ErrNotExist) {
		return c, err
	}
	c.Conflict = st.Kind != plan.Missing && (!owned || st.Kind != plan.File || c.FoundID != is.Have && !p.d.rewritten(is, c.FoundID))
	return c, nil
}

// put adds the change that brings a file of the archive, if it needs one.
func (p *replacement) put(ctx context.Context, f Content, is plan.Owned, owned bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c, err := p.find(f.Path, is, owned)
	if err != nil {
		return err
	}
	c.Exec, c.Origin, c.Unrecorded = f.Exec, f.Origin, !f.Recorded
	switch {
	case c.Found.Kind == plan.File && c.FoundID == f.ID && (c.Found.NoModes || c.Found.Exec == f.Exec):
		if !f.Recorded || owned && is.Have == f.ID && is.Want == f.Want && is.Origin == f.Origin && is.Exec == f.Exec {
			p.changes.Unchanged++
			return nil
		}
		c.Op, c.ID, c.Conflict = plan.Adopt, f.Want, false
	case c.Found.Kind == plan.Missing || c.Found.Kind == plan.Dir:
		c.Op, c.ID = plan.Create, f.ID
	default:
		c.Op, c.ID = plan.Update, f.ID
	}
	if c.Op != plan.Adopt && f.Recorded && f.Want != f.ID {
		p.changes.Signed[f.Path] = f.Want
	}
	p.changes.List = append(p.changes.List, c)
	return nil
}

// remove adds the change that removes an owned file. What a user put in its place stays.
func (p *replacement) remove(is plan.Owned) error {
	c, err := p.find(is.Path, is, true)
	if err != nil {
		return err
	}
	c.Origin, c.Op = is.Origin, plan.Delete
	if c.Found.Kind != plan.File {
		c.Op, c.Conflict = plan.Release, false
	}
	p.changes.List = append(p.changes.List, c)
	return nil
}

// scratchFile is the name of a scratch file until it is open.
const scratchFile = "scratch"

// Scratch returns a new file on the data volume that has no name, so that it goes when it is closed, or with the process.
func (d *Dir) Scratch() (*os.File, error) {
	d.work.Lock()
	defer d.work.Unlock()
	if d.o.ReadOnly {
		return nil, ErrReadOnly
	}
	if err := d.checkMoved(); err != nil {
		return nil, err
	}
	if err := d.vol.Vacate(d.own.Folder, scratchFile); err != nil {
		return nil, safe.WriteError(err, "make a scratch file")
	}
	f, err := d.vol.Create(d.own.Folder, scratchFile, 0o600)
	if err != nil {
		return nil, safe.WriteError(err, "make a scratch file")
	}
	if err := d.vol.Remove(d.own.Folder, scratchFile); err != nil {
		return nil, errors.Join(safe.WriteError(err, "make a scratch file"), f.Close())
	}
	return f, nil
}
