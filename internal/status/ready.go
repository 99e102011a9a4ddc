package status

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// verdict is the state of the fleet for the condition Ready.
type verdict struct {
	status  metav1.ConditionStatus
	reason  v1alpha1.Reason
	message string
	short   string // what status.summary says instead of the reason, unless empty
}

// judge returns the first state of the fleet that applies.
func judge(f *facts) verdict {
	n, synced, paused, ref := len(f.fleet), f.fleet.synced(), f.GatewaySync.Paused(), f.refReason()
	say := func(status metav1.ConditionStatus, reason v1alpha1.Reason, message string) verdict {
		return verdict{status: status, reason: reason, message: message}
	}
	rolledBack := f.rollbackPrefix()
	switch {
	case f.Invalid != nil:
		return say(metav1.ConditionFalse, failure.Reason(f.Invalid, v1alpha1.ReasonProfilesInvalid), f.Invalid.Error())
	case f.Ref.Err != nil && (!f.resolved || ref.Class() == v1alpha1.ClassStalled) && !f.movedAway():
		return say(metav1.ConditionFalse, ref, refResolved(f).Message)
	case f.away != nil:
		return say(metav1.ConditionUnknown, v1alpha1.ReasonAgentsAway, f.away.describe())
	case n == 0:
		return say(metav1.ConditionUnknown, v1alpha1.ReasonNoGateways, NoGateways(f.GatewaySync.Name))
	case !f.resolved:
		return say(metav1.ConditionFalse, v1alpha1.ReasonProgressing, f.polling())
	case f.rolling() && !paused:
		return rolloutVerdict(f)
	case synced == n && paused:
		return say(metav1.ConditionTrue, v1alpha1.ReasonPaused, f.fleet.describeSynced(f.describeTarget())+"; paused")
	case synced == n && f.requestUnanswered():
		return say(metav1.ConditionFalse, ref, refResolved(f).Message)
	case synced == n:
		v := say(metav1.ConditionTrue, v1alpha1.ReasonSynced, rolledBack+f.fleet.describeSynced(f.describeTarget()))
		if rolledBack != "" {
			v.short = string(v1alpha1.ReasonRolledBack)
		}
		return v
	case paused:
		return say(metav1.ConditionFalse, v1alpha1.ReasonPaused, "paused; "+f.fleet.countSynced(f.describeTarget()))
	}
	return f.fleet.behind(f.describeTarget())
}

// movedAway reports whether the ref moved after all gateways took the requested commit. They run what was requested, so this is a warning
// (RefResolved) and not a failure.
func (f *facts) movedAway() bool {
	return f.refReason() == v1alpha1.ReasonRefMoved && f.resolved && f.away == nil && len(f.fleet) > 0 && f.fleet.synced() == len(f.fleet)
}

// allGatewaysSynced returns the condition AllGatewaysSynced, which describes the gateways alone: an unreachable git server does
// not change what they run.
func allGatewaysSynced(f *facts, v verdict) *metav1.Condition {
	switch n := len(f.fleet); {
	case f.away != nil:
		return f.condition(metav1.ConditionUnknown, v1alpha1.ReasonAgentsAway, f.away.describe())
	case n == 0:
		return f.condition(metav1.ConditionUnknown, v1alpha1.ReasonNoGateways, NoGateways(f.GatewaySync.Name))
	case f.resolved && f.fleet.synced() == n && !f.rolling():
		return f.condition(metav1.ConditionTrue, v1alpha1.ReasonSynced, f.fleet.describeSynced(f.describeTarget()))
	case f.resolved && v.status != metav1.ConditionTrue && f.Ref.Err == nil:
		return f.condition(metav1.ConditionFalse, v.reason, v.message)
	case f.resolved && f.fleet.synced() == n: // the rollout goes on
		r := rolloutVerdict(f)
		return f.condition(metav1.ConditionFalse, r.reason, r.message)
	case f.resolved:
		b := f.fleet.behind(f.describeTarget())
		return f.condition(metav1.ConditionFalse, b.reason, b.message)
	}
	return f.condition(metav1.ConditionFalse, v1alpha1.ReasonProgressing, "the desired commit is not known yet")
}

const (
	// maxSummary bounds status.summary, in bytes.
	maxSummary = 64
	// maxNameWithReason bounds the result of nameWithReason, so that a line of kubectl get fits into 120 columns, unless other
	// columns have long names.
	maxNameWithReason = 44
)

// nameWithReason returns the summary for a gateway or a stage, a reason, and the number of others. It cuts a long name, but never
// the reason or the number.
func nameWithReason(name string, reason v1alpha1.Reason, others int) string {
	rest := ": " + string(reason)
	if others > 0 {
		rest += fmt.Sprintf("; %d more", others)
	}
	return failure.Cut(name, max(maxNameWithReason-len(rest), 8)) + rest
}

// summary returns status.summary of a verdict. overdue means that the progress deadline has passed.
func summary(f *facts, v verdict, overdue bool) string {
	s := v.short
	if s == "" {
		s = string(v.reason)
	}
	drifted := f.fleet.drifted()
	switch {
	case overdue:
		s = "overdue: " + s
	case v.status == metav1.ConditionTrue && f.Ref.Err != nil:
		s += "; git: " + string(f.refReason())
	case v.status == metav1.ConditionTrue && drifted > 0:
		s += fmt.Sprintf("; drift on %d", drifted)
	}
	return failure.Cut(s, maxSummary)
}
