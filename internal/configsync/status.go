package configsync

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
)

// maxHistory bounds the commits in status.history.
const maxHistory = 10

// writeIntent writes the inventory that the run is about to own, before it applies the first object. If the run is interrupted, every
// object that it applied is in the inventory. A run that only prunes creates nothing, so it adds no lines.
func (r *Run) writeIntent(ctx context.Context) error {
	inventory := r.targets.inventory(r.pruneOnly)
	if len(inventory) > maxInventory {
		return failure.New(v1alpha1.ReasonLimitExceeded, "the ConfigSync would own %d objects; at most %d are allowed: prune some, or split it", len(inventory), maxInventory)
	}
	st := &r.record.cs.Status
	st.Inventory, r.wroteIntent = inventory, true
	r.setSource(st)
	r.setPath(st)
	r.record.setCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonProgressing, "a run is under way: "+r.Plan.Summary())
	r.record.setCondition(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonProgressing, "a run is under way")
	meta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionStalled)
	if !r.pruneOnly && !meta.IsStatusConditionTrue(st.Conditions, v1alpha1.ConditionDegraded) {
		r.record.setCondition(v1alpha1.ConditionDegraded, metav1.ConditionUnknown, v1alpha1.ReasonProgressing, "a run that changes objects did not report its outcome yet")
	}
	return r.record.writeIntent(ctx)
}

// setSource writes the generation, the request and the commit of the run into the status.
func (r *Run) setSource(st *v1alpha1.ConfigSyncStatus) {
	cs := r.record.cs
	st.ObservedGeneration, st.ObservedRequest = cs.Generation, desiredref.Key(cs)
	if r.Commit() == "" {
		return
	}
	st.SourceRef, st.SourceRevision, st.SourceRevisionShort = r.rendered.Ref, r.rendered.Commit, r.rendered.Commit[:7]
	r.record.setCondition(v1alpha1.ConditionRefResolved, metav1.ConditionTrue, v1alpha1.ReasonRefResolved, fmt.Sprintf("%s is at %s", r.rendered.Ref, r.rendered.Commit[:7]))
}

// setPath writes the path that the run applies into the status. Another path forgets the last good commit, because no run applied that commit
// from there.
func (r *Run) setPath(st *v1alpha1.ConfigSyncStatus) {
	if st.SourcePath != r.rendered.Path {
		st.SourcePath, st.LastGood = r.rendered.Path, nil
	}
}

// setOutcome sets the status to the outcome of the run.
func (r *Run) setOutcome(err error) {
	st := &r.record.cs.Status
	r.setSource(st)
	if r.rendered == nil {
		r.record.setCondition(v1alpha1.ConditionRefResolved, metav1.ConditionFalse, failure.Reason(err, v1alpha1.ReasonGitUnreachable), message(err))
	}
	meta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionReconciling)
	meta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionStalled)
	if r.Plan != nil {
		r.setTargets(st, err)
	}
	if err == nil {
		r.setSucceeded(st)
		return
	}
	if r.wroteIntent {
		st.Inventory = r.targets.inventory(false)
	}
	reason := failure.Reason(err, v1alpha1.ReasonProgressing)
	r.record.setCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, reason, message(err))
	switch reason.Class() {
	case v1alpha1.ClassStalled, v1alpha1.ClassHeld:
		r.record.setCondition(v1alpha1.ConditionStalled, metav1.ConditionTrue, reason, message(err))
	case v1alpha1.ClassRetry, v1alpha1.ClassWorking:
		r.record.setCondition(v1alpha1.ConditionReconciling, metav1.ConditionTrue, reason, "the next run tries again")
	}
}

// derive sets the fields of the status that follow from others: the outcome, and what a rollback would request.
func derive(cs *v1alpha1.ConfigSync) {
	st, q := &cs.Status, desiredref.InputsOf(cs)
	d, _ := q.Desired("") // zero if the request is not valid
	ref, commit := d.Ref, ""
	if q.NotRequestable != "" {
		ref = st.SourceRef
	}
	if ref == st.SourceRef && meta.IsStatusConditionTrue(st.Conditions, v1alpha1.ConditionRefResolved) {
		commit = st.SourceRevision
	}
	st.Outcome = outcome(meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReady), ref, commit)
	st.Rollback = d.Rollback(q, commit, st.LastGood)
}

