package snapshot

import (
	"context"
	"fmt"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// PlanReplace plans to make the owned files those of list, which is sorted by path and comes from an archive of Contents with the
// header h. It deletes the other owned files. PlanReplace checks the list, because others can write archives: no path leaves the
// data directory or is one that the agent never writes. Staging checks the bytes.
func PlanReplace(ctx context.Context, live Live, h plan.Header, list []Content) (*plan.Changes, error) {
	if err := checkContents(h, list); err != nil {
		return nil, err
	}
	p := replacement{live: live, changes: &plan.Changes{
		From: live.Manifest.Header().Commit, To: h.Commit, Mappings: h.Mappings, Signed: map[string]plan.ID{}, Total: h.Files, Full: true,
	}}
	for rec, err := range live.Manifest.All("") {
		for err == nil && len(list) > 0 && list[0].Path < rec.Path {
			err = p.put(ctx, list[0], plan.Owned{}, false)
			list = list[1:]
		}
		switch {
		case err != nil:
		case len(list) > 0 && list[0].Path == rec.Path:
			err = p.put(ctx, list[0], rec, true)
			list = list[1:]
		default:
			err = p.remove(rec)
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

// checkContents checks the paths like those of a commit.
func checkContents(h plan.Header, list []Content) error {
	unsafe := func(path, problem string) error {
		return failure.New(v1alpha1.ReasonUnsafePath, "the archive has %s, which %s; nothing was changed", failure.Quote(path), problem)
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

// replacement collects the changes of PlanReplace.
type replacement struct {
	live    Live
	changes *plan.Changes
}

// put adds the change that writes or adopts a file of the archive, if it needs one. rec is the record of its path, if owned is
// true.
func (p *replacement) put(ctx context.Context, f Content, rec plan.Owned, owned bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c, err := p.live.find(f.Path, rec, owned)
	if err != nil {
		return err
	}
	c.Exec, c.Origin, c.Unrecorded = f.Exec, f.Origin, !f.Recorded
	switch {
	case c.Found.Kind == plan.File && c.FoundID == f.ID && (c.Found.NoModes || c.Found.Exec == f.Exec):
		if !f.Recorded || owned && rec.Have == f.ID && rec.Want == f.Want && rec.Origin == f.Origin && rec.Exec == f.Exec {
			p.changes.Unchanged++
			return nil
		}
		c.Op, c.ID, c.Conflict, c.Foreign = plan.Adopt, f.Want, false, !owned || rec.Have != f.ID
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

// remove adds the change that removes an owned file. If it is gone, or a user put something else in its place, only the record goes.
func (p *replacement) remove(rec plan.Owned) error {
	c, err := p.live.find(rec.Path, rec, true)
	if err != nil {
		return err
	}
	c.Origin, c.Op = rec.Origin, plan.Delete
	if c.Found.Kind != plan.File {
		c.Op, c.Conflict, c.Foreign = plan.Release, false, c.Found.Kind == plan.Missing && !rec.Have.IsZero()
	}
	p.changes.List = append(p.changes.List, c)
	return nil
}
