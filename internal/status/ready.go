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
	short   string // for status.summary; "" for the reason
}

// judge returns the first state of the fleet that applies.
func judge(f *facts) verdict {
	n, synced, paused := len(f.fleet), f.fleet.synced(), f.GatewaySync.Paused()
	ref := failure.Reason(f.Ref.Err, "")
	if f.Ref.Err != nil && ref == "" {
		ref = v1alpha1.ReasonGitUnreachable
	}
	switch {
	case f.Invalid != nil:
		return verdict{metav1.ConditionFalse, failure.Reason(f.Invalid, v1alpha1.ReasonProfilesInvalid), f.Invalid.Error(), ""}
	case f.Ref.Err != nil && (!f.resolved || ref.Class() == v1alpha1.ClassStalled):
		return verdict{metav1.ConditionFalse, ref, refResolved(f).Message, ""}
	case f.away != nil:
		return verdict{metav1.ConditionUnknown, v1alpha1.ReasonAgentsAway, f.away.describe(), ""}
	case n == 0:
		return verdict{metav1.ConditionUnknown, v1alpha1.ReasonNoGateways, NoGateways(f.GatewaySync.Name), ""}
	case !f.resolved:
		return verdict{metav1.ConditionFalse, v1alpha1.ReasonProgressing, "asking git for " + f.Ref.Desired.Ref, ""}
	case f.rolling() && !paused:
		return rolloutVerdict(f)
	case synced == n && paused:
		return verdict{metav1.ConditionTrue, v1alpha1.ReasonPaused, f.fleet.describeSynced(f.describeTarget()) + "; paused", ""}
	case synced == n && f.unanswered():
		return verdict{metav1.ConditionFalse, ref, refResolved(f).Message, ""}
	case synced == n && f.heldOff() != "":
		return verdict{metav1.ConditionTrue, v1alpha1.ReasonSynced, f.heldOff() + f.fleet.describeSynced(f.describeTarget()), string(v1alpha1.ReasonRolledBack)}
	case synced == n:
		return verdict{metav1.ConditionTrue, v1alpha1.ReasonSynced, f.fleet.describeSynced(f.describeTarget()), ""}
	case paused:
		return verdict{metav1.ConditionFalse, v1alpha1.ReasonPaused, "paused; " + f.fleet.countSynced(f.describeTarget()), ""}
	}
	return f.fleet.behind(f.describeTarget())
}

// allGatewaysSynced returns the condition AllGatewaysSynced, which describes the gateways alone: an unreachable git server does
// not change what they run.
func allGatewaysSynced(f *facts, v verdict) *metav1.Condition {
	switch n := len(f.fleet); {
	case f.away != nil:
		return f.condition(metav1.ConditionUnknown, v1alpha1.ReasonAgentsAway, f.away.describe())
	case n == 0:
		return f.condition(metav1.ConditionUnknown, v1alpha1.ReasonNoGateways, "no gateway was discovered")
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
	return f.condition(metav1.ConditionFalse, v1alpha1.ReasonProgressing, "their desired commit is not known yet")
}

// maxSummary is how long status.summary is: a line of kubectl get has 120 columns with it, unless the names are long.
const maxSummary = 44

// nameWithReason returns the summary for a gateway or a stage and a reason. A long name is cut, and neither the reason nor the number of others.
func nameWithReason(name string, reason v1alpha1.Reason, others int) string {
	rest := ": " + string(reason)
	if others > 0 {
		rest += fmt.Sprintf("; %d more", others)
	}
	return Cut(name, max(maxSummary-len(rest), 8)) + rest
}

// summary returns status.summary.
func summary(f *facts, v verdict, overdue bool) string {
	s := v.short
	if s == "" {
		s = string(v.reason)
	}
	changed := f.fleet.drifted()
	switch {
	case overdue:
		s = "overdue: " + s
	case v.status == metav1.ConditionTrue && f.Ref.Err != nil:
		s += "; git: " + string(failure.Reason(f.Ref.Err, v1alpha1.ReasonGitUnreachable))
	case v.status == metav1.ConditionTrue && changed > 0:
		s += fmt.Sprintf("; drift on %d", changed)
	}
	return Cut(s, 64)
}