// outcome returns status.outcome, or nil before the first run.
func outcome(ready *metav1.Condition, ref, commit string) *v1alpha1.Outcome {
	if ready == nil {
		return nil
	}
	o := &v1alpha1.Outcome{Phase: v1alpha1.OutcomeProgressing, Ref: ref, Commit: commit, Reason: v1alpha1.Reason(ready.Reason), Message: ready.Message}
	switch class := o.Reason.Class(); {
	case o.Reason == v1alpha1.ReasonPaused, o.Reason == v1alpha1.ReasonDryRun:
		o.Phase = v1alpha1.OutcomePaused
	case ready.Status == metav1.ConditionTrue && commit != "": // without a commit, ready is about another ref: a request has lapsed since
		o.Phase = v1alpha1.OutcomeSucceeded
	case class == v1alpha1.ClassStalled:
		o.Phase = v1alpha1.OutcomeFailed
	case class == v1alpha1.ClassHeld:
		o.Phase = v1alpha1.OutcomeHeld
	}
	return o
}

// message returns the text of an error for the status. An error without a reason means that the run was interrupted, or that the API server
// did not answer.
func message(err error) string {
	if failure.Reason(err, "") == "" {
		return "the run was interrupted, or the API server did not answer; the next run tries again"
	}
	return err.Error()
}

// Pause writes into the status that the ConfigSync is paused. Ready stays true if it was true for the same generation and ref.
func (e *Engine) Pause(ctx context.Context, cs *v1alpha1.ConfigSync) error {
	var clients kube.Clients
	if e.StatusClients == nil {
		var err error
		if clients, err = e.Connect(); err != nil {
			return err
		}
	}
	r := e.newRun(cs, clients)
	st := &r.record.cs.Status
	ready := metav1.ConditionFalse
	q := desiredref.InputsOf(cs)
	d, _ := q.Desired("") // zero if the request is not valid
	if r.wasReady && st.ObservedGeneration == cs.Generation && (q.NotRequestable != "" || d.Ref == st.SourceRef) {
		ready = metav1.ConditionTrue
	}
	st.ObservedGeneration, st.ObservedRequest = cs.Generation, desiredref.Key(cs)
	r.record.setCondition(v1alpha1.ConditionReady, ready, v1alpha1.ReasonPaused, "paused by spec.paused or by the annotation "+v1alpha1.AnnotationPaused)
	meta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionReconciling)
	meta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionStalled)
	return r.report(ctx, nil)
}

// setSucceeded sets the status of a run that applied everything.
func (r *Run) setSucceeded(st *v1alpha1.ConfigSyncStatus) {
	now := metav1.NewTime(r.record.clients.Now().UTC().Truncate(1e9))
	applied := "applied"
	if r.record.cs.Spec.Apply.Waits() {
		applied = "applied and healthy"
	}
	message := rollbackNote(r.record.cs) + fmt.Sprintf("%d objects of %s are %s", len(r.targets.objects), r.Plan.Commit[:7], applied)
	if n := r.Plan.Drifted(); n > 0 {
		message += fmt.Sprintf("; %d of them were changed in the cluster and stay so (driftPolicy report)", n)
	}
	r.record.setCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonSynced, message)
	st.Inventory = r.targets.inventory(true)
	r.setPath(st)
	record := v1alpha1.CommitRecord{Ref: r.Plan.Ref, Commit: r.Plan.Commit, Subject: r.rendered.Subject, At: now}
	if len(st.History) == 0 || st.History[0].Commit != record.Commit {
		st.History = slices.Insert(st.History, 0, record)
		st.History = st.History[:min(len(st.History), maxHistory)]
	}
	if r.record.cs.Spec.Apply.Waits() && (st.LastGood == nil || st.LastGood.Commit != record.Commit) {
		st.LastGood = &record
	}
	if st.LastSyncedTime == nil || r.Plan.Changes() || !r.wasReady {
		st.LastSyncedTime = &now
	}
}

