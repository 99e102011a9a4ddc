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
	// pollInterval is the pause between two reads of objects that are not healthy.
	pollInterval = time.Second
	// establishTimeout bounds the wait until the API server serves the kinds of the commit.
	establishTimeout = time.Minute
	// reportTimeout bounds the last writes of a run, which are made even if the run is interrupted.
	reportTimeout = 15 * time.Second
)

// Options choose what a run does.
type Options struct {
	// DryRun plans the run and changes nothing, not even the status.
	DryRun bool
	// PruneOnly deletes the objects that git no longer has, and applies nothing.
	PruneOnly bool
	// Confirm is the commit whose mass deletion the caller confirms. It has the same effect as the annotation.
	Confirm string
	// HealthTimeout bounds how long this run waits for healthy objects; 0 means until spec.progressDeadline. A run that ends before
	// the deadline fails with the reason Progressing, and the next run continues to wait.
	HealthTimeout time.Duration
	// Waiting says when the first of several such runs began to wait, so that they share one deadline.
	Waiting Waiting
}

// Waiting is the commit whose objects are not healthy yet, and the start of the first run that waited for them.
type Waiting struct {
	Commit string
	Since  time.Time
}

// Apply renders, plans, applies, prunes and waits, and writes the status. It changes no object unless the API server accepted every
// object in a dry run. If Apply fails before it has a plan, Plan of the returned run is nil, or the run itself is.
func (e *Engine) Apply(ctx context.Context, cs *v1alpha1.ConfigSync, o Options) (*Run, error) {
	if cs.Paused() {
		return nil, failure.New(v1alpha1.ReasonPaused, "ConfigSync %s is paused: remove spec.paused and the annotation %s", cs.Name, v1alpha1.AnnotationPaused)
	}
	clients, err := e.Connect()
	if err != nil && e.StatusClients == nil {
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
	if err != nil {
		r = e.newRun(cs, clients)
		r.rendered = rendered
		r.setOutcome(err)
		return r, r.report(ctx, err)
	}
	return r, r.execute(ctx, o)
}

// newRun returns a run that has not read anything yet.
func (e *Engine) newRun(cs *v1alpha1.ConfigSync, clients kube.Clients) *Run {
	r := &Run{cs: cs.DeepCopy(), lastInventory: cs.Status.Inventory, statusClients: clients, wasReady: meta.IsStatusConditionTrue(cs.Status.Conditions, v1alpha1.ConditionReady)}
	if e.StatusClients != nil {
		r.statusClients, r.replicated = *e.StatusClients, true
	}
	return r
}

// Commit returns the commit of the run, or "" if the run failed before it resolved one.
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

// Outcome returns the outcome of the run as one sentence.
func (r *Run) Outcome() string {
	if ready := meta.FindStatusCondition(r.cs.Status.Conditions, v1alpha1.ConditionReady); ready != nil && !r.pruneOnly {
		return ready.Message
	}
	return r.Plan.Summary()
}

func (r *Run) execute(ctx context.Context, o Options) error {
	err := r.Plan.Problem(v1alpha1.ConfirmsDeletion(o.Confirm, r.Plan.Commit) || r.cs.ConfirmsDeletion(r.Plan.Commit))
	switch {
	case o.DryRun:
		return err
	case err != nil:
		r.setOutcome(err)
		return r.report(ctx, err)
	case r.cs.Spec.Apply.DryRun:
		r.setOutcome(failure.New(v1alpha1.ReasonDryRun, "nothing was changed: %s", r.Plan.Summary()))
		return r.report(ctx, nil)
	}
	before := slices.Clone(r.cs.Status.Conditions)
	if o.PruneOnly && r.Plan.Pruned() > 0 || !o.PruneOnly && r.Plan.Changes() {
		if err := r.writeIntent(ctx); err != nil {
			return err
		}
	}
	if r.pruneOnly = o.PruneOnly; r.pruneOnly {
		err := r.prune(ctx, true)
		r.cs.Status.Inventory, r.cs.Status.Conditions = r.inventory(true), before
		return r.report(ctx, err)
	}
	err = r.applyAll(ctx)
	if err == nil && r.cs.Spec.Apply.Waits() {
		err = r.waitHealthy(ctx, o)
	}
	if err == nil {
		err = r.prune(ctx, true)
	}
	r.setOutcome(err)
	return r.requestRollback(ctx, r.report(ctx, err))
}

// applyAll applies all objects, and prunes all but ConfigMaps and Secrets.
func (r *Run) applyAll(ctx context.Context) error {
	if err := r.applyPrerequisites(ctx); err != nil {
		return err
	}
	for _, x := range r.objects {
		if err := r.applyObject(ctx, x); err != nil {
			return err
		}
	}
	return r.prune(ctx, false)
}

// applyPrerequisites applies the kinds and namespaces that deferred objects need, and then dry-runs the deferred objects. If the API
// server refuses one of them, the new kinds and namespaces stay.
func (r *Run) applyPrerequisites(ctx context.Context) error {
	var later []*object
	for _, x := range r.objects {
		if x.deferred {
			later = append(later, x)
		}
	}
	if len(later) == 0 {
		return nil
	}
	for _, x := range r.objects {
		if id := x.want.ID(); id.IsNamespace() || id.IsDefinition() {
			if err := r.applyObject(ctx, x); err != nil {
				return err
			}
		}
	}
	if err := r.waitForKinds(ctx, later); err != nil {
		return err
	}
	for _, x := range later {
		x.deferred = false
	}
	if err := r.forEach(ctx, later, r.planObject); err != nil {
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

// waitForKinds waits until the CustomResourceDefinitions of the commit are established and discovery lists the kinds of the deferred
// objects. Discovery lists a kind a moment after the API server serves it.
func (r *Run) waitForKinds(ctx context.Context, later []*object) error {
	ctx, cancel := context.WithTimeout(ctx, establishTimeout)
	defer cancel()
	for {
		var missing string
		for _, x := range r.objects {
			if !x.want.ID().IsDefinition() {
				continue
			}
			live, err := r.client.Get(ctx, x.want)
			if err != nil {
				return err
			}
			if live == nil || !apply.HealthOf(live).Healthy {
				missing = x.want.GetName()
			}
		}
		r.client.Refresh()
		for _, x := range later {
			if err := r.client.ResolveNamespace(x.want); failure.Is(err, v1alpha1.ReasonKindUnknown) {
				missing = x.want.ID().Type()
			} else if err != nil {
				return fmt.Errorf("ask the API server for its kinds: %w", err)
			}
		}
		if missing == "" {
			return nil
		}
		if !backoff.Wait(ctx, pollInterval/4) {
			return failure.New(v1alpha1.ReasonKindUnknown, "only kinds and namespaces were applied: the API server does not serve %s within %s", missing, establishTimeout)
		}
	}
}

// applyObject applies one object if the plan says so and this run has not applied it yet.
func (r *Run) applyObject(ctx context.Context, x *object) error {
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
			return apply.Redact(x.want, err)
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

// prune deletes the objects that the plan says. If one cannot be deleted, prune still deletes the others. It deletes ConfigMaps and Secrets
// only if data is true: the caller sets it when all objects are healthy, because a pod that is not replaced yet reads them when it restarts.
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
		err := r.deleteRemoval(ctx, x)
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

// deleteRemoval deletes an object. If the object changed since the run read it, for example because a controller wrote its status,
// deleteRemoval reads it again and deletes it only if the rules of pruning still say so.
func (r *Run) deleteRemoval(ctx context.Context, x *removal) error {
	err := r.client.Delete(ctx, x.live)
	if !apierrors.IsConflict(err) {
		return err
	}
	live, failed := r.client.GetEntry(ctx, x.Entry)
	if failed != nil || live == nil {
		return failed
	}
	if item, _ := plan.DecideRemoval(x.Entry, live, r.cs.Owner(), r.prunePolicy); item.Action != plan.Prune {
		return err
	}
	x.live = live
	return r.client.Delete(ctx, live)
}

// waitHealthy waits until all objects are healthy, at most for spec.progressDeadline or the HealthTimeout of o.
func (r *Run) waitHealthy(ctx context.Context, o Options) error {
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
		case o.HealthTimeout > 0 && time.Since(began) >= o.HealthTimeout:
			return failure.New(v1alpha1.ReasonProgressing, "applied, and waiting for %d of %d objects to become healthy: %s", len(waiting), len(r.objects), worst)
		case !backoff.Wait(ctx, pollInterval):
			return context.Cause(ctx)
		}
		if err := r.forEach(ctx, waiting, func(ctx context.Context, x *object) error {
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
