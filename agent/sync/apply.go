package sync

import (
	"context"
	"errors"
	"fmt"
	"time"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/agent/unloaded"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// lockHold is how long the gateway keeps the scan lock if the scan that releases it never comes. Normally the agent holds
// the lock far shorter, because it only renames files meanwhile.
const lockHold = 60 * time.Second

// applier makes staged files live.
type applier struct {
	in       *scope
	guard    guard
	desired  *desired.Tree // the tree of the target; nil if a snapshot is restored
	header   *plan.Header  // the manifest header of the snapshot that is restored; nil when a commit is synced
	unloaded unloaded.Set  // what the gateway has not loaded; apply adds the changes
}

// apply records what the gateway will have to load, and makes the staged files live, under its scan lock if possible.
func (a *applier) apply(ctx context.Context, changes *plan.Changes, staged *disk.Staged) (err error) {
	snapshot, backup, err := a.snapshot(ctx, staged)
	if err != nil {
		return err
	}
	defer a.in.step("apply")()
	applied := false
	defer func() {
		if !applied && backup != "" { // the next attempt makes another one
			err = errors.Join(err, a.in.dir.DropBackup(backup))
		}
	}()
	err = a.mayChange(ctx) // also before the lock, because only a scan releases it
	if err == nil {
		err = a.guard.checkDesigners(ctx, changes)
	}
	if err != nil {
		return errors.Join(err, staged.Discard())
	}
	before := a.unloaded
	loads := changes
	if !a.in.node.Standby() { // a standby node loads by itself what the pair copies to it
		loads = changes.ToLoad()
	}
	present, deleted, err := a.projects(loads)
	if err == nil {
		a.unloaded = before.Add(loads, present, deleted)
		a.unloaded.FirstStart = a.unloaded.FirstStart || a.guard.state == stopped && a.in.from.IsZero()
		a.unloaded.Baseline = a.nextBaseline(ctx, snapshot, before)
		err = a.in.unloadedNote.Save(a.unloaded)
	}
	if err != nil {
		return errors.Join(err, staged.Discard())
	}
	locked := a.lock(ctx, changes)
	res, err := a.rename(ctx, changes, staged)
	applied = res.Applied
	if err != nil && !res.Committed {
		if res.Applied { // files of two commits may be live: no scan, so the locks expire by themselves
			return err
		}
		a.unlock(ctx, locked)
		a.unloaded = before
		return errors.Join(err, a.in.unloadedNote.Save(before))
	}
	if !a.in.task.Repair { // a repair uploads none: programs on the gateway can cause any number of repairs
		a.in.report.NewSnapshots, a.in.report.NewBackups = appendID(a.in.report.NewSnapshots, snapshot), appendID(a.in.report.NewBackups, backup)
	}
	if err != nil {
		a.unlock(ctx, locked)
		return err
	}
	if a.in.task.BeforeStart {
		// The gateway reads everything when it starts; only verification remains. If no project is verified, a scan shows whether
		// the first start kept the permissions of the API key.
		a.unloaded.ScanProjects = false
		a.unloaded.ScanConfig = a.unloaded.FirstStart && len(a.unloaded.Projects)+len(a.unloaded.Deleted) == 0
		return a.in.unloadedNote.Save(a.unloaded)
	}
	return nil
}

// mayChange returns why files must not change any more, or nil. Its callers ask late, because staging and a backup may have taken long.
func (a *applier) mayChange(ctx context.Context) error {
	if a.in.task.Stop != nil {
		if err := a.in.task.Stop(ctx); err != nil {
			return err
		}
	}
	if a.guard.state != stopped || a.in.task.BeforeStart {
		return nil
	}
	switch now, err := a.in.gateway.state(ctx); now {
	case stopped:
		return nil
	case unavailable:
		return err
	default: // the next sync takes its lock, and checks its Designers
		return failure.New(v1alpha1.ReasonWaitingForGateway, "the gateway started while the files were staged; trying again")
	}
}

// rename checks again whether files may change, and renames them. It runs under the lock.
func (a *applier) rename(ctx context.Context, changes *plan.Changes, staged *disk.Staged) (res disk.Result, err error) {
	err = a.mayChange(ctx)
	if err == nil && a.guard.designersBlock() { // otherwise the first check has noted the open Designers
		err = a.guard.checkDesigners(ctx, changes)
	}
	if err != nil {
		return res, errors.Join(err, staged.Discard())
	}
	if a.in.rules.Conflict != plan.GitWins {
		staged.RefuseForeign() // what the gateway writes now is a conflict like any other
	}
	header := a.in.node.Header(changes)
	if a.header != nil {
		header = *a.header
	}
	res, err = staged.Apply(ctx, header)
	if foreign, ok := errors.AsType[*disk.ForeignError](err); ok && !res.Applied {
		return res, failure.New(v1alpha1.ReasonConflictDetected, "%w; the next sync plans again", foreign)
	}
	if !res.Committed {
		return res, err
	}
	a.guard.memory.hold = hold{}
	c := changes.Counts()
	a.in.report.Files = Counts{Added: c.Added, Modified: c.Modified, Deleted: c.Deleted, Kept: c.Kept, Saved: len(res.Saved)}
	a.in.report.Message = changes.Summary()
	if len(res.Saved) > 0 {
		var names []string
		for _, s := range res.Saved {
			names = append(names, s.Path)
		}
		a.in.report.Message += "; replaced " + plan.Enumerate(names, 2)
	}
	if more := len(res.Saved) - c.Conflicts; more > 0 {
		a.in.report.Message += fmt.Sprintf("; %d more to lost+found, which the gateway wrote meanwhile", more)
	}
	return res, err
}

// lock takes the scan lock of each tree that changes. If that fails, the sync notes it and continues: the lock only
// separates the gateway's writes from the agent's, and package disk detects writes that slip through.
func (a *applier) lock(ctx context.Context, changes *plan.Changes) []ignition.Kind {
	if a.guard.state != running || !a.in.gateway.hasAPIToken || a.in.gateway.legacy() {
		return nil
	}
	var locked []ignition.Kind
	projects, config := changes.Touches()
	for _, k := range []struct {
		kind  ignition.Kind
		needs bool
	}{{ignition.ConfigScan, config}, {ignition.Projects, projects}} {
		if !k.needs {
			continue
		}
		if err := a.in.gateway.Lock(ctx, k.kind, lockHold); err != nil {
			a.in.note("written without the gateway's %s scan lock: %v", k.kind, err)
			continue
		}
		locked = append(locked, k.kind)
	}
	return locked
}

// unlock releases locks after a failed apply. Only a scan can release a lock. The scan finds the files of one commit: they were all
// rolled back, or are all new. unlock waits at most Grace, because the locks also expire by themselves.
func (a *applier) unlock(ctx context.Context, locked []ignition.Kind) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.in.Grace)
	defer cancel()
	for _, k := range locked {
		if _, err := a.in.gateway.Scan(ctx, k); err != nil {
			a.in.note("the gateway's %s scan lock could not be released and expires by itself: %v", k, err)
		}
	}
}

// appendID appends an id, unless it is "".
func appendID(ids []string, id string) []string {
	if id == "" {
		return ids
	}
	return append(ids, id)
}
