package sync

import (
	"context"
	"errors"
	"fmt"
	"time"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// lockHold is how long the gateway keeps the scan lock if the scan that releases it never comes. Normally the agent holds
// the lock far shorter, because it only renames files meanwhile.
const lockHold = 60 * time.Second

// apply records what the gateway will have to load, and makes the staged files live, under its scan lock if possible.
func (f *files) apply(ctx context.Context, changes *plan.Changes, staged *disk.Staged) (err error) {
	f.ahead.Wait()
	snapshot, backup, err := f.snapshot(ctx, staged)
	if err != nil {
		return err
	}
	defer f.step("apply")()
	applied := false
	defer func() {
		if !applied && backup != "" { // the next attempt makes another one
			err = errors.Join(err, f.dir.DropBackup(backup))
		}
	}()
	if err := f.checkDesigners(ctx, changes); err != nil {
		return errors.Join(err, staged.Discard())
	}
	before := f.unloaded
	present, deleted, err := f.projects(changes)
	if err == nil {
		f.unloaded = before.add(changes, present, deleted)
		f.unloaded.FirstStart = f.unloaded.FirstStart || f.before == stopped && f.from.IsZero()
		f.unloaded.Baseline = f.recordBaseline(ctx, snapshot, before)
		err = f.unloaded.save(f.dir)
	}
	if err != nil {
		return errors.Join(err, staged.Discard())
	}
	locked := f.lock(ctx, changes)
	applied, err = f.rename(ctx, changes, staged)
	if err != nil {
		f.unlock(ctx, locked)
		if !applied {
			f.unloaded = before
			err = errors.Join(err, before.save(f.dir))
		}
		return err
	}
	if !f.t.Repair { // programs on the gateway can cause as many repairs as they like
		f.r.NewSnapshots, f.r.NewBackups = appendID(f.r.NewSnapshots, snapshot), appendID(f.r.NewBackups, backup)
	}
	if f.t.BeforeStart {
		// The gateway reads everything when it starts; only verification remains. If no project is verified, a scan shows whether
		// the first start kept the permissions of the API token.
		f.unloaded.ScanProjects = false
		f.unloaded.ScanConfig = f.unloaded.FirstStart && len(f.unloaded.Projects)+len(f.unloaded.Deleted) == 0
		return f.unloaded.save(f.dir)
	}
	return nil
}

// rename checks the open Designers again and renames the files. It runs under the lock.
func (f *files) rename(ctx context.Context, changes *plan.Changes, staged *disk.Staged) (applied bool, err error) {
	if f.designersBlock() { // otherwise the first check has noted the open Designers
		if err := f.checkDesigners(ctx, changes); err != nil {
			return false, errors.Join(err, staged.Discard())
		}
	}
	if f.rules.Conflict != plan.GitWins {
		staged.RefuseForeign() // what the gateway writes now is a conflict like any other
	}
	header := f.node.Header(changes)
	if f.header != nil {
		header = *f.header
	}
	res, err := staged.Apply(ctx, header)
	if foreign, ok := errors.AsType[*disk.ForeignError](err); ok && !res.Applied {
		return false, failure.New(v1alpha1.ReasonConflictDetected, "%w; the next sync plans again", foreign)
	}
	if err != nil {
		return res.Applied, err
	}
	f.lastHold = hold{}
	c := changes.Counts()
	f.r.Files = Counts{Added: c.Added, Modified: c.Modified, Deleted: c.Deleted, Kept: c.Kept, Saved: len(res.Saved)}
	f.r.Message = changes.Summary()
	if more := len(res.Saved) - c.Conflicts; more > 0 {
		f.r.Message += fmt.Sprintf("; %d more to lost+found, which the gateway wrote meanwhile", more)
	}
	return true, nil
}

// lock takes the scan lock of each tree that changes. If that fails, the sync notes it and continues: the lock only
// separates the gateway's writes from the agent's, and package disk detects writes that slip through.
func (f *files) lock(ctx context.Context, changes *plan.Changes) []ignition.Kind {
	if f.before != running || !f.gateway.hasAPIToken || f.gateway.legacy() {
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
		if err := f.gateway.Lock(ctx, k.kind, lockHold); err != nil {
			f.note("written without the gateway's %s scan lock: %v", k.kind, err)
			continue
		}
		locked = append(locked, k.kind)
	}
	return locked
}

// unlock releases locks after a failed apply. Only a scan can release a lock. The scan finds nothing new, because the files
// were rolled back. unlock waits at most Grace, because the locks also expire by themselves.
func (f *files) unlock(ctx context.Context, locked []ignition.Kind) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.Grace)
	defer cancel()
	for _, k := range locked {
		if _, err := f.gateway.Scan(ctx, k); err != nil {
			f.note("the gateway's %s scan lock could not be released and expires by itself: %v", k, err)
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
