package configsync

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/configsync/apply"
	"stoker.io/stoker/hooks/configsync/manifest"
	"stoker.io/stoker/hooks/configsync/plan"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/failure"
)

// maxGone bounds the wait for an object that is deleted, whose finalizers can keep it.
const maxGone = time.Minute

// lookAtRecreation plans to delete and create an object that cannot be changed, if its manifest asks for it and the API server would
// do it. Otherwise the fault stays.
func (r *Run) lookAtRecreation(ctx context.Context, x *object) error {
	if !plan.Recreates(x.want, r.entry(x.want.ID()), x.live) {
		return nil
	}
	switch err := r.client.DryRunDelete(ctx, x.live); {
	case err == nil:
	case apply.IsRefusal(err):
		x.fault = undeletable(err)
		return nil
	default:
		return apply.Quiet(x.want, err)
	}
	x.item = plan.Item{ID: x.want.ID(), File: x.want.File, Action: plan.Recreate, Message: "a field of it cannot be changed, and annotation " + v1alpha1.AnnotationConfigRecreate + " is enabled"}
	x.fault = nil
	return nil
}

// entry returns the entry of the inventory for an object, or nil.
func (r *Run) entry(id manifest.ID) *manifest.Entry {
	if e, there := r.listed[id]; there {
		return &e
	}
	return nil
}

// undeletable explains why the API server does not delete an object that has to be created again.
func undeletable(err error) *failure.Error {
	if apierrors.IsForbidden(err) {
		return failure.New(v1alpha1.ReasonApplyForbidden, "a field of it cannot be changed, and the API server forbids to delete it: grant the caller the verb delete")
	}
	return failure.New(v1alpha1.ReasonImmutableField, "a field of it cannot be changed, and the API server refuses to delete it (%s): delete it yourself", apierrors.ReasonForError(err))
}

// clear deletes an object that is created again, and waits until it is gone. It deletes only the object that was planned: if that was
// written in the meantime, as a controller writes a status, it is judged again.
func (r *Run) clear(ctx context.Context, x *object) error {
	id, uid := x.want.ID(), x.live.GetUID()
	for tries := 0; ; tries++ {
		err := r.client.Delete(ctx, x.live)
		if err == nil {
			break
		}
		if !apierrors.IsConflict(err) || tries > 2 {
			if !apply.IsRefusal(err) {
				return apply.Quiet(x.want, err)
			}
			x.fault = undeletable(err)
			return failure.New(x.fault.Reason, "%s: %w", id, x.fault)
		}
		live, err := r.client.Get(ctx, x.want)
		if err != nil {
			return apply.Quiet(x.want, err)
		}
		if live == nil {
			break
		}
		if live.GetUID() != uid || !plan.Owned(live, r.cs.Owner()) {
			return r.taken(x)
		}
		x.live = live
	}
	ctx, cancel := context.WithTimeoutCause(ctx, maxGone, failure.New(v1alpha1.ReasonUnhealthy,
		"%s is deleted to be created again, and its finalizers keep it: see metadata.finalizers, and run the command again when it is gone", id))
	defer cancel()
	for {
		live, err := r.client.Get(ctx, x.want)
		switch {
		case err != nil && ctx.Err() == nil:
			return apply.Quiet(x.want, err)
		case err == nil && live == nil:
			return nil
		case err == nil && live.GetUID() != uid:
			return r.taken(x)
		}
		if !backoff.Wait(ctx, lookAgain/4) {
			return fmt.Errorf("wait for the deletion: %w", context.Cause(ctx))
		}
	}
}

// taken reports that an object is no longer the one that was planned.
func (r *Run) taken(x *object) error {
	x.fault = failure.New(v1alpha1.ReasonNotOwned, "another object has its name now, or it is no longer marked as this ConfigSync's: run the command again")
	return failure.New(x.fault.Reason, "%s: %w", x.want.ID(), x.fault)
}
