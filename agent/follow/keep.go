package follow

import (
	"context"
	"errors"

	"stoker.io/stoker/agent/audit"
	"stoker.io/stoker/agent/decide"
	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
)

// closedGate describes the gateway while a gate is closed and o is the order in force, which may be nil.
func (f *Follower) closedGate(o *loop.Order) decide.ClosedGate {
	c := decide.ClosedGate{Disk: f.volume.commit(), Unsynced: f.volume.unsynced()}
	if o != nil && !o.Commit.IsZero() {
		c.Order, c.Requested, c.Restores = o.Commit, o.RequestedRollback, f.Engine.Restores(o.Task)
	}
	return c
}

// keep puts in force what a closed gate allows: to load and repair the commit on the disk, a restore, and a forced sync of that commit. held
// is why the gateway stays as it is; keep adds the error of a restore to its message. It reports whether the gateway must be left alone.
func (f *Follower) keep(ctx context.Context, gs *v1alpha1.GatewaySync, in instruction, held *decide.Hold) (doNotTouch bool) {
	c := f.closedGate(f.current.order)
	if c.Unsynced {
		return false
	}
	if c.Order.IsZero() || c.StopsOrder() {
		f.takeKept(ctx, gs, in)
	}
	o := f.current.order
	if o == nil || o.Commit.IsZero() {
		return false
	}
	next := *o
	if in.Restore != "" {
		next.Restore = in.Restore
	}
	next.HiddenRestore = in.HiddenRestore
	c = f.closedGate(&next)
	if c.Force() {
		next.Force = in.Force
	}
	next.RestoreOnly = c.RestoreOnly()
	if next.Restore != o.Restore || next.HiddenRestore != o.HiddenRestore || next.Force != o.Force || next.RestoreOnly != o.RestoreOnly {
		f.current.order = &next
	}
	if s := f.loop.State(); c.Restores && s.Of == f.current.order && s.Report != nil && s.Report.Err != nil {
		held.Message += "; " + s.Report.Message
	}
	return f.closedGate(f.current.order).StopsOrder()
}

// takeKept puts the commit on the disk in force after a restart of the agent. It does not if the spec has changed since that commit was
// synced, because the gateway keeps its settings, too. A restore does not depend on the settings.
func (f *Follower) takeKept(ctx context.Context, gs *v1alpha1.GatewaySync, in instruction) {
	kept, err := f.Engine.TargetOnDisk()
	if err != nil {
		return
	}
	t, restore := kept, in.Restore
	t.HiddenRestore = in.RestoreOfSpec()
	t.Generation, t.Revision, t.RequestedAt, t.Term = in.Generation, in.Revision, in.RequestedAt, in.Term
	in.Target = t
	m, err := f.prepare(ctx, gs, in)
	if err != nil {
		return
	}
	m.rollback, m.request = false, audit.Request{}
	task := sync.Task{Target: m.in.Target, Profile: m.profile, Facts: m.facts}
	withRestore := task
	if restore != "" {
		withRestore.Restore = restore
	}
	if f.Engine.Has(task) || f.Engine.Restores(withRestore) {
		f.take(gs, m)
	}
}

// stopCheck says whether a running sync may still change files. Staging, a backup and the gateway's lock can take an hour.
type stopCheck struct {
	targets    *targetWatch
	spec       *specReader
	effective  func(*v1alpha1.GatewaySync) (effective.Settings, error)
	generation int64 // of the spec of the sync
}

// check returns an error if an operator has paused syncing since the sync began, or if the SyncTarget is gone. Another commit does not stop a
// sync, because commits may come faster than a sync ends.
func (c stopCheck) check(ctx context.Context) error {
	t, err := c.targets.get()
	switch {
	case errors.Is(err, kube.ErrNotSeen) && c.targets.listed():
		return failure.New(v1alpha1.ReasonWaitingForLead, "SyncTarget %s is gone; nothing was written", c.spec.name)
	case err != nil:
		return nil //nolint:nilerr // the order stays in force
	case t.Spec.Paused, t.Spec.Generation != c.generation && c.pauses(ctx, t.Spec.Generation):
		return sync.PausedError()
	}
	return nil
}

// pauses reports whether a generation of the spec pauses this gateway. If it cannot be read, the earlier one stays in force.
func (c stopCheck) pauses(ctx context.Context, generation int64) bool {
	ctx, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	gs, err := c.spec.objects.Get(ctx, c.spec.name)
	if err != nil || gs.Generation != generation {
		return false
	}
	delete(gs.Annotations, v1alpha1.AnnotationPaused) // a pause by annotation comes through the target
	settings, _ := c.effective(gs)                    // Paused is set even with an error
	return settings.Paused
}
