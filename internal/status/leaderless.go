package status

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Leaderless is what the injector sees of a GatewaySync while no agent leads.
type Leaderless struct {
	GatewaySync *v1alpha1.GatewaySync
	// Pods are those that ask for an agent or have one, with those that terminate. Stuck of a pod may say more about it.
	Pods []Pod
	// Awaited is why an evicted pod has no successor; empty if none is missing.
	Awaited string
	// Now is from the API server's clock.
	Now time.Time
}

// Without returns the status of a GatewaySync while no agent leads. Without gateways there is nothing to wait for. Otherwise it
// waits for their agents until spec.progressDeadline, and then gives up the request. It keeps what the last lead knew of the
// gateways, except for their state, which is unknown.
func Without(l Leaderless) *v1alpha1.GatewaySyncStatus {
	gs := l.GatewaySync
	w := newWriter(Seen{GatewaySync: gs, Now: l.Now, Pods: l.Pods})
	w.observe()
	st := &w.next
	st.ProfileCount = int32(min(len(gs.Spec.Sync.Profiles), 1<<20))
	w.Ref.Desired, w.Ref.Err = v1alpha1.DesiredRef(gs, "")
	if t := st.Target; t != nil {
		w.Ref.Answered = t.RequestedAt
		w.Target = v1alpha1.SyncTargetSpec{Ref: t.Ref, Commit: t.Commit, RequestedAt: t.RequestedAt}
		w.moved = w.Ref.Err == nil && t.Ref != w.Ref.Desired.Ref
		w.resolved = t.Commit != "" && w.Ref.Err == nil && !w.moved && w.last.ObservedGeneration == gs.Generation && w.Ref.Desired.CheckCommit(t.Commit) == nil
	}
	for i := range st.DiscoveredGateways {
		row := &st.DiscoveredGateways[i]
		row.SyncStatus, row.Reason, row.Message = v1alpha1.GatewayPending, v1alpha1.ReasonAgentsAway, "no agent leads"
		w.rows = append(w.rows, gateway{DiscoveredGateway: *row})
	}
	total := len(w.rows)
	if _, all, _ := strings.Cut(w.last.GatewaysReady, "/"); total > 0 { // a very large fleet has more gateways than rows
		if n, err := strconv.Atoi(all); err == nil {
			total = max(total, n)
		}
	}
	pods := len(l.Pods)
	if l.Awaited != "" {
		pods++
	}
	away := Absent(gs, gs.RequestedAt(), l.Now)
	w.absence = &away
	v := verdict{metav1.ConditionUnknown, v1alpha1.ReasonAgentsAway, "no agent leads; " + l.describePods(), ""}
	if away.Gone(total, pods) {
		st.DiscoveredGateways, w.rows, total = nil, nil, 0
		v = verdict{metav1.ConditionUnknown, v1alpha1.ReasonNoGateways, NoGateways(gs.Name), ""}
		if asked := gs.RequestedAt(); asked != "" {
			st.LastHandledRequest = asked
		}
	}
	var without []string
	for _, p := range l.Pods {
		if !p.Ending && !p.Agent {
			without = append(without, p.label())
		}
	}
	w.setSidecars(without, l.Awaited)
	w.set(v1alpha1.ConditionAllGatewaysSynced, v.status, v.reason, v.message)
	w.setReady(v)
	w.keepLastFailure()
	w.setOutcome()
	st.Outcome.Total = int32(total)
	w.setRollback()
	w.setRetry()
	st.GatewaysReady = fmt.Sprintf("0/%d", total)
	return st
}

// keepLastFailure keeps what the last lead found wrong with the current spec or request: waiting for agents does not help.
func (w *writer) keepLastFailure() {
	c := meta.FindStatusCondition(w.last.Conditions, v1alpha1.ConditionProfilesValid)
	if c != nil && c.Status == metav1.ConditionFalse && c.ObservedGeneration == w.next.ObservedGeneration {
		w.Invalid = failure.New(v1alpha1.Reason(c.Reason), "%s", c.Message)
		return
	}
	o := w.last.Outcome
	if o != nil && o.Phase == v1alpha1.OutcomeFailed && o.Failed == 0 && o.Reason != v1alpha1.ReasonProgressDeadlineExceeded &&
		w.last.ObservedGeneration == w.next.ObservedGeneration && w.last.ObservedRequest == w.next.ObservedRequest {
		w.Invalid = failure.New(o.Reason, "%s", o.Message)
	}
}

// describePods lists the pods, each with what is wrong with it.
func (l Leaderless) describePods() string {
	var live, ending []string
	for _, p := range l.Pods {
		if p.Ending {
			ending = append(ending, p.label())
		} else {
			live = append(live, p.label())
		}
	}
	switch {
	case len(live) > 0:
		return "pods: " + list(live)
	case len(ending) > 0:
		return "terminating pods: " + list(ending)
	case l.Awaited != "":
		return l.Awaited
	}
	return "the pods of its gateways are gone"
}

func (p Pod) label() string {
	if p.Stuck != "" {
		return p.Name + " (" + p.Stuck + ")"
	}
	return p.Name
}
