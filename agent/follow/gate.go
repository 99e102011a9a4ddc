package follow

import (
	"context"
	"fmt"

	"stoker.io/stoker/agent/decide"
	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/schedule"
)

// parseRollout parses and validates the rollout of a SyncTarget.
func parseRollout(r *v1alpha1.TargetRollout) (decide.Rollout, error) {
	if r == nil {
		return decide.Rollout{}, nil
	}
	if r.Open < 0 || r.Steps < 1 || r.Open > r.Steps {
		return decide.Rollout{}, fmt.Errorf("%d of %d steps cannot be open", r.Open, r.Steps)
	}
	s := decide.Rollout{On: true, Done: r.Done, Rollback: r.Back, Failed: r.Failed != "", Steps: int(r.Steps), Open: int(r.Open)}
	f := r.From
	if f == nil {
		return s, nil
	}
	id, err := plan.ParseID(f.Commit)
	if err != nil {
		return decide.Rollout{}, fmt.Errorf("from: %w", err)
	}
	// sequence: the two names of one ref
	for _, name := range []string{f.Ref, f.RefName} {
		if _, err := repo.ParseRef(name); name != "" && err != nil {
			return decide.Rollout{}, fmt.Errorf("from: %w", err)
		}
	}
	s.From = decide.Origin{Ref: f.Ref, Name: f.RefName, Commit: id}
	return s, nil
}

// passage is the result of a gate: the instruction that this gateway may follow, if any.
type passage struct {
	in       instruction
	dry      bool          // only a dry run
	rollback bool          // in goes back to what ran before
	held     *loop.Problem // why the gateway stays as it is; nil if it follows in
}

// passGate asks package decide whether this gateway may follow a target now, again if a newer GatewaySync could change the answer.
func (f *Follower) passGate(ctx context.Context, gs *v1alpha1.GatewaySync, in instruction) passage {
	disk := f.volume.commit()
	s := decide.Situation{Gateway: f.Gateway, Pod: f.Pod, Target: in.Commit, Rollout: in.rollout,
		Disk: disk, Whole: f.volume.holds("", disk), Unsynced: f.volume.unsynced()}
	if in.problem.Reason == v1alpha1.ReasonRefMoved {
		s.Moved = in.problem.Message
	}
	s.GatewaySync = f.spec.current(gs)
	d := decide.Gate(s)
	if d.Ask != "" && f.spec.refresh(ctx, d.Ask) {
		s.GatewaySync = f.spec.current(gs)
		d = decide.Gate(s)
	}
	p := passage{in: in, dry: d.Dry, rollback: d.Rollback}
	if d.To != nil {
		p.in.goTo(*d.To)
	}
	if d.Held != nil {
		p.held = &loop.Problem{Reason: d.Held.Reason, Message: d.Held.Message}
	}
	return p
}

// hold sets why the gateway stays as it is.
func (p *passage) hold(reason v1alpha1.Reason, message string) {
	p.held = &loop.Problem{Reason: reason, Message: message}
}

// goTo replaces the ref and the commit of an instruction.
func (in *instruction) goTo(o decide.Origin) { in.Ref, in.Name, in.Commit = o.Ref, o.Name, o.Commit }

// hasWindow reports whether this gateway has maintenance windows. An approval does not change the order of a gateway without.
func hasWindow(windows []v1alpha1.MaintenanceWindow, gateway, pod string) bool {
	own, _ := schedule.ParseWindows(windows, gateway, pod) // the sync reports windows that are not valid
	return len(own) > 0
}

// lapses reports whether a closed gate stops the order in force, because the order would bring a commit that the gateway does not have. A
// rollback, a restore and a first start go on.
func (f *Follower) lapses() bool {
	o := f.current.order
	return o != nil && !o.Commit.IsZero() && !o.RequestedRollback && !f.volume.unsynced() && f.volume.commit() != o.Commit && !f.Engine.Restores(o.Task)
}

// keep puts in force what a closed gate allows: to load and repair the commit on the disk, a restore, and a forced sync of that commit. held
// is why the gateway stays as it is; keep adds the error of a restore to its message.
func (f *Follower) keep(ctx context.Context, gs *v1alpha1.GatewaySync, in instruction, held *loop.Problem) {
	if f.volume.unsynced() {
		return
	}
	if f.current.order == nil || f.current.order.Commit.IsZero() || f.lapses() {
		f.takeKept(ctx, gs, in)
	}
	o := f.current.order
	if o == nil || o.Commit.IsZero() {
		return
	}
	next := *o
	if in.Restore != "" {
		next.Restore = in.Restore
	}
	restores := f.Engine.Restores(next.Task)
	if f.volume.commit() == o.Commit && !restores {
		next.Force = in.Force
	}
	// Programs of the gateway can remove the note about the restore before the sync reads it.
	next.RestoreOnly = restores && f.volume.commit() != o.Commit && !o.RequestedRollback
	if next.Restore != o.Restore || next.Force != o.Force || next.RestoreOnly != o.RestoreOnly {
		f.current.order = &next
	}
	if s := f.loop.State(); restores && s.Of == f.current.order && s.Report != nil && s.Report.Err != nil {
		held.Message += "; " + s.Report.Message
	}
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
	m.rollback, m.request = false, sync.Request{}
	task := sync.Task{Target: m.in.Target, Profile: m.profile, Facts: m.facts}
	withRestore := task
	if restore != "" {
		withRestore.Restore = restore
	}
	if f.Engine.Has(task) || f.Engine.Restores(withRestore) {
		f.take(gs, m)
	}
}
