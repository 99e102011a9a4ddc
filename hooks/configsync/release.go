package configsync

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/configsync/manifest"
	"stoker.io/stoker/internal/failure"
)

// Left is what stays of the objects of a ConfigSync that is deleted.
type Left struct {
	// Objects are those that are not deleted: kinds that are never pruned, objects with stoker.io/prune: disabled, and those that could
	// not be deleted.
	Objects []string
	// Forbidden means that no deletion failed but for a lack of rights.
	Forbidden bool
}

// Remove deletes the objects of a ConfigSync that is deleted, by the rules of pruning but for spec.prune and the confirmation of mass
// deletions: the deletion of the ConfigSync is the confirmation. If it fails, the status says why.
func (e *Engine) Remove(ctx context.Context, cs *v1alpha1.ConfigSync) (Left, error) {
	r, err := e.start(cs)
	if err != nil {
		r = e.begin(cs, *e.Own)
		r.outcome(err)
		return Left{Objects: inventoried(cs), Forbidden: failure.Is(err, v1alpha1.ReasonApplyForbidden)}, r.report(ctx, err)
	}
	r.rendered = &Rendered{Ref: cs.Status.SourceRef, Commit: cs.Status.SourceRevision, Path: cs.Status.SourcePath}
	if err = r.lookAtInventory(ctx); err == nil {
		r.write(v1alpha1.PruneOwned)
		err = r.prune(ctx, true)
	}
	left := Left{Forbidden: failure.Is(err, v1alpha1.ReasonPruneFailed)}
	for _, x := range r.removals {
		if !x.done && (x.live == nil || x.live.GetDeletionTimestamp() == nil) {
			left.Objects = append(left.Objects, x.ID.String())
		}
		if x.fault != nil && !x.forbidden {
			left.Forbidden = false
		}
	}
	if err != nil {
		r.cs.Status.Inventory = r.inventory(true)
		r.outcome(err)
		return left, r.report(ctx, err)
	}
	return left, nil
}

// inventoried returns the objects of the inventory.
func inventoried(cs *v1alpha1.ConfigSync) (list []string) {
	for _, line := range cs.Status.Inventory {
		if e, ok := manifest.ParseEntry(line); ok {
			list = append(list, e.ID.String())
		}
	}
	return list
}

// Release sends the Event of a ConfigSync that is deleted. Its message lists what stays. why says why more stays than the rules say.
func (e *Engine) Release(ctx context.Context, cs *v1alpha1.ConfigSync, left []string, why string) {
	r := e.begin(cs, *e.Own)
	switch {
	case why != "":
		r.event(ctx, corev1.EventTypeWarning, v1alpha1.EventReleased, fmt.Sprintf("%s; %d objects stay: %s", why, len(left), some(left)))
	case len(left) > 0:
		r.event(ctx, corev1.EventTypeNormal, v1alpha1.EventReleased, fmt.Sprintf("its objects are deleted but for %d that are never pruned: %s", len(left), some(left)))
	default:
		r.event(ctx, corev1.EventTypeNormal, v1alpha1.EventReleased, "its objects are deleted")
	}
}
