package follow

import (
	"context"
	"fmt"
	"slices"
	"time"

	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/schedule"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
)

// A rollout reaches the gateways in steps. The SyncTarget says how many are open; each agent finds its own step in the spec:
//
//	its step is open                      sync the target
//	its step is closed                    leave: the order in force stays, with its commit and its spec
//	… and nothing was ever synced here    sync what last ran everywhere, or else the target: no gate holds a first start
//	none is open, and dryRunBefore is on  make a dry run of the target
//	its step is open, and the rollout
//	went back                             sync what last ran everywhere
//	its step is open, and the rollout
//	was aborted                           leave, unless the target is on the disk already
//	its stage needs an approval           sync the target only if the GatewaySync itself has the approval, whatever the SyncTarget says
//
// So a SyncTarget that another pod forged opens no stage that needs an approval, and no maintenance window. No gate holds a restore, and a forced sync verifies what the
// gateway keeps.

// gates is the rollout of a SyncTarget, parsed.
type gates struct {
	on, done, rollback, failed bool
	steps, open                int
	from                       origin
}

// origin is what last ran everywhere, as the SyncTarget says.
type origin struct {
	ref, name string
	commit    plan.ID
}

// readGates parses the rollout of a SyncTarget.
func readGates(r *v1alpha1.TargetRollout) (gates, error) {
	if r == nil {
		return gates{}, nil
	}
	if r.Open < 0 || r.Steps < 1 || r.Open > r.Steps {
		return gates{}, fmt.Errorf("%d of %d steps cannot be open", r.Open, r.Steps)
	}
	g := gates{on: true, done: r.Done, rollback: r.Back, failed: r.Failed != "", steps: int(r.Steps), open: int(r.Open)}
	f := r.From
	if f == nil {
		return g, nil
	}
	id, err := plan.ParseID(f.Commit)
	if err != nil {
		return gates{}, fmt.Errorf("from: %w", err)
	}
	// sequence: the two names of one ref
	for _, name := range []string{f.Ref, f.RefName} {
		if _, err := repo.ParseRef(name); name != "" && err != nil {
			return gates{}, fmt.Errorf("from: %w", err)
		}
	}
	g.from = origin{f.Ref, f.RefName, id}
	return g, nil
}

// passage is what a gate leaves of an instruction.
type passage struct {
	in       instruction
	dry      bool          // only a dry run
	rollback bool          // in goes back to what ran before
	held     *loop.Problem // why the gateway stays as it is; nil if it follows in
}

// gate decides whether this gateway may follow a target now.
func (f *Follower) gate(ctx context.Context, gs *v1alpha1.GatewaySync, in instruction) passage {
	p, g := passage{in: in}, in.gates
	if in.Commit.IsZero() || !gs.InSteps() {
		return p
	}
	order := schedule.OrderOf(gs)
	step, steps := order.StepOf(f.Gateway), len(order.Steps())
	if g.on && !g.done && g.steps != steps {
		p.hold(v1alpha1.ReasonWaitingForLead, "the SyncTarget counts %d steps, this agent %d: waiting for its lead", g.steps, steps)
		return p
	}
	open := !g.on || g.done || step <= g.open
	stage := order.Stage(step)
	approval := stage != nil && stage.RequireApproval
	switch {
	case f.unsynced():
		if (!open || g.failed) && f.bearsOut(ctx, g.from) {
			p.in.goTo(g.from)
		}
	case open && g.rollback:
		if p.rollback = f.bearsOut(ctx, g.from); p.rollback {
			p.in.goTo(g.from)
			break
		}
		p.hold(v1alpha1.ReasonWaitingForLead, "the rollout went back to a commit that the status does not know: the gateway stays as it is")
	case open && g.failed && !g.done && f.onDisk() != in.Commit:
		p.hold(v1alpha1.ReasonGateClosed, "the rollout of %s was aborted before this gateway got it", in.Commit.Short())
	case open && approval && !f.released(ctx, stage.Name, in.Commit):
		p.hold(v1alpha1.ReasonApprovalNeeded, "%s waits for an approval of stage %s: stoker.io/approved has no %s@%s", in.Commit.Short(), stage.Name, stage.Name, in.Commit)
	case open:
	case g.open == 0 && gs.DryRunBefore():
		p.dry = true
	case approval && g.open < steps && order.Stage(g.open+1) == stage && order.Opens(g.open+1) && !gs.Approved(stage.Name, in.Commit.String()):
		p.hold(v1alpha1.ReasonApprovalNeeded, "%s waits until stage %s is approved", in.Commit.Short(), stage.Name)
	default:
		p.hold(v1alpha1.ReasonGateClosed, "%s waits: %d of %d steps are open, and this gateway is in step %d", in.Commit.Short(), g.open, steps, step)
	}
	return p
}

