package configsync

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
)

// rollback requests the last good commit after a run that failed with err, if the spec says so and the commit is to blame. It returns
// err. The next run goes back.
//
// It cannot loop: the last good commit is no reason to go back from itself, and a commit that was gone back from comes back only if the
// ref moves on or a user requests it.
func (r *Run) rollback(ctx context.Context, err error) error {
	good := r.cs.Status.LastGood
	if r.cs.Spec.RollbackOnFailure != v1alpha1.ConfigRollbackLastGood || ctx.Err() != nil || !r.blames(err) || good == nil || good.Commit == r.Commit() {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, maxReport)
	defer cancel()
	setter := request.NewSetter(r.own.Dynamic, r.own.Now).Of(kube.ConfigSync)
	answer, failed := setter.RollbackFrom(ctx, r.cs.Namespace, r.cs.Name, r.Commit(), "", "hook", "")
	switch {
	case errors.Is(failed, request.ErrTooEarly): // the spec or the request changed in the meantime, and the next run judges again
	case failed != nil:
		return fmt.Errorf("%w; the rollback to %.7s could not be requested: %w", err, good.Commit, failed)
	case answer.Outcome == request.Set:
		r.event(ctx, corev1.EventTypeWarning, v1alpha1.EventRollbackRequested, fmt.Sprintf("%.7s failed: the rollback is requested, %s", r.Commit(), answer.Message))
	}
	return err
}

// blames reports whether the content of the commit caused a failure that left objects between two commits, or unhealthy. A refusal before
// the first change needs no rollback, and missing rights are not the commit's fault.
func (r *Run) blames(err error) bool {
	if err == nil || r.Commit() == "" || !meta.IsStatusConditionTrue(r.cs.Status.Conditions, v1alpha1.ConditionDegraded) {
		return false
	}
	reason := failure.Reason(err, v1alpha1.ReasonProgressing)
	return reason == v1alpha1.ReasonUnhealthy || reason.Class() == v1alpha1.ClassStalled
}

// heldOff returns the beginning of the message if a rollback is in force: all is healthy, but not as the spec says.
func (r *Run) heldOff() string {
	q := r.cs.Requests()
	d, err := q.Desired("")
	if unless := q.Unless(); err == nil && d.Override && v1alpha1.IsCommit(unless) {
		return fmt.Sprintf("rolled back: %s is held off at %.7s; ", q.Spec, unless)
	}
	return ""
}
