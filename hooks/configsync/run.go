package configsync

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/configsync/apply"
	"stoker.io/stoker/hooks/configsync/plan"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
)

const (
	// lookAgain is the pause between two looks at objects that are not healthy.
	lookAgain = time.Second
	// maxEstablish bounds the wait for kinds that the commit brings.
	maxEstablish = time.Minute
	// maxReport bounds the last write of a run that is interrupted.
	maxReport = 15 * time.Second
)

// Options choose what a run does.
type Options struct {
	// DryRun reports the plan, and changes nothing.
	DryRun bool
	// PruneOnly deletes what git no longer has, and applies nothing.
	PruneOnly bool
	// Confirm is a commit whose mass deletion the caller confirms, as the annotation does.
	Confirm string
	// Patience bounds how long the run itself waits for healthy objects; 0 means until spec.progressDeadline. A run that ends before
	// the deadline fails with the reason Progressing, and the next one goes on.
	Patience time.Duration
	// Waiting says when the first of several such runs began to wait.
	Waiting Waiting
}

// Waiting is since when the objects of a commit are not healthy.
type Waiting struct {
	Commit string
	Since  time.Time
}

// Apply renders, plans, applies, prunes and waits, and writes the status. The run that it returns has no plan if it did not come to one.
// Nothing is changed unless the API server accepted every object in a dry run.
func (e *Engine) Apply(ctx context.Context, cs *v1alpha1.ConfigSync, o Options) (*Run, error) {
	if cs.Paused() {
		return nil, failure.New(v1alpha1.ReasonPaused, "ConfigSync %s is paused: remove spec.paused and the annotation %s", cs.Name, v1alpha1.AnnotationPaused)
	}
	clients, err := e.Connect()
	if err != nil && e.Own == nil {
		return nil, err
	}
	var rendered *Rendered
	var r *Run
	if err == nil {
		rendered, err = e.Render(ctx, cs)
	}
	if err == nil && !o.DryRun && !o.PruneOnly {
		err = e.checkDependencies(ctx, cs, rendered)
	}
	if err == nil {
		r, err = e.Prepare(ctx, cs, rendered)
	}
	if err != nil && o.DryRun {
		return nil, err
	}
	if err != nil { // the run came to no plan
		r = e.begin(cs, clients)
		r.rendered = rendered
		r.outcome(err)
		return r, r.report(ctx, err)
	}
	return r, r.carryOut(ctx, o)
}

// begin returns a run that has read nothing yet.
func (e *Engine) begin(cs *v1alpha1.ConfigSync, clients kube.Clients) *Run {
	r := &Run{cs: cs.DeepCopy(), known: cs.Status.Inventory, own: clients, wasReady: meta.IsStatusConditionTrue(cs.Status.Conditions, v1alpha1.ConditionReady)}
	if e.Own != nil {
		r.own, r.shared = *e.Own, true
	}
	return r
}

// Commit returns the commit of the run, or "" if it came to none.
func (r *Run) Commit() string {
	if r.rendered == nil {
		return ""
	}
	return r.rendered.Commit
}

// Pruned returns how many objects the run deleted, and how many it could not delete.
func (r *Run) Pruned() (deleted, failed int) {
	for _, x := range r.removals {
		switch {
		case x.item.Action != plan.Prune:
		case x.fault != nil:
			failed++
		case x.done && x.live != nil:
			deleted++
		}
	}
	return deleted, failed
}

// Said returns the outcome of the run as one sentence.
func (r *Run) Said() string {
	if ready := meta.FindStatusCondition(r.cs.Status.Conditions, v1alpha1.ConditionReady); ready != nil && !r.pruneOnly {
		return ready.Message
	}
	return r.Plan.Summary()
}

func (r *Run) carryOut(ctx context.Context, o Options) error {
	err := r.Plan.Problem(v1alpha1.ConfirmsDeletion(o.Confirm, r.Plan.Commit) || r.cs.ConfirmsDeletion(r.Plan.Commit))
	switch {
	case o.DryRun:
		return err
	case err != nil:
		r.outcome(err)
		return r.report(ctx, err)
	case r.cs.Spec.Apply.DryRun:
		r.outcome(failure.New(v1alpha1.ReasonDryRun, "nothing was changed: %s", r.Plan.Summary()))
		return r.report(ctx, nil)
	}
	before := slices.Clone(r.cs.Status.Conditions)
	if o.PruneOnly && r.Plan.Pruned() > 0 || !o.PruneOnly && r.Plan.Changes() {
		if err := r.intend(ctx); err != nil {
			return err
		}
	}
	if r.pruneOnly = o.PruneOnly; r.pruneOnly {
		err := r.prune(ctx, true)
		r.cs.Status.Inventory, r.cs.Status.Conditions = r.inventory(true), before
		return r.report(ctx, err)
	}
	err = r.change(ctx)
	if err == nil && r.cs.Spec.Apply.Waits() {
		err = r.wait(ctx, o)
	}
	if err == nil {
		err = r.prune(ctx, true)
	}
	r.outcome(err)
	return r.rollback(ctx, r.report(ctx, err))
}

