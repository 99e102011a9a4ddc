package follow

import (
	"context"
	"fmt"
	"slices"

	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/schedule"
)

// A rollout reaches the gateways in steps. The SyncTarget says how many steps are open. Each agent finds its own step in the spec, and then:
//
//	its step is open                      sync the target
//	its step is closed                    leave: the order in force stays, with its commit and its spec
//	… and nothing was ever synced here    sync what last ran everywhere, or else the target: no gate holds a first start
//	none is open, and dryRunBefore is on  make a dry run of the target, then leave
//	its step is open, and the rollout
//	went back                             sync what last ran everywhere
//	the rollout was aborted               leave, unless its step is open and the target is on the disk already
//	its stage needs an approval           sync the target only if the GatewaySync itself has the approval, whatever the SyncTarget says
//
// So a SyncTarget that another pod forged opens no stage that needs an approval, and no maintenance window. A closed gate does not hold a
// restore, and a forced sync verifies the commit on the disk.

// rolloutState is the parsed rollout of a SyncTarget: whether there is one, how it goes, how many of its steps are open, and what ran before.
type rolloutState struct {
	on, done, rollback, failed bool
	steps, open                int
	from                       origin
}

// origin is what last ran everywhere, as the SyncTarget says.
type origin struct {
	ref, name string
	commit    plan.ID
}

// parseRollout parses and validates the rollout of a SyncTarget.
func parseRollout(r *v1alpha1.TargetRollout) (rolloutState, error) {
	if r == nil {
		return rolloutState{}, nil
	}
	if r.Open < 0 || r.Steps < 1 || r.Open > r.Steps {
		return rolloutState{}, fmt.Errorf("%d of %d steps cannot be open", r.Open, r.Steps)
	}
	s := rolloutState{on: true, done: r.Done, rollback: r.Back, failed: r.Failed != "", steps: int(r.Steps), open: int(r.Open)}
	f := r.From
	if f == nil {
		return s, nil
	}
	id, err := plan.ParseID(f.Commit)
	if err != nil {
		return rolloutState{}, fmt.Errorf("from: %w", err)
	}
	// sequence: the two names of one ref
	for _, name := range []string{f.Ref, f.RefName} {
		if _, err := repo.ParseRef(name); name != "" && err != nil {
			return rolloutState{}, fmt.Errorf("from: %w", err)
		}
	}
	s.from = origin{f.Ref, f.RefName, id}
	return s, nil
}

// passage is the result of a gate: the instruction that this gateway may follow, if any.
type passage struct {
	in       instruction
	dry      bool          // only a dry run
	rollback bool          // in goes back to what ran before
	held     *loop.Problem // why the gateway stays as it is; nil if it follows in
}

// gate decides which targets a gateway may follow. It remembers what the GatewaySync has confirmed.
type gate struct {
	gateway string // name of the gateway
	pod     string // name of its pod
	volume  volume
	spec    *specReader
	rollout confirmation // of what a rollout last needed
}

// check decides whether this gateway may follow a target now.
func (g *gate) check(ctx context.Context, gs *v1alpha1.GatewaySync, in instruction) passage {
	p, r := passage{in: in}, in.rollout
	if in.problem.Reason == v1alpha1.ReasonRefMoved && !in.Commit.IsZero() && !g.volume.unsynced() && g.volume.commit() != in.Commit {
		p.hold(v1alpha1.ReasonRefMoved, "%s was not taken before its ref moved: %s", in.Commit.Short(), in.problem.Message)
		return p
	}
	if in.Commit.IsZero() || !gs.InSteps() {
		return p
	}
	if schedule.TooLarge(gs) && !g.volume.unsynced() { // a forged SyncTarget could open stages that need an approval
		p.hold(v1alpha1.ReasonProfilesInvalid, "spec.deployment has too many names and patterns: the gateway stays as it is")
		return p
	}
	order := schedule.OrderOf(gs)
	step, steps := order.StepOf(g.gateway, g.pod), len(order.Steps())
	if r.on && !r.done && r.steps != steps {
		p.hold(v1alpha1.ReasonWaitingForLead, "the SyncTarget has %d steps, but this agent counts %d: waiting for its lead", r.steps, steps)
		return p
	}
	open := !r.on || r.done || step <= r.open
	stage := order.Stage(step)
	approval := stage != nil && stage.RequireApproval
	switch {
	case g.volume.unsynced():
		if (!open || r.failed) && g.confirms(ctx, r.from) {
			p.in.goTo(r.from)
		}
	case open && r.rollback:
		if p.rollback = g.confirms(ctx, r.from); p.rollback {
			p.in.goTo(r.from)
			break
		}
		p.hold(v1alpha1.ReasonWaitingForLead, "the rollout went back to a commit that the status does not list: the gateway stays as it is")
	case r.failed && !r.done && g.volume.commit() != in.Commit:
		p.hold(v1alpha1.ReasonGateClosed, "the rollout of %s was aborted before this gateway got it", in.Commit.Short())
	case open && approval && !g.approved(ctx, stage.Name, in.Commit):
		p.hold(v1alpha1.ReasonApprovalNeeded, "%s waits for an approval of stage %s: stoker approve %s %s", in.Commit.Short(), stage.Name, gs.Name, stage.Name)
	case open:
	case r.open == 0 && gs.DryRunBefore():
		p.dry = true
	case approval && r.open < steps && order.Stage(r.open+1) == stage && order.Opens(r.open+1) && !annotation.Approved(gs, stage.Name, in.Commit.String()):
		p.hold(v1alpha1.ReasonApprovalNeeded, "%s waits until stage %s is approved: stoker approve %s %s", in.Commit.Short(), stage.Name, gs.Name, stage.Name)
	default:
		p.hold(v1alpha1.ReasonGateClosed, "%s waits: %d of %d steps are open, and this gateway is in step %d", in.Commit.Short(), r.open, steps, step)
	}
	return p
}

// hold sets why the gateway stays as it is.
func (p *passage) hold(reason v1alpha1.Reason, format string, args ...any) {
	p.held = &loop.Problem{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// goTo replaces the ref and the commit of an instruction.
func (in *instruction) goTo(o origin) { in.Ref, in.Name, in.Commit = o.ref, o.name, o.commit }

// approved reports whether a stage that needs approvals may get a commit: the commit was approved, ran everywhere before, or is on the disk.
func (g *gate) approved(ctx context.Context, stage string, commit plan.ID) bool {
	return g.volume.holds("", commit) || g.spec.confirm(ctx, &g.rollout, stage+"@"+commit.String(), func(gs *v1alpha1.GatewaySync) bool {
		return annotation.Approved(gs, stage, commit.String()) || gs.Status.RanEverywhere(commit.String())
	})
}

// confirms reports whether the status of the GatewaySync confirms that a commit ran everywhere.
func (g *gate) confirms(ctx context.Context, o origin) bool {
	if o.commit.IsZero() {
		return false
	}
	return g.spec.confirm(ctx, &g.rollout, o.ref+"@"+o.commit.String(), func(gs *v1alpha1.GatewaySync) bool {
		equal := func(c v1alpha1.CommitRecord) bool { return c.Ref == o.ref && c.Commit == o.commit.String() }
		return gs.Status.LastGood != nil && equal(*gs.Status.LastGood) || slices.ContainsFunc(gs.Status.History, equal)
	})
}

// hasWindow reports whether this gateway has maintenance windows. An approval does not change the order of a gateway without.
func (g *gate) hasWindow(windows []v1alpha1.MaintenanceWindow) bool {
	own, _ := schedule.ParseWindows(windows, g.gateway, g.pod) // the sync reports windows that are not valid
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
