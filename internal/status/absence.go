package status

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
)

// Absence is the time for which no agent of a GatewaySync reports. The lead writes it while the last pods end, and the injector
// while no agent leads. Both use this rule, so that one continues where the other stopped.
type Absence struct {
	// Since is when it began. Until is its deadline.
	Since, Until time.Time
	// Over means that the deadline has passed.
	Over bool
	// Work is when the work on the desired ref began. If it was not done when the agents left, that is before Since. Late means
	// that the deadline of this work has passed.
	Work time.Time
	Late bool
}

// Absent returns since when the agents of gs are away, which is now if they just left. The conditions keep it, because the next
// writer has no other memory. asked is today's request: if the deadline was over, a new request starts a new one; before that, it
// does not move the deadline. A new spec starts a new deadline. now is the API server's time, because the next writer has
// another clock.
//
// The work and the absence have separate deadlines. Otherwise agents that come and go would move the deadline of work that they
// never finish, and a fleet that only restarts would count as gone.
func Absent(gs *v1alpha1.GatewaySync, asked string, now time.Time) Absence {
	limit, err := gs.Spec.Deadline()
	if err != nil {
		limit = v1alpha1.DefaultProgressDeadline
	}
	a := Absence{Since: now.Truncate(time.Second), Work: now.Truncate(time.Second)}
	st := &gs.Status
	if st.ObservedGeneration == gs.Generation {
		c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionStalled)
		late := c != nil && c.Reason == string(v1alpha1.ReasonProgressDeadlineExceeded)
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
func (a *Absence) resume(st *v1alpha1.GatewaySyncStatus, now time.Time) {
	was := func(kind string, status metav1.ConditionStatus) (v1alpha1.Reason, time.Time) {
		if c := meta.FindStatusCondition(st.Conditions, kind); c != nil && c.Status == status && !c.LastTransitionTime.After(now) {
			return v1alpha1.Reason(c.Reason), c.LastTransitionTime.Time
		}
		return "", time.Time{}
	}
	work, began := was(v1alpha1.ConditionReconciling, metav1.ConditionTrue)
	if work != "" {
		a.Work = began
	}
	if work == v1alpha1.ReasonAgentsAway {
		a.Since = began
	}
	switch ready, at := was(v1alpha1.ConditionReady, metav1.ConditionUnknown); {
	case ready == v1alpha1.ReasonProgressDeadlineExceeded:
		a.Since = at
		a.Work = at
	case ready == v1alpha1.ReasonAgentsAway && at.After(a.Work):
		a.Since = at
	}
}

// Begun returns when the wait began, and whether its deadline has passed. same means that the ref and the commit are those of the
// status; otherwise only the absence counts.
func (a Absence) Begun(same bool) (since time.Time, late bool) {
	if same {
		return a.Work, a.Late
	}
	return a.Since, a.Over
}

// Gone reports whether there is nothing to wait for, so that the GatewaySync has no gateways: known is how many it had, pods
// how many are there, with those that end. While there are pods it is never so: it would count as healthy.
func (a Absence) Gone(known, pods int) bool { return pods == 0 && (known == 0 || a.Over) }

// NoGateways says what to do about the GatewaySync name, which has no gateways. A pod that a quota or a policy refuses never
// existed: only its workload tells.
func NoGateways(name string) string {
	return "no pod asks for this GatewaySync: annotate one with " + v1alpha1.AnnotationInject + `: "true" and ` + v1alpha1.AnnotationCRName + ": " + name +
		"; if a workload has these annotations and no pods, its Events say why (kubectl describe)"
}