// change applies and prunes, but for what pods may still read.
func (r *Run) change(ctx context.Context) error {
	if err := r.applyFirst(ctx); err != nil {
		return err
	}
	for _, x := range r.objects {
		if err := r.apply(ctx, x); err != nil {
			return err
		}
	}
	return r.prune(ctx, false)
}

// applyFirst applies the kinds and the namespaces that other objects of the commit need, and then dry-runs those. If the API server
// refuses one, the kinds and namespaces stay.
func (r *Run) applyFirst(ctx context.Context) error {
	var later []*object
	for _, x := range r.objects {
		if x.later {
			later = append(later, x)
		}
	}
	if len(later) == 0 {
		return nil
	}
	for _, x := range r.objects {
		if id := x.want.ID(); id.IsNamespace() || id.IsDefinition() {
			if err := r.apply(ctx, x); err != nil {
				return err
			}
		}
	}
	if err := r.establish(ctx, later); err != nil {
		return err
	}
	for _, x := range later {
		x.later = false
	}
	if err := r.each(ctx, later, r.look); err != nil {
		return err
	}
	for _, x := range later {
		if x.fault != nil {
			x.state = v1alpha1.ConfigFailed
			return failure.New(x.fault.Reason, "only kinds and namespaces were applied: %s: %w", x.want.ID(), x.fault)
		}
		if x.item.Action == plan.Hold {
			x.state = v1alpha1.ConfigHeld
			return failure.New(x.item.Reason, "only kinds and namespaces were applied: %s: %s", x.want.ID(), x.item.Message)
		}
	}
	return nil
}

// establish waits until the API server serves the kinds of the commit, and lists those of later. It lists a kind a moment after it
// serves it.
func (r *Run) establish(ctx context.Context, later []*object) error {
	ctx, cancel := context.WithTimeout(ctx, maxEstablish)
	defer cancel()
	for {
		var waits string
		for _, x := range r.objects {
			if !x.want.ID().IsDefinition() {
				continue
			}
			live, err := r.client.Get(ctx, x.want)
			if err != nil {
				return err
			}
			if live == nil || !apply.HealthOf(live).Healthy {
				waits = x.want.GetName()
			}
		}
		r.client.Refresh()
		for _, x := range later {
			if err := r.client.Place(x.want); failure.Is(err, v1alpha1.ReasonKindUnknown) {
				waits = x.want.ID().Type()
			} else if err != nil {
				return fmt.Errorf("ask the API server for its kinds: %w", err)
			}
		}
		if waits == "" {
			return nil
		}
		if !backoff.Wait(ctx, lookAgain/4) {
			return failure.New(v1alpha1.ReasonKindUnknown, "only kinds and namespaces were applied: the API server does not serve %s within %s", waits, maxEstablish)
		}
	}
}

// apply applies one object, if the plan says so and it was not done before.
func (r *Run) apply(ctx context.Context, x *object) error {
	if x.state != v1alpha1.ConfigPending {
		return nil
	}
	if !x.item.Writes() {
		x.state = v1alpha1.ConfigUnchanged
		return nil
	}
	if x.item.Action == plan.Recreate {
		if err := r.deleteAndWait(ctx, x); err != nil {
			x.state = v1alpha1.ConfigFailed
			return err
		}
	}
	live, err := r.client.Apply(ctx, x.want)
	if err != nil {
		x.state = v1alpha1.ConfigFailed
		if !apply.IsRefusal(err) {
			return apply.Quiet(x.want, err)
		}
		x.fault = r.client.Explain(ctx, x.want, x.live != nil, err)
		return failure.New(x.fault.Reason, "%s: %w", x.want.ID(), x.fault)
	}
	x.live = live
	x.state = map[plan.Action]v1alpha1.ConfigTargetState{
		plan.Create: v1alpha1.ConfigCreated, plan.Configure: v1alpha1.ConfigConfigured, plan.Repair: v1alpha1.ConfigRepaired,
		plan.Recreate: v1alpha1.ConfigCreated,
	}[x.item.Action]
	return nil
}

