package follow

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/agent/audit"
	"stoker.io/stoker/agent/decide"
	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/api/v1alpha1/schedule"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
)

// instruction is a parsed and validated SyncTarget. Its requests are those of the GatewaySync: see specReader.
type instruction struct {
	sync.Target
	paused  bool
	hash    string    // of the requests of the GatewaySync that the target was made from
	owner   types.UID // the UID of the target's GatewaySync; "" if unknown
	problem problem
	rollout decide.Rollout
}

// problem is why the lead has no commit for a generation of the spec. It is zero unless an operator must act.
type problem struct {
	generation int64
	loop.Problem
}

// unresolved returns the problem of a generation of the spec, and whether there is one.
func (in *instruction) unresolved(generation int64) (loop.Problem, bool) {
	return in.problem.Problem, in.problem.Reason != "" && in.problem.generation == generation
}

// parse parses and validates a SyncTarget. The API server validates it, too, unless its validation rules were removed.
//
// The reason of the error is WaitingForLead if the lead must write the target again, and PodRestartNeeded if only a newer agent can follow
// it. Generation, paused and owner are set even with an error.
func parse(t *v1alpha1.SyncTarget) (instruction, error) {
	s := &t.Spec
	known := instruction{Target: sync.Target{Generation: s.Generation}, paused: s.Paused}
	for _, o := range t.OwnerReferences {
		if o.Kind == v1alpha1.KindGatewaySync {
			known.owner = o.UID
		}
	}
	if s.Format > v1alpha1.TargetFormat {
		return known, failure.New(v1alpha1.ReasonPodRestartNeeded,
			"the SyncTarget needs an agent of format %d, this one knows %d: restart the pod, so that it gets a newer agent", s.Format, v1alpha1.TargetFormat)
	}
	in := known
	in.hash = s.Requests
	in.Target = sync.Target{
		Ref: s.Ref, Name: s.RefName,
		Generation: s.Generation, Revision: max(s.Revision, 0), RequestedAt: s.RequestedAt, Term: s.Lead.Transitions,
	}
	bad := func(field string, err error) (instruction, error) {
		return known, failure.New(v1alpha1.ReasonWaitingForLead, "the SyncTarget cannot be followed: spec.%s: %w; the lead must write it again", field, err)
	}
	if s.Commit != "" {
		id, err := plan.ParseID(s.Commit)
		if err != nil {
			return bad("commit", err)
		}
		if in.Commit = id; s.Ref == "" {
			return bad("ref", errors.New("the commit has none"))
		}
	}
	for _, ref := range []struct{ field, value string }{{"ref", s.Ref}, {"refName", s.RefName}} {
		if ref.value == "" {
			continue
		}
		if _, err := repo.ParseRef(ref.value); err != nil {
			return bad(ref.field, err)
		}
	}
	if len(s.RequestedAt) > maxRequest {
		return bad("requestedAt", fmt.Errorf("longer than %d bytes", maxRequest))
	}
	var err error
	if in.rollout, err = parseRollout(s.Rollout); err != nil {
		return bad("rollout", err)
	}
	if p := s.Problem; p != nil {
		if c := p.Reason.Class(); c == v1alpha1.ClassStalled || c == v1alpha1.ClassHeld { // problems of other classes pass without an operator
			in.problem = problem{p.Generation, loop.Problem{Reason: p.Reason, Message: failure.Cut(p.Message, maxMessage)}}
		}
	}
	return in, nil
}

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
	// the two names of one ref
	for _, name := range []string{f.Ref, f.RefName} {
		if _, err := repo.ParseRef(name); name != "" && err != nil {
			return decide.Rollout{}, fmt.Errorf("from: %w", err)
		}
	}
	s.From = decide.Origin{Ref: f.Ref, Name: f.RefName, Commit: id}
	return s, nil
}

// apply replaces the ref and the commit of an instruction by those of a step. For a refill it drops the requests, which are about the target,
// except those to propose.
func (in *instruction) apply(n decide.Step) {
	if n.To == nil {
		return
	}
	in.Ref, in.Name, in.Commit = n.To.Ref, n.To.Name, n.To.Commit
	if n.Refill {
		in.Requests = annotation.Requests{Propose: in.Propose}
	}
}

// hasWindow reports whether this gateway has maintenance windows. An approval does not change the order of a gateway without.
func hasWindow(windows []v1alpha1.MaintenanceWindow, gateway, pod string) bool {
	own, _ := schedule.ParseWindows(windows, gateway, pod) // the sync reports windows that are not valid
	return len(own) > 0
}

// closedGate returns what the gateway has while a gate holds it with an order.
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
	c = f.closedGate(&next)
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
