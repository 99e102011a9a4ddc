package follow

import (
	"context"

	"stoker.io/stoker/agent/audit"
	"stoker.io/stoker/agent/decide"
	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/schedule"
)

// hasWindow reports whether this gateway has maintenance windows. An approval does not change the order of a gateway without.
func hasWindow(windows []v1alpha1.MaintenanceWindow, gateway, pod string) bool {
	own, _ := schedule.ParseWindows(windows, gateway, pod) // the sync reports windows that are not valid
	return len(own) > 0
}

// closed returns what the gateway has while a gate holds it with an order.
func (f *Follower) closed(o *loop.Order) decide.Closed {
	c := decide.Closed{Disk: f.volume.commit(), Unsynced: f.volume.unsynced()}
	if o != nil && !o.Commit.IsZero() {
		c.Order, c.Requested, c.Restores = o.Commit, o.RequestedRollback, f.Engine.Restores(o.Task)
	}
	return c
}

// keep puts in force what a closed gate allows: to load and repair the commit on the disk, a restore, and a forced sync of that commit. held
// is why the gateway stays as it is; keep adds the error of a restore to its message. It reports whether the gateway must be left alone.
func (f *Follower) keep(ctx context.Context, gs *v1alpha1.GatewaySync, in instruction, held *decide.Hold) (handsOff bool) {
	c := f.closed(f.current.order)
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
	c = f.closed(&next)
	if c.Force() {
		next.Force = in.Force
	}
	next.RestoreOnly = c.RestoreOnly()
	if next.Restore != o.Restore || next.Force != o.Force || next.RestoreOnly != o.RestoreOnly {
		f.current.order = &next
	}
	if s := f.loop.State(); c.Restores && s.Of == f.current.order && s.Report != nil && s.Report.Err != nil {
		held.Message += "; " + s.Report.Message
	}
	return f.closed(f.current.order).StopsOrder()
}

// takeKept puts the commit on the disk in force after a restart of the agent. It does not if the spec has changed since that commit was
// synced, because the gateway keeps its settings, too. Only a restore does not depend on them.
func (f *Follower) takeKept(ctx context.Context, gs *v1alpha1.GatewaySync, in instruction) {
	kept, err := f.Engine.TargetOnDisk()
	if err != nil {
		return
	}
	t, restore := kept, in.Restore
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
