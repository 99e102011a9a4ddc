package configsync

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/configsync/apply"
	"stoker.io/stoker/internal/configsync/plan"
	"stoker.io/stoker/internal/failure"
)

const (
	// pollInterval is the pause between two reads of objects that are not healthy. Waits for kinds and deletions read four times as often.
	pollInterval = time.Second
	// establishTimeout bounds the wait until the API server serves the kinds of the commit.
	establishTimeout = time.Minute
)

// applier carries out a plan in the cluster: it applies and deletes the targets, and waits for their health.
type applier struct {
	*targets
	client *apply.Client
	// planner plans the objects that are deferred until their kind or namespace exists.
	planner *planner
	// prunePolicy is the policy by which the plan was made.
	prunePolicy v1alpha1.Prune
}

// applyAll applies all objects, one kind after the other. After an error it begins no other object.
func (a *applier) applyAll(ctx context.Context) error {
	if err := a.applyPrerequisites(ctx); err != nil {
		return err
	}
	sameKind := func(x, y *object) bool { return x.want.ID().Type() == y.want.ID().Type() }
	for rest := a.objects; len(rest) > 0; {
		n := 1
		for n < len(rest) && sameKind(rest[0], rest[n]) {
			n++
		}
		if err := a.applyKind(ctx, rest[:n]); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

// applyKind applies the objects of one kind, several at a time. After an error it begins no other object.
func (a *applier) applyKind(ctx context.Context, objects []*object) error {
	var stop atomic.Bool
	var g errgroup.Group
	g.SetLimit(maxParallel)
	for _, x := range objects {
		g.Go(func() error {
			if stop.Load() {
				return nil
			}
			err := a.applyObject(ctx, x)
			if err != nil {
				stop.Store(true)
			}
			return err
		})
	}
	return g.Wait()
}

// applyPrerequisites applies the kinds and namespaces of the commit if objects are deferred until these exist, and then dry-runs the
// deferred objects. If the API server refuses one of them, the new kinds and namespaces stay.
func (a *applier) applyPrerequisites(ctx context.Context) error {
	var later []*object
	for _, x := range a.objects {
		if x.deferred {
			later = append(later, x)
		}
	}
	if len(later) == 0 {
		return nil
	}
	for _, x := range a.objects {
		if id := x.want.ID(); id.IsNamespace() || id.IsCRD() {
			if err := a.applyObject(ctx, x); err != nil {
				return err
			}
		}
	}
	if err := a.waitForKinds(ctx, later); err != nil {
		return err
	}
	for _, x := range later {
		x.deferred = false
	}
	if err := forEach(ctx, later, a.planner.planObject); err != nil {
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
func (a *applier) waitForKinds(ctx context.Context, later []*object) error {
	ctx, cancel := context.WithTimeout(ctx, establishTimeout)
	defer cancel()
	for {
		var missing string
		for _, x := range a.objects {
			if !x.want.ID().IsCRD() {
				continue
			}
			live, err := a.client.Get(ctx, x.want)
			if err != nil {
				return apply.Redact(x.want, err)
			}
			if live == nil || !apply.HealthOf(live).Healthy {
				missing = x.want.GetName()
			}
		}
		a.client.Refresh()
		for _, x := range later {
			if err := a.client.ResolveNamespace(x.want); failure.Is(err, v1alpha1.ReasonKindUnknown) {
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
func (a *applier) applyObject(ctx context.Context, x *object) error {
	if x.state != v1alpha1.ConfigPending {
		return nil
	}
	if !x.item.Writes() {
		x.state = v1alpha1.ConfigUnchanged
		return nil
	}
	if x.item.Action == plan.Recreate {
		if err := a.deleteAndWait(ctx, x); err != nil {
			x.state = v1alpha1.ConfigFailed
			return err
		}
	}
	live, err := a.takeOverAndApply(ctx, x)
	if err != nil {
		x.state = v1alpha1.ConfigFailed
		if !apply.IsRefusal(err) {
			return apply.Redact(x.want, err)
		}
		x.fault = a.client.Explain(ctx, x.want, x.live, err)
		return failure.New(x.fault.Reason, "%s: %w", x.want.ID(), x.fault)
	}
	x.live = live
	x.state = map[plan.Action]v1alpha1.ConfigTargetState{
		plan.Create: v1alpha1.ConfigCreated, plan.Configure: v1alpha1.ConfigConfigured, plan.Repair: v1alpha1.ConfigRepaired,
		plan.Recreate: v1alpha1.ConfigCreated,
	}[x.item.Action]
	return nil
}

// takeOverAndApply applies an object. If the object changed or was deleted since it was planned, takeOverAndApply tries again. If another
// object has its name now, it fails.
func (a *applier) takeOverAndApply(ctx context.Context, x *object) (*unstructured.Unstructured, error) {
	for conflicts := 0; ; conflicts++ {
		done, err := a.tryApply(ctx, x)
		if !apierrors.IsConflict(err) && !apierrors.IsInvalid(err) {
			return done, err
		}
		live, getErr := a.client.Get(ctx, x.want)
		switch {
		case getErr != nil:
			return nil, getErr
		case live != nil && (x.live == nil || live.GetUID() != x.live.GetUID()):
			return nil, errReplaced()
		case conflicts == maxConflicts || apierrors.IsInvalid(err):
			return nil, err
		}
		x.live = live
	}
}

// tryApply takes the fields of kubectl over, so that the apply removes what git lacks, and applies the object.
func (a *applier) tryApply(ctx context.Context, x *object) (*unstructured.Unstructured, error) {
	if x.live != nil && x.dry != nil {
		patch, err := plan.TakeOver(x.live, x.dry, x.extras)
		if err == nil && patch != nil {
			_, err = a.client.Patch(ctx, x.live, patch)
		}
		if err != nil {
			return nil, err
		}
	}
	return a.client.Apply(ctx, x.want, x.live)
}

// prune deletes the objects that the plan prunes. If one cannot be deleted, prune still deletes the others.
func (a *applier) prune(ctx context.Context) error {
	return a.deleteRemovals(ctx, a.removals)
}

// pruneExceptData is prune without ConfigMaps and Secrets. Until all objects are healthy, a pod that is not replaced yet may restart
// and read them.
func (a *applier) pruneExceptData(ctx context.Context) error {
	return a.deleteRemovals(ctx, slices.DeleteFunc(slices.Clone(a.removals), func(x *removal) bool { return x.IsData() }))
}

// deleteRemovals deletes those of the removals that the plan prunes.
func (a *applier) deleteRemovals(ctx context.Context, removals []*removal) error {
	var failures []string
	for _, x := range removals {
		if x.fault != nil {
			failures = append(failures, x.ID.String()+": "+x.fault.Error())
		}
		if x.done || x.fault != nil || x.item.Action != plan.Prune {
			continue
		}
		err := a.deleteRemoval(ctx, x)
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
			return apply.RedactRemoval(x.ID, err)
		}
		failures = append(failures, x.ID.String()+": "+x.fault.Error())
	}
	if len(failures) > 0 {
		return failure.New(v1alpha1.ReasonPruneFailed, "%d objects that git no longer has could not be deleted: %s", len(failures), strings.Join(failures[:min(len(failures), maxNamed)], "; "))
	}
	return nil
}

// deleteRemoval deletes an object. If the object changed since the run read it, for example because a controller wrote its status,
// deleteRemoval reads it again and deletes it only if it has the same owner, and the rules of pruning still say so.
func (a *applier) deleteRemoval(ctx context.Context, x *removal) error {
	err := a.client.Delete(ctx, x.live)
	if !apierrors.IsConflict(err) {
		return err
	}
	live, getErr := a.client.GetEntry(ctx, x.Entry)
	if getErr != nil || live == nil {
		return getErr
	}
	if item, _ := plan.DecideRemoval(x.Entry, live, a.owner, x.taken, a.prunePolicy); item.Action != plan.Prune || changedOwner(x.live, live) {
		return err
	}
	x.live = live
	return a.client.Delete(ctx, live)
}

// waitHealthy waits until all objects are healthy, at most for the deadline or the HealthTimeout of o. If o.Waiting is about the same commit,
// the deadline counts from there, and otherwise from now.
func (a *applier) waitHealthy(ctx context.Context, commit string, deadline time.Duration, o Options) error {
	began := time.Now()
	end := began.Add(deadline)
	if o.Waiting.Commit == commit {
		end = o.Waiting.Since.Add(deadline)
	}
	waiting := a.objects
	for {
		var example string
		var failed bool
		waiting, example, failed = unhealthy(waiting)
		switch {
		case len(waiting) == 0:
			return nil
		case failed:
			return failure.New(v1alpha1.ReasonUnhealthy, "applied, and %d of %d objects are not healthy: %s", len(waiting), len(a.objects), example)
		case time.Now().After(end):
			return failure.New(v1alpha1.ReasonProgressDeadlineExceeded, "applied, and %d of %d objects are not healthy after %s: %s", len(waiting), len(a.objects), deadline, example)
		case o.HealthTimeout > 0 && time.Since(began) >= o.HealthTimeout:
			return failure.New(v1alpha1.ReasonProgressing, "applied, and waiting for %d of %d objects to become healthy: %s", len(waiting), len(a.objects), example)
		case !backoff.Wait(ctx, pollInterval):
			return context.Cause(ctx)
		}
		if err := forEach(ctx, waiting, func(ctx context.Context, x *object) error {
			live, err := a.client.Get(ctx, x.want)
			if err != nil {
				return apply.Redact(x.want, err)
			}
			if live == nil {
				return failure.New(v1alpha1.ReasonProgressing, "%s was deleted in the meantime", x.want.ID())
			}
			x.live = live
			return nil
		}); err != nil {
			return err
		}
	}
}

// unhealthy returns the objects that are not healthy, and describes one of them. If one has failed, waiting does not help: failed is
// true, and example describes the first that has failed.
func unhealthy(objects []*object) (list []*object, example string, failed bool) {
	for _, x := range objects {
		h := x.health()
		if h.Healthy {
			continue
		}
		list = append(list, x)
		if !failed {
			example, failed = fmt.Sprintf("%s: %s", x.want.ID(), h.Message), h.Failed
		}
	}
	return list, example, failed
}