// setTargets sets the rows of the status, and the conditions that follow from them.
func (r *Run) setTargets(st *v1alpha1.ConfigSyncStatus, err error) {
	total, waits := len(r.targets.objects), r.record.cs.Spec.Apply.Waits()
	p := r.targets.progress(waits)
	st.Targets, st.TargetsReady = p.rows, fmt.Sprintf("%d/%d", p.ready, total)
	degraded := err != nil && !failure.Is(err, v1alpha1.ReasonProgressing) && (p.started || failure.Is(err, v1alpha1.ReasonUnhealthy) || failure.Is(err, v1alpha1.ReasonProgressDeadlineExceeded) || failure.Is(err, v1alpha1.ReasonPruneFailed))
	reason := failure.Reason(err, v1alpha1.ReasonProgressing)
	if reason == v1alpha1.ReasonUnhealthy && p.partial { // a recreation failed, see appliedAll
		reason = v1alpha1.ReasonProgressing
	}
	switch {
	case degraded:
		r.record.setCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, reason, "only a part of the commit is applied and healthy")
	case err != nil && !failure.Is(err, v1alpha1.ReasonProgressing) && r.wasDegraded != nil: // this run changed no object
		meta.SetStatusCondition(&st.Conditions, *r.wasDegraded) // with its generation, see appliedAll
	default:
		r.record.setCondition(v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonSynced, "no object is between two commits")
	}
	switch {
	case !waits:
		meta.RemoveStatusCondition(&st.Conditions, v1alpha1.ConditionAvailable)
	case p.ready == total:
		r.record.setCondition(v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.ReasonSynced, "all objects are healthy")
	default:
		r.record.setCondition(v1alpha1.ConditionAvailable, metav1.ConditionFalse, v1alpha1.ReasonUnhealthy, fmt.Sprintf("%d of %d objects are applied and healthy", p.ready, total))
	}
}

// report writes the status if it changed, and sends Events. It returns err, or if err is nil, why the status could not be written. If ctx is
// canceled and another replica may have taken over, report does nothing and returns context.Canceled.
func (r *Run) report(ctx context.Context, err error) error {
	if r.record.replicated && errors.Is(context.Cause(ctx), context.Canceled) {
		return context.Canceled
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportTimeout)
	defer cancel()
	before, writeErr := r.record.write(ctx, r.targets.gone())
	if before != nil {
		r.record.send(ctx, r.events(err)...)
	}
	if err != nil {
		return err
	}
	return writeErr
}

// willContinue reports whether err only means that something takes time, so that the next run continues this one.
func willContinue(err error) bool {
	return failure.Is(err, v1alpha1.ReasonProgressing) || failure.Is(err, v1alpha1.ReasonDependencyNotReady)
}

// events returns the Events of a run that changed an object, made the ConfigSync ready, or failed in another way than the last run.
func (r *Run) events(err error) []event {
	ready := meta.FindStatusCondition(r.record.cs.Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil {
		return nil
	}
	outcome := event{corev1.EventTypeNormal, v1alpha1.EventSyncCompleted, ready.Message}
	if rollbackNote(r.record.cs) != "" {
		outcome.reason = v1alpha1.EventRollbackCompleted
	}
	switch {
	case err == nil && (r.Plan == nil || !r.Plan.Changes() && r.wasReady):
		return nil
	case r.pruneOnly, ready.Reason == string(v1alpha1.ReasonDryRun): // no commit was applied
		return r.targets.events()
	case willContinue(err): // the next run reports the outcome
		return r.targets.events()
	case err != nil && r.lastReady != nil && r.lastReady.Reason == ready.Reason && r.lastReady.Message == ready.Message:
		return r.targets.events()
	case err != nil && v1alpha1.Reason(ready.Reason).Class() == v1alpha1.ClassHeld:
		outcome.kind, outcome.reason = corev1.EventTypeWarning, v1alpha1.EventSyncHeld
	case err != nil:
		outcome.kind, outcome.reason = corev1.EventTypeWarning, v1alpha1.EventSyncFailed
	}
	return append([]event{outcome}, r.targets.events()...)
}

// events returns the Events about the objects that the run repaired or deleted.
func (t *targets) events() (list []event) {
	var repaired []string
	for _, x := range t.objects {
		if x.state == v1alpha1.ConfigRepaired {
			repaired = append(repaired, x.item.String()+" ("+joinFirst(x.item.Fields)+")")
		}
	}
	pruned, _ := t.pruned()
	if len(repaired) > 0 {
		list = append(list, event{corev1.EventTypeNormal, v1alpha1.EventDriftRepaired, fmt.Sprintf("restored %d objects that were changed in the cluster: %s", len(repaired), joinFirst(repaired))})
	}
	if len(pruned) > 0 {
		list = append(list, event{corev1.EventTypeNormal, v1alpha1.EventPruned, fmt.Sprintf("deleted %d objects that git no longer has: %s", len(pruned), joinFirst(pruned))})
	}
	return list
}

// maxNamed bounds the objects or fields that a message names.
const maxNamed = 5

// joinFirst joins the first entries of a list, and adds the number of the others.
func joinFirst(list []string) string { return failure.First(list, maxNamed) }