func (p *passage) hold(reason v1alpha1.Reason, format string, args ...any) {
	p.held = &loop.Problem{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// goTo replaces the commit of an instruction.
func (in *instruction) goTo(o origin) { in.Ref, in.Name, in.Commit = o.ref, o.name, o.commit }

// onDisk returns the commit on the disk; zero if there is none.
func (f *Follower) onDisk() plan.ID {
	d, err := f.Engine.Open()
	if err != nil {
		return plan.ID{}
	}
	return d.Manifest().Header().Commit
}

// lapses reports whether the order in force waits to bring a commit that the gateway does not have, which a closed gate stops. What an
// operator or the rollout takes back goes on, with a commit or with a snapshot, and so does a first start.
func (f *Follower) lapses() bool {
	o := f.order
	return o != nil && !o.Commit.IsZero() && !o.RequestedRollback && !f.unsynced() && f.onDisk() != o.Commit && !f.Engine.Restores(o.Task)
}

// keep puts in force what a closed gate leaves to the gateway: the commit on the disk, which is loaded and repaired, a restore, and a forced
// sync of that commit. held is why the gateway stays as it is; it gets the outcome of a restore.
func (f *Follower) keep(ctx context.Context, gs *v1alpha1.GatewaySync, in instruction, held *loop.Problem) {
	if f.unsynced() {
		return
	}
	if f.order == nil || f.order.Commit.IsZero() || f.lapses() {
		f.takeKept(ctx, gs, in)
	}
	o := f.order
	if o == nil || o.Commit.IsZero() {
		return
	}
	next := *o
	if v1alpha1.RestoresOn(in.Restore, f.Gateway) != "" {
		next.Restore = in.Restore
	}
	restores := f.Engine.Restores(next.Task)
	if f.onDisk() == o.Commit && !restores {
		next.ForceID = in.ForceID
	}
	if next.Restore != o.Restore || next.ForceID != o.ForceID {
		f.order = &next
	}
	if s := f.loop.State(); restores && s.Of == f.order && s.Report != nil && s.Report.Err != nil {
		held.Message += "; " + s.Report.Message
	}
}

// takeKept makes an order of the commit on the disk, because the order that brought it was lost with the agent's process. If the spec has
// changed since, takeKept makes no order, because the gateway keeps its settings, too; only a restore needs no settings.
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
	asked := task
	if v1alpha1.RestoresOn(restore, f.Gateway) != "" {
		asked.Restore = restore
	}
	if f.Engine.Has(task) || f.Engine.Restores(asked) {
		f.take(gs, m)
	}
}

// unsynced reports whether no sync was ever completed on this volume.
func (f *Follower) unsynced() bool {
	d, err := f.Engine.Open()
	if err != nil {
		return failure.Is(err, v1alpha1.ReasonWaitingForGateway)
	}
	return d.Manifest().Header().Commit.IsZero()
}

// released reports whether a stage that needs approvals may take a commit: it was approved, or it is not new.
func (f *Follower) released(ctx context.Context, stage string, commit plan.ID) bool {
	return f.holds(commit) || f.consult(ctx, &f.consulted, stage+"@"+commit.String(), func(gs *v1alpha1.GatewaySync) bool {
		return gs.Approved(stage, commit.String()) || gs.Status.RanEverywhere(commit.String())
	})
}

// bearsOut reports whether the status says, as the SyncTarget does, that a commit ran everywhere.
func (f *Follower) bearsOut(ctx context.Context, o origin) bool {
	if o.commit.IsZero() {
		return false
	}
	return f.consult(ctx, &f.consulted, o.ref+"@"+o.commit.String(), func(gs *v1alpha1.GatewaySync) bool {
		is := func(c v1alpha1.CommitRecord) bool { return c.Ref == o.ref && c.Commit == o.commit.String() }
		return gs.Status.LastGood != nil && is(*gs.Status.LastGood) || slices.ContainsFunc(gs.Status.History, is)
	})
}

// passesWindow reports whether a commit was approved to be delivered although no maintenance window allows it. A gateway without windows of
// its own asks nothing, and needs no new order.
func (f *Follower) passesWindow(ctx context.Context, commit plan.ID, windows []v1alpha1.MaintenanceWindow) bool {
	own, _ := schedule.ParseWindows(windows, f.Gateway) // the sync reports windows that are not valid
	return len(own) > 0 && f.consult(ctx, &f.window, v1alpha1.WindowApproval+"@"+commit.String(), func(gs *v1alpha1.GatewaySync) bool {
		return gs.WindowApproved(commit.String())
	})
}

// consulted is what the GatewaySync was last asked, and the answer.
type consulted struct {
	what     string
	yes      bool
	failures int
	retry    time.Time
}

// consult asks the GatewaySync, and reads it again if the last one that was read says no. c remembers the answer.
func (f *Follower) consult(ctx context.Context, c *consulted, what string, yes func(*v1alpha1.GatewaySync) bool) bool {
	if yes(f.spec.gs) {
		return true
	}
	if c.what != what {
		*c = consulted{what: what}
	}
	if c.yes {
		return true
	}
	now := f.Now()
	if now.Before(c.retry) {
		f.spec.due = earliest(f.spec.due, c.retry)
		return false
	}
	get, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	gs, err := kube.GatewaySyncs(f.API, f.Namespace).Get(get, f.GatewaySync)
	if c.yes = err == nil && gs.UID == f.spec.gs.UID && yes(gs); c.yes {
		return true
	}
	c.failures++
	c.retry = now.Add(backoff.Retry(c.failures, maxGet))
	f.spec.due = earliest(f.spec.due, c.retry)
	if c.failures == 1 {
		f.Log.Warn("SyncTarget not followed", "missing", what, "error", err)
	}
	return false
}

// rehearsal is a dry run before a rollout, and the order that it interrupts.
type rehearsal struct {
	on     bool
	order  *loop.Order
	inputs inputs
}

// rehearse begins or ends a dry run. At its end the order from before it is in force again.
func (f *Follower) rehearse(on bool) {
	switch r := &f.rehearsal; {
	case on && !r.on:
		*r = rehearsal{true, f.order, f.inputs}
	case !on && r.on:
		f.order, f.inputs = r.order, r.inputs
		*r = rehearsal{}
	}
}

// returned reports that the rollout went back and that this gateway runs what ran before; nil if it does not yet. failed means that the sync
// back did not succeed so far.
func (f *Follower) returned(aborted plan.ID) (p *loop.Problem, failed bool) {
	s := f.loop.State()
	if f.order == nil || s.Of != f.order || s.Report == nil || s.Report.Err != nil || s.Report.Commit != f.order.Commit {
		return nil, f.order != nil && s.Of == f.order && s.Report != nil && s.Report.Err != nil
	}
	return &loop.Problem{Reason: v1alpha1.ReasonRolledBack, Message: fmt.Sprintf("the rollout of %s failed, and the gateway went back to %s", aborted.Short(), f.order.Commit.Short())}, false
}
