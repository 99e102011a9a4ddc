package configsync

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
	"stoker.io/stoker/internal/sender"
)

// requestRollback requests the last good commit after a run that failed with err, if the spec says so, the commit caused the failure, and the
// last good commit was applied from the same path. It returns err, also if the request succeeds. If the request fails, it adds why. The next
// run applies the last good commit.
//
// Rollbacks cannot loop: there is no rollback from the last good commit to itself, and the rollback blocks the failed commit until the ref
// moves or a user requests that commit.
func (r *Run) requestRollback(ctx context.Context, err error) error {
	good, path := r.record.cs.Status.LastGood, r.record.cs.Status.SourcePath
	if r.record.cs.Spec.RollbackOnFailure != v1alpha1.ConfigRollbackLastGood || r.record.overtaken || ctx.Err() != nil || !r.rollbackHelps(err) || good == nil || good.Commit == r.Commit() || path != r.rendered.Path {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	setter := request.NewSetter(r.record.clients.Dynamic, r.record.clients.Now).Of(kube.ConfigSync)
	answer, rollbackErr := setter.Rollback(ctx, r.record.cs.Namespace, r.record.cs.Name, r.Commit(), "", sender.Hook, "")
	switch {
	case errors.Is(rollbackErr, request.ErrTooEarly): // the spec or the request changed in the meantime; the next run decides again
	case rollbackErr != nil:
		return fmt.Errorf("%w; the rollback to %.7s could not be requested: %w", err, good.Commit, rollbackErr)
	case answer.Outcome == request.Set:
		r.record.send(ctx, event{corev1.EventTypeWarning, v1alpha1.EventRollbackRequested, fmt.Sprintf("%.7s failed: requested a rollback %s", r.Commit(), answer.Message)})
	}
	return err
}

// rollbackHelps reports whether the content of the commit caused a failure, and this run or an earlier one left objects between two commits, or
// unhealthy. Without such objects no rollback is needed, and missing rights are not the commit's fault.
func (r *Run) rollbackHelps(err error) bool {
	degraded := meta.FindStatusCondition(r.record.cs.Status.Conditions, v1alpha1.ConditionDegraded)
	if err == nil || r.Commit() == "" || degraded == nil || degraded.Status == metav1.ConditionFalse || degraded.Reason == string(v1alpha1.ReasonPruneFailed) {
		return false
	}
	reason := failure.Reason(err, v1alpha1.ReasonProgressing)
	return reason == v1alpha1.ReasonUnhealthy || reason.Class() == v1alpha1.ClassStalled
}

// rollbackNote returns the beginning of the Ready message if a rollback is in force, and otherwise "".
func rollbackNote(cs *v1alpha1.ConfigSync) string {
	q := desiredref.InputsOf(cs)
	d, err := q.Desired("")
	if err != nil || d.Unless == "" {
		return ""
	}
	return fmt.Sprintf("rolled back: %.7s of %s is blocked; ", d.Unless, q.Spec)
}
