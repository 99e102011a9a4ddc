// Package statustest completes statuses that tests write by hand.
package statustest

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/status"
)

// Complete sets what a lead would derive from the rest of the status, which the test wrote: observedRequest, the summary, the outcome, and what
// a rollback, a retry and an approval would request. To derive it, each entry of status.discoveredGateways becomes the SyncReport of that
// gateway about status.target.
func Complete(gs *v1alpha1.GatewaySync) {
	st := &gs.Status
	seen := status.Seen{GatewaySync: gs.DeepCopy(), Now: time.Now()}
	var err error
	seen.Ref.Desired, err = desiredref.Of(gs, "")
	seen.Ref.Err, seen.Ref.Polled, seen.Rollout = err, true, st.Rollout.DeepCopy()
	at := seen.Ref.Desired.RequestedAt
	if t := st.Target; t != nil {
		seen.Target = v1alpha1.SyncTargetSpec{Ref: t.Ref, Commit: t.Commit, RequestedAt: t.RequestedAt, Generation: gs.Generation, Revision: 1}
		seen.Ref.Answered = t.RequestedAt
	}
	seen.Target.Requests = annotation.Hash(gs)
	for _, kind := range []string{v1alpha1.ConditionRefResolved, v1alpha1.ConditionProfilesValid} {
		c := meta.FindStatusCondition(st.Conditions, kind)
		if c == nil || c.Status != metav1.ConditionFalse || c.ObservedGeneration != gs.Generation {
			continue
		}
		failed := failure.New(v1alpha1.Reason(c.Reason), "%s", c.Message)
		if kind == v1alpha1.ConditionProfilesValid {
			seen.Invalid = failed
		} else if err == nil {
			seen.Ref.Err = failed
		}
	}
	for _, g := range st.DiscoveredGateways {
		uid := types.UID("uid-" + g.PodName)
		seen.Pods = append(seen.Pods, status.Pod{Namespace: gs.Namespace, Name: g.PodName, UID: uid, Agent: g.SyncStatus != v1alpha1.GatewayMissingSidecar,
			Labels: map[string]string{v1alpha1.LabelCRName: gs.Name}, Annotations: map[string]string{v1alpha1.AnnotationGatewayName: g.Name}})
		r := &v1alpha1.SyncReport{ObjectMeta: metav1.ObjectMeta{Name: g.PodName, OwnerReferences: []metav1.OwnerReference{{Kind: "Pod", UID: uid}}}}
		r.Status = v1alpha1.SyncReportStatus{Gateway: g.Name, Phase: g.SyncStatus, Reason: g.Reason, Message: g.Message, Commit: g.SyncedCommit,
			Target: seen.Target.Commit, Revision: 1, Generation: gs.Generation}
		if st.LastHandledRequest == at {
			r.Status.HandledRequest = seen.Target.RequestedAt
		}
		if g.SyncStatus != v1alpha1.GatewayMissingSidecar {
			seen.Reports = append(seen.Reports, r)
		}
	}
	is := status.Summarize(seen).Status
	st.ObservedRequest, st.Summary, st.Outcome, st.Rollback, st.Retry, st.Approval = is.ObservedRequest, is.Summary, is.Outcome, is.Rollback, is.Retry, is.Approval
	// Summarize cannot derive two things: that the agents are away, because each row became the report of an agent that is there, and that the
	// deadline has passed, because no row says when the work began. So the conditions that the test wrote say it.
	if c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReady); c != nil && c.Reason == string(v1alpha1.ReasonAgentsAway) {
		st.Outcome.Phase, st.Outcome.Reason, st.Outcome.Message = v1alpha1.OutcomeProgressing, v1alpha1.ReasonAgentsAway, c.Message
	}
	c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionStalled)
	// As in outcome: the deadline fails only a request that git was polled for, or that was handled.
	polled, handled := is.Outcome.Reason != v1alpha1.ReasonWaitingForLead, st.LastHandledRequest == at
	if c != nil && c.Reason == string(v1alpha1.ReasonProgressDeadlineExceeded) && is.Outcome.Phase == v1alpha1.OutcomeProgressing && (polled || handled) {
		st.Outcome.Phase, st.Outcome.Reason, st.Outcome.Message = v1alpha1.OutcomeFailed, v1alpha1.ReasonProgressDeadlineExceeded, c.Message
	}
}
