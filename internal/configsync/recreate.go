package configsync

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/configsync/apply"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/configsync/plan"
	"stoker.io/stoker/internal/failure"
)

const (
	// deletionTimeout bounds the wait for the deletion of an object. Finalizers can delay it.
	deletionTimeout = time.Minute
	// maxConflicts is how often an object may change while the run plans, applies or recreates it.
	maxConflicts = 3
)

// planRecreation plans to delete and create an object with a changed immutable field, if its manifest asks for that and a dry run of the
// deletion succeeds. Otherwise x keeps its fault, or gets the fault of the deletion.
func (p *planner) planRecreation(ctx context.Context, x *object) error {
	if x.claim != plan.Ours || !plan.MayRecreate(x.want, p.inventoryEntry(x.want.ID()), x.live) {
		return nil
	}
	if err := p.client.Delete(ctx, x.live, metav1.DryRunAll); apply.IsRefusal(err) {
		x.fault = undeletable(err)
		return nil
	} else if err != nil {
		return apply.Redact(x.want, err)
	}
	x.item = plan.Item{ID: x.want.ID(), File: x.want.File, Action: plan.Recreate, Message: "a field of it cannot be changed, and annotation " + v1alpha1.AnnotationConfigRecreate + " is enabled"}
	x.fault = nil
	return nil
}

// inventoryEntry returns the entry of the inventory for an object, or nil.
func (p *planner) inventoryEntry(id manifest.ID) *manifest.Entry {
	if e, ok := p.entries[id]; ok {
		return &e
	}
	return nil
}

// undeletable explains why the API server does not delete an object that has to be created again.
func undeletable(err error) *failure.Error {
	if apierrors.IsForbidden(err) {
		return failure.New(v1alpha1.ReasonApplyForbidden, "a field of it cannot be changed, and the API server does not allow its deletion: grant the caller the verb delete")
	}
	return failure.New(v1alpha1.ReasonImmutableField, "a field of it cannot be changed, and the API server refuses its deletion (%s): delete it yourself", apierrors.ReasonForError(err))
}

// deleteAndWait deletes an object that is created again, and waits until it is gone. If the object changed since the run read it, for
// example because a controller wrote its status, deleteAndWait reads it again, and deletes it only if it has the same UID and owner.
func (a *applier) deleteAndWait(ctx context.Context, x *object) error {
	id, uid := x.want.ID(), x.live.GetUID()
	for conflicts := 0; ; conflicts++ {
		err := a.client.Delete(ctx, x.live)
		if err == nil {
			break
		}
		if !apierrors.IsConflict(err) || conflicts == maxConflicts {
			if !apply.IsRefusal(err) {
				return apply.Redact(x.want, err)
			}
			x.fault = undeletable(err)
			return failure.New(x.fault.Reason, "%s: %w", id, x.fault)
		}
		live, err := a.client.Get(ctx, x.want)
		if err != nil {
			return apply.Redact(x.want, err)
		}
		if live == nil {
			break
		}
		if live.GetUID() != uid || changedOwner(x.live, live) {
			return failReplaced(x)
		}
		x.live = live
	}
	ctx, cancel := context.WithTimeoutCause(ctx, deletionTimeout, failure.New(v1alpha1.ReasonUnhealthy,
		"%s is being recreated, but its finalizers keep it: see metadata.finalizers, and run the command again when it is gone", id))
	defer cancel()
	for {
		live, err := a.client.Get(ctx, x.want)
		switch {
		case err != nil && ctx.Err() == nil:
			return apply.Redact(x.want, err)
		case err == nil && live == nil:
			x.live = nil
			return nil
		case err == nil && live.GetUID() != uid:
			return failReplaced(x)
		}
		if !backoff.Wait(ctx, pollInterval/4) {
			return fmt.Errorf("wait for the deletion: %w", context.Cause(ctx))
		}
	}
}

// changedOwner reports whether an object has the mark of another ConfigSync than before. Without a mark, it has the owner that it had.
func changedOwner(was, live *unstructured.Unstructured) bool {
	owner := plan.OwnerOf(live)
	return owner != "" && owner != plan.OwnerOf(was)
}

// failReplaced sets and returns the fault that an object is no longer the one that was planned.
func failReplaced(x *object) error {
	x.fault = errReplaced()
	return failure.New(x.fault.Reason, "%s: %w", x.want.ID(), x.fault)
}

func errReplaced() *failure.Error {
	return failure.New(v1alpha1.ReasonNotOwned, "another object has its name now, or another owner: run the command again")
}
