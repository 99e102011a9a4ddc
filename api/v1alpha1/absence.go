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
	// Work is since when what is wanted is under way: since before they went, where it was not done then. Late means that the
	// deadline of that is over.
	Work time.Time
	Late bool
}

// Absent returns since when the agents of gs are away, or that they are from now on. It is kept in the conditions, because
// whoever writes next has nothing else. asked is today's request: a new one is waited for anew where the deadline was over,
// and does not move it before. A new spec begins anew. now is by the API server's clock: who writes next has another one.
//
// The work and the absence are counted each for itself. Agents that come and go would else move the deadline of what they never
// get done, and a fleet that is only started again would count as one that is gone.
func Absent(gs *GatewaySync, asked string, now time.Time) Absence {
	limit, err := gs.Spec.Deadline()
	if err != nil {
		limit = DefaultProgressDeadline
	}
	a := Absence{Since: now.Truncate(time.Second), Work: now.Truncate(time.Second)}
	st := &gs.Status
	if st.ObservedGeneration == gs.Generation {
		c := meta.FindStatusCondition(st.Conditions, ConditionStalled)
		late := c != nil && c.Reason == string(ReasonProgressDeadlineExceeded)
		again := asked != "" && asked != st.LastHandledRequest && (st.Target == nil || asked != st.Target.RequestedAt)
		if !late || !again {
			a.Late = late
			a.resume(st, now)
		}
	}
	a.Until = a.Since.Add(limit)
	a.Over = !now.Before(a.Until)
	a.Late = a.Late || a.Over || !now.Before(a.Work.Add(limit))
	return a
}

// resume takes over what the conditions keep: the work is the time of Reconciling. The absence is that of Ready where it is
// later, else the same one: Ready may have been Unknown before, when there were no gateways.
func (a *Absence) resume(st *GatewaySyncStatus, now time.Time) {
	was := func(kind string, status metav1.ConditionStatus) (Reason, time.Time) {
		if c := meta.FindStatusCondition(st.Conditions, kind); c != nil && c.Status == status && !c.LastTransitionTime.After(now) {
			return Reason(c.Reason), c.LastTransitionTime.Time
		}
		return "", time.Time{}
	}
	work, began := was(ConditionReconciling, metav1.ConditionTrue)
	if work != "" {
		a.Work = began
	}
	if work == ReasonAgentsAway {
		a.Since = began
	}
	switch ready, at := was(ConditionReady, metav1.ConditionUnknown); {
	case ready == ReasonProgressDeadlineExceeded:
		a.Since = at
		a.Work = at
	case ready == ReasonAgentsAway && at.After(a.Work):
		a.Since = at
	}
}

// Begun returns since when somebody waits, and whether for longer than anybody does. same means that the ref and the commit are
// those that the status speaks of: else only the absence counts.
func (a Absence) Begun(same bool) (since time.Time, late bool) {
	if same {
		return a.Work, a.Late
	}
	return a.Since, a.Over
}

// Gone reports whether there is nothing to wait for, so that the GatewaySync has no gateways: known is how many it had, pods
// how many are there, with those that end. While there are pods it is never so: it would count as healthy.
func (a Absence) Gone(known, pods int) bool { return pods == 0 && (known == 0 || a.Over) }

// AskedAt is the annotation stoker.io/requested-at; "" where it cannot be a request's.
func (gs *GatewaySync) AskedAt() string { return token(gs.Annotations[AnnotationRequestedAt]) }

// NoGateways says what to do about the GatewaySync name, which has no gateways. A pod that a quota or a policy refuses never
// existed: only its workload tells.
func NoGateways(name string) string {
	return "no pod asks for this GatewaySync: annotate one with " + AnnotationInject + `: "true" and ` + AnnotationCRName + ": " + name +
		"; if a workload has these annotations and no pods, its Events say why (kubectl describe)"
}