// prune deletes what the plan says. One object that stays does not keep others. ConfigMaps and Secrets go only if data is true, when all
// other objects are healthy: a pod that is not replaced yet still reads them when it restarts.
func (r *Run) prune(ctx context.Context, data bool) error {
	var failed []string
	for _, x := range r.removals {
		if x.IsData() && !data {
			continue
		}
		if x.fault != nil {
			failed = append(failed, x.ID.String()+": "+x.fault.Error())
		}
		if x.done || x.fault != nil || x.item.Action != plan.Prune {
			continue
		}
		err := r.remove(ctx, x)
		switch {
		case err == nil:
			x.done = true
			continue
		case apierrors.IsConflict(err):
			x.fault = failure.New(v1alpha1.ReasonPruneFailed, "it was changed in the meantime: run the command again")
		case apierrors.IsForbidden(err):
			x.forbidden = true
			x.fault = failure.New(v1alpha1.ReasonPruneFailed, "the API server forbids it: grant the caller the verb delete")
		case apply.IsRefusal(err):
			x.fault = failure.New(v1alpha1.ReasonPruneFailed, "the API server refuses it (%s)", apierrors.ReasonForError(err))
		default:
			return fmt.Errorf("%s: %w", x.ID, err)
		}
		failed = append(failed, x.ID.String()+": "+x.fault.Error())
	}
	if len(failed) > 0 {
		return failure.New(v1alpha1.ReasonPruneFailed, "%d objects that git no longer has could not be deleted: %s", len(failed), strings.Join(failed[:min(len(failed), 5)], "; "))
	}
	return nil
}

// remove deletes an object. If it was written since the run read it, as a controller writes a status, the object is judged again.
func (r *Run) remove(ctx context.Context, x *removal) error {
	err := r.client.Delete(ctx, x.live)
	if !apierrors.IsConflict(err) {
		return err
	}
	live, failed := r.client.GetEntry(ctx, x.Entry)
	if failed != nil || live == nil {
		return failed
	}
	if item, _ := plan.Remove(x.Entry, live, r.cs.Owner(), r.prunes); item.Action != plan.Prune {
		return err
	}
	x.live = live
	return r.client.Delete(ctx, live)
}

// wait waits until all objects are healthy, at most for spec.progressDeadline or for the patience of the caller.
func (r *Run) wait(ctx context.Context, o Options) error {
	deadline, err := r.cs.Spec.Deadline()
	if err != nil {
		return err
	}
	began := time.Now()
	end := began.Add(deadline)
	if o.Waiting.Commit == r.Commit() {
		end = o.Waiting.Since.Add(deadline)
	}
	waiting := slices.Clone(r.objects)
	for {
		var worst string
		failed := false
		waiting = slices.DeleteFunc(waiting, func(x *object) bool {
			h := x.health()
			if !h.Healthy {
				worst, failed = fmt.Sprintf("%s: %s", x.want.ID(), h.Message), failed || h.Failed
			}
			return h.Healthy
		})
		switch {
		case len(waiting) == 0:
			return nil
		case failed:
			return failure.New(v1alpha1.ReasonUnhealthy, "applied, and %d of %d objects are not healthy: %s", len(waiting), len(r.objects), worst)
		case time.Now().After(end):
			return failure.New(v1alpha1.ReasonProgressDeadlineExceeded, "applied, and %d of %d objects are not healthy after %s: %s", len(waiting), len(r.objects), deadline, worst)
		case o.Patience > 0 && time.Since(began) >= o.Patience:
			return failure.New(v1alpha1.ReasonProgressing, "applied, and waiting for %d of %d objects to become healthy: %s", len(waiting), len(r.objects), worst)
		case !backoff.Wait(ctx, lookAgain):
			return context.Cause(ctx)
		}
		if err := r.each(ctx, waiting, func(ctx context.Context, x *object) error {
			live, err := r.client.Get(ctx, x.want)
			if err == nil && live == nil {
				err = failure.New(v1alpha1.ReasonProgressing, "%s was deleted in the meantime", x.want.ID())
			}
			if live != nil {
				x.live = live
			}
			return err
		}); err != nil {
			return err
		}
	}
}
