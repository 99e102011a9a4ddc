package v1alpha1

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Absence is the time for which no agent of a GatewaySync reports. Its lead says so while the last pods end, and where nobody leads
// the injector does: both by this rule, so that one goes on where the other stopped.
//
// +kubebuilder:object:generate=false
type Absence struct {
	// Since is when it began, Until when nobody waits any longer.
	Since, Until time.Time
	// Over means that nobody does.
	Over bool
}

// Absent returns since when the agents of gs are away, or that they are from now on. It is kept in the conditions, because
// whoever writes next has nothing else. asked is today's request: a new one is waited for anew where the deadline was over,
// and does not move it before. A new spec begins anew. now is by the API server's clock: who writes next has another one.
func Absent(gs *GatewaySync, asked string, now time.Time) Absence {
	limit, err := gs.Spec.Deadline()
	if err != nil {
		limit = DefaultProgressDeadline
	}
	a := Absence{Since: now.Truncate(time.Second)}
	st := &gs.Status
	if same := st.ObservedGeneration == gs.Generation; same {
		c := meta.FindStatusCondition(st.Conditions, ConditionReconciling)
		if c != nil && c.Status == metav1.ConditionTrue && c.Reason == string(ReasonAgentsAway) && !c.LastTransitionTime.After(now) {
			a.Since = c.LastTransitionTime.Time
		}
		ready := meta.FindStatusCondition(st.Conditions, ConditionReady)
		a.Over = ready != nil && ready.Status == metav1.ConditionUnknown && ready.Reason == string(ReasonProgressDeadlineExceeded) &&
			(asked == "" || asked == st.LastHandledRequest)
	}
	a.Until = a.Since.Add(limit)
	a.Over = a.Over || !now.Before(a.Until)
	return a
}

// Gone reports whether there is nothing to wait for, so that the GatewaySync has no gateways: known is how many it had, pods
// how many are there, with those that end. While there are pods it is never so: it would count as healthy.
func (a Absence) Gone(known, pods int) bool { return pods == 0 && (known == 0 || a.Over) }

// AskedAt is the annotation stoker.io/requested-at; "" where it cannot be a request's.
func (gs *GatewaySync) AskedAt() string { return token(gs.Annotations[AnnotationRequestedAt]) }
