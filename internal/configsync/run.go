package configsync

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/internal/configsync/plan"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
)

// Options choose what a run does.
type Options struct {
	// DryRun plans the run and changes nothing, not even the status.
	DryRun bool
	// PruneOnly deletes the objects that git no longer has, and applies nothing.
	PruneOnly bool
	// Confirm is the commit whose mass deletion the caller confirms. It has the same effect as the annotation stoker.io/confirm-deletion.
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

// Apply renders, plans, applies, waits and prunes, and writes the status. It changes no object unless the API server accepted in a dry run
// every object that differs from git. The exception is a commit with objects of a kind, or in a namespace, that the commit itself creates:
// Apply applies the kinds and namespaces first, and then dry-runs those objects. If Apply fails before it has a plan, the returned run is nil
// or has no Plan.
func (e *Engine) Apply(ctx context.Context, cs *v1alpha1.ConfigSync, o Options) (*Run, error) {
	if cs.Paused() {
		err := error(failure.New(v1alpha1.ReasonPaused, "ConfigSync %s is paused: remove spec.paused and the annotation %s", cs.Name, v1alpha1.AnnotationPaused))
		if !o.DryRun {
			err = errors.Join(err, e.Pause(ctx, cs))
		}
		return nil, err
	}
	clients, err := e.Connect()
	if err != nil && e.StatusClients == nil {
		return nil, err
	}
	var rendered *Rendered
	var r *Run
	if err == nil {
		rendered, r, err = e.renderAndPrepare(ctx, cs, o)
	}
	switch {
	case err == nil:
		return r, r.execute(ctx, o)
	case o.DryRun:
		return nil, err
	}
	r = e.newRun(cs, clients)
	r.rendered = rendered
	r.setOutcome(err)
	return r, r.report(ctx, err)
}

// renderAndPrepare returns a planned run. If it fails after the commit was opened, it also returns the commit.
func (e *Engine) renderAndPrepare(ctx context.Context, cs *v1alpha1.ConfigSync, o Options) (*Rendered, *Run, error) {
	rendered, err := e.Render(ctx, cs)
	if err != nil {
		return rendered, nil, err
	}
	if !o.DryRun && !o.PruneOnly {
		if err := e.checkDependencies(ctx, cs, rendered); err != nil {
			return rendered, nil, err
		}
	}
	r, err := e.Prepare(ctx, cs, rendered)
	return rendered, r, err
}

// Run is one run of a ConfigSync.
type Run struct {
	// Plan is nil if the run failed before it had one.
	Plan *plan.Plan

	record *record
	// wasReady is whether the ConfigSync was ready before the run.
	wasReady bool
	// lastReady is the condition Ready before the run, or nil.
	lastReady *metav1.Condition
	// wasDegraded is the condition Degraded before the run, or nil.
	wasDegraded *metav1.Condition
	rendered    *Rendered
	targets     *targets
	applier     *applier // nil without a plan
	wroteIntent bool
	pruneOnly   bool
}

// newRun returns a run that has not read anything yet.
func (e *Engine) newRun(cs *v1alpha1.ConfigSync, clients kube.Clients) *Run {
	conditions := cs.Status.Conditions
	return &Run{record: e.newRecord(cs, clients), wasReady: meta.IsStatusConditionTrue(conditions, v1alpha1.ConditionReady),
		lastReady:   meta.FindStatusCondition(conditions, v1alpha1.ConditionReady),
		wasDegraded: meta.FindStatusCondition(conditions, v1alpha1.ConditionDegraded), targets: &targets{owner: cs.Owner()}}
}

// Prepare plans a run: it reads the live objects and dry-runs those that differ from git. It changes nothing. Objects that the API server
// refuses are in the plan. Other failures, for example if the API server cannot be reached, are errors.
func (e *Engine) Prepare(ctx context.Context, cs *v1alpha1.ConfigSync, rendered *Rendered) (*Run, error) {
	clients, err := e.Connect()
	if err != nil {
		return nil, err
	}
	p, err := e.newPlanner(ctx, cs, clients)
	if err != nil {
		return nil, err
	}
	r := e.newRun(cs, clients)
	r.rendered = rendered
	if r.targets.objects, err = p.objects(rendered.Objects); err != nil {
		return nil, err
	}
	if err := forEach(ctx, r.targets.objects, p.planObject); err != nil {
		return nil, err
	}
	if r.targets.removals, err = p.removals(ctx, r.targets.objects); err != nil {
		return nil, err
	}
	r.setPlan(p, cs.Spec.Prune)
	return r, nil
}

// setPlan plans the targets that were read.
func (r *Run) setPlan(p *planner, prune v1alpha1.Prune) {
	r.Plan = p.plan(r.rendered, r.targets, prune)
	r.applier = &applier{targets: r.targets, client: p.client, planner: p, prunePolicy: prune}
}

// Commit returns the commit of the run, or "" if the run failed before it had opened one, for example because its signature is invalid.
func (r *Run) Commit() string {
	if r.rendered == nil {
		return ""
	}
	return r.rendered.Commit
}

// Pruned returns how many objects the run deleted, and how many it could not delete.
func (r *Run) Pruned() (deleted, failed int) {
	list, failed := r.targets.pruned()
	return len(list), failed
}

// Outcome returns the outcome of a run that is complete, as one sentence. After a run with Options.DryRun it is that of the run before.
func (r *Run) Outcome() string {
	if ready := meta.FindStatusCondition(r.record.cs.Status.Conditions, v1alpha1.ConditionReady); ready != nil && !r.pruneOnly {
		return ready.Message
	}
	return r.Plan.Summary()
}

// execute carries out the plan: it writes the intent, applies, waits for health and prunes, and writes the status. With o.DryRun it only
// checks the plan. With spec.apply.dryRun it checks the plan and writes the status. With PruneOnly, execute only prunes.
func (r *Run) execute(ctx context.Context, o Options) error {
	err := r.Plan.Problem(annotation.ConfirmsDeletion(o.Confirm, r.Plan.Commit) || annotation.ConfirmsDeletion(r.record.cs.Annotations[v1alpha1.AnnotationConfirmDeletion], r.Plan.Commit))
	switch {
	case o.DryRun:
		return err
	case err != nil:
		r.setOutcome(err)
		return r.requestRollback(ctx, r.report(ctx, err))
	case r.record.cs.Spec.Apply.DryRun:
		r.setOutcome(failure.New(v1alpha1.ReasonDryRun, "nothing was changed: %s", r.Plan.Summary()))
		return r.report(ctx, nil)
	}
	if o.PruneOnly {
		return r.executePrune(ctx)
	}
	if r.Plan.Changes() {
		switch err := r.writeIntent(ctx); {
		case failure.Is(err, v1alpha1.ReasonLimitExceeded): // nothing was written yet
			r.setOutcome(err)
			return r.report(ctx, err)
		case err != nil:
			return err
		}
	}
	err = r.applier.applyAll(ctx)
	if err == nil {
		err = r.prune(ctx, r.applier.pruneExceptData)
	}
	if err == nil && r.record.cs.Spec.Apply.Waits() {
		err = r.waitHealthy(ctx, o)
	}
	if err == nil {
		err = r.prune(ctx, r.applier.prune)
	}
	r.setOutcome(err)
	return r.requestRollback(ctx, r.report(ctx, err))
}

// prune prunes unless another run wrote the status meanwhile: what the plan deletes may be in the commit of that run.
func (r *Run) prune(ctx context.Context, prune func(context.Context) error) error {
	if r.Plan.Pruned() > 0 {
		if err := r.record.checkOvertaken(ctx); err != nil {
			return err
		}
	}
	return prune(ctx)
}

// executePrune prunes and applies nothing. A prune says nothing about the commit. So executePrune restores the status when the prune is
// complete, except for the inventory.
func (r *Run) executePrune(ctx context.Context) error {
	r.pruneOnly = true
	before := r.record.cs.Status.DeepCopy()
	if r.Plan.Pruned() > 0 {
		if err := r.writeIntent(ctx); err != nil {
			return err
		}
	}
	err := r.prune(ctx, r.applier.prune)
	r.record.inventoryOnly = true
	r.record.cs.Status = *before
	r.record.cs.Status.Inventory = r.targets.inventory(true)
	return r.report(ctx, err)
}

func (r *Run) waitHealthy(ctx context.Context, o Options) error {
	deadline, err := effective.ConfigProgressDeadline(&r.record.cs.Spec)
	if err != nil {
		return err
	}
	return r.applier.waitHealthy(ctx, r.Commit(), deadline, o)
}
