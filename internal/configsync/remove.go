package configsync

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/configsync/plan"
	"stoker.io/stoker/internal/failure"
)

// Remaining describes the objects of a deleted ConfigSync that Remove did not delete.
type Remaining struct {
	// Objects are of kinds that are never pruned, have stoker.io/prune: disabled, or could not be deleted.
	Objects []string
	// Forbidden means that nothing but missing rights, or an invalid account, or a missing or invalid kubeconfig, kept objects from being
	// deleted.
	Forbidden bool
}

// Remove deletes the objects of a ConfigSync that is being deleted. It follows the rules of pruning, except for spec.prune and the
// confirmation of mass deletions: the deletion of the ConfigSync confirms them. If Remove fails, the status says why. Remove needs StatusClients,
// because it writes the status even if Connect fails. It does not validate the spec, which may have become invalid after a run.
func (e *Engine) Remove(ctx context.Context, cs *v1alpha1.ConfigSync) (Remaining, error) {
	if len(cs.Status.Inventory) == 0 {
		return Remaining{}, nil
	}
	clients, err := e.Connect()
	var p *planner
	if err == nil {
		p, err = e.newPlanner(ctx, cs, clients)
	}
	r := e.newRun(cs, clients)
	if err != nil {
		r.setOutcome(err)
		forbidden := slices.Contains([]v1alpha1.Reason{v1alpha1.ReasonApplyForbidden, v1alpha1.ReasonSourceMissing, v1alpha1.ReasonManifestInvalid}, failure.Reason(err, ""))
		return Remaining{Objects: inventoryObjects(cs), Forbidden: forbidden}, r.report(ctx, err)
	}
	r.rendered = &Rendered{Ref: cs.Status.SourceRef, Commit: cs.Status.SourceRevision, Path: cs.Status.SourcePath}
	if r.targets.removals, err = p.removals(ctx, nil); err == nil {
		r.setPlan(p, v1alpha1.PruneOwned)
		err = r.applier.prune(ctx)
	}
	left := Remaining{Forbidden: failure.Is(err, v1alpha1.ReasonPruneFailed)}
	for _, x := range r.targets.removals {
		terminates := x.live != nil && x.live.GetDeletionTimestamp() != nil
		kept := x.item.Action == plan.Release && !x.taken && plan.MatchesEntry(x.Entry, x.live, cs.Owner())
		if kept || !x.done && !terminates { // if it could not be read, it may exist
			left.Objects = append(left.Objects, x.ID.String())
		}
		if x.fault != nil && !x.forbidden {
			left.Forbidden = false
		}
	}
	if err != nil {
		r.record.cs.Status.Inventory = r.targets.inventory(true)
		r.setOutcome(err)
		return left, r.report(ctx, err)
	}
	return left, nil
}

// inventoryObjects returns the objects of the inventory as text.
func inventoryObjects(cs *v1alpha1.ConfigSync) (list []string) {
	for _, id := range slices.SortedFunc(maps.Keys(inventoryEntries(cs)), manifest.ID.Compare) {
		list = append(list, id.String())
	}
	return list
}

// SendReleased sends the Event Released about a ConfigSync that is being deleted. Its message lists the objects that stay. A non-empty why
// explains why objects stay that the rules would delete. SendReleased needs StatusClients.
func (e *Engine) SendReleased(ctx context.Context, cs *v1alpha1.ConfigSync, left []string, why string) {
	record := e.newRecord(cs, *e.StatusClients)
	switch {
	case why != "":
		record.send(ctx, event{corev1.EventTypeWarning, v1alpha1.EventReleased, fmt.Sprintf("%s; not deleted: %s", why, joinFirst(left))})
	case len(left) > 0:
		record.send(ctx, event{corev1.EventTypeNormal, v1alpha1.EventReleased, "its objects are deleted, except those that must not be pruned: " + joinFirst(left)})
	default:
		record.send(ctx, event{corev1.EventTypeNormal, v1alpha1.EventReleased, "its objects are deleted"})
	}
}
