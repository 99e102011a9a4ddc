package status

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
)

// Absence is a time in which no agent of a GatewaySync reports. The lead writes the status while its last pods end, and the injector while
// no agent leads. Both use this type, so that one continues where the other stopped.
type Absence struct {
	// Since is when the absence began, and Until its deadline.
	Since, Until time.Time
	// Over reports whether the deadline has passed.
	Over bool
	// Work is when the work on the desired ref began: before Since if it was not completed when the agents left. Late reports whether the
	// deadline of this work has passed.
	Work time.Time
	Late bool
}

// Absent returns the absence of the agents of gs, which begins now if they just left. It reads the begin from the conditions, the only
// memory that writers share. asked is the current request: after the deadline, a new request starts a new deadline; before, it
// moves nothing. A new spec starts a new deadline. now is the time of the API server, because writers have different clocks.
//
// The work and the absence have separate deadlines. Otherwise agents that come and go would move the deadline of work that they never
// complete, and a fleet that only restarts would be reported as gone.
func Absent(gs *v1alpha1.GatewaySync, asked string, now time.Time) Absence {
	limit := effective.ProgressDeadline(&gs.Spec)
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

// resume reads the begin of the work and of the absence from the conditions. The work began with the condition Reconciling. The absence
// began with the condition Ready if this is later, else with the work: Ready may have been Unknown before, while there were no gateways.
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

// Begun returns when the wait began, and whether its deadline has passed. same reports whether the ref and the commit are those of the
// status; otherwise only the absence counts.
func (a Absence) Begun(same bool) (since time.Time, late bool) {
	if same {
		return a.Work, a.Late
	}
	return a.Since, a.Over
}

// Gone reports whether the GatewaySync has no gateways any more. known is the number of gateways that it had, and pods the number of its
// pods, including those that end. While there are pods it is false, because a GatewaySync without gateways is reported as healthy.
func (a Absence) Gone(known, pods int) bool { return pods == 0 && (known == 0 || a.Over) }

// NoGateways returns what to do about the GatewaySync name, which has no gateways. If a quota or a policy refuses a pod, only the Events of
// its workload say so.
func NoGateways(name string) string {
	return "no pod asks for this GatewaySync: annotate one with " + v1alpha1.AnnotationInject + `: "true" and ` + v1alpha1.AnnotationCRName + ": " + name +
		"; if a workload has these annotations and no pods, its Events say why (kubectl describe)"
}

// away is why no gateway of a fleet is live.
type away struct {
	Absence
	// ending are the terminating pods.
	ending []string
}

func (a *away) describe() string {
	if len(a.ending) == 0 {
		return "no gateway runs; the pods that were there are gone"
	}
	return "no gateway runs; terminating pods: " + list(a.ending)
}

// absentGateways returns the known gateways while none of them is live: they may restart or be gone for good. Without these
// rows, waiting clients would conclude that there is nothing to wait for. It returns nil if the gateways are gone for good.
func absentGateways(s *Seen) (fleet, *away) {
	ends := *s
	ends.Pods = nil
	for _, p := range s.Pods {
		if p.Ending {
			p.Ended = false
			ends.Pods = append(ends.Pods, p)
		}
	}
	rows, last := gateways(&ends, false), s.GatewaySync.Status.DiscoveredGateways
	a := &away{Absence: Absent(s.GatewaySync, s.Ref.Desired.RequestedAt, s.Now)}
	if a.Gone(len(last), len(rows)) {
		return nil, nil
	}
	there := make(map[string]bool, len(rows))
	for i := range rows {
		g := &rows[i]
		g.synced, g.delivered, g.handled = false, false, false
		g.Message, there[g.Name] = "its pod ends", true
		a.ending = append(a.ending, g.PodName)
	}
	for i := range last {
		if g := *last[i].DeepCopy(); !there[g.Name] {
			there[g.Name] = true
			g.Message = "its pod is gone"
			rows = append(rows, gateway{DiscoveredGateway: g})
		}
	}
	for i := range rows {
		rows[i].SyncStatus, rows[i].Reason = v1alpha1.GatewayPending, v1alpha1.ReasonAgentsAway
	}
	slices.SortFunc(rows, func(a, b gateway) int { return cmp.Compare(a.Name, b.Name) })
	return rows, a
}
