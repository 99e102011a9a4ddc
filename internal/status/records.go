package status

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
)

const maxHistory = 10

// setLastGood adds the target to the history if all gateways run it.
func setLastGood(st *v1alpha1.GatewaySyncStatus, f *facts) {
	if synced := f.fleet.synced(); !f.resolved || synced != len(f.fleet) || synced == 0 || f.rolling() {
		return
	}
	if g := st.LastGood; g == nil || g.Commit != f.Target.Commit || g.Ref != f.Target.Ref {
		good := v1alpha1.CommitRecord{Ref: f.Target.Ref, Commit: f.Target.Commit, At: f.now}
		st.LastGood = &good
		st.History = append([]v1alpha1.CommitRecord{good}, st.History[:min(len(st.History), maxHistory-1)]...)
	}
}

// maxClockLead is how far the clock of a gateway's node may be ahead of the API server's. A later time counts as wrong.
const maxClockLead = time.Minute

// setLastSync sets the time of the last delivered sync. The times are from the gateways' nodes. A time in the future has the lowest
// priority and is replaced by any other, because otherwise a clock that was wrong once would determine it for years.
func setLastSync(st *v1alpha1.GatewaySyncStatus, rows fleet, now time.Time) {
	future := func(at *metav1.Time) bool { return at.After(now.Add(maxClockLead)) }
	later := func(a, b *metav1.Time) bool {
		if future(a) != future(b) {
			return future(b)
		}
		return b.Before(a)
	}
	var last *metav1.Time
	for i := range rows {
		if g := &rows[i]; g.delivered && g.LastSyncTime != nil && (last == nil || later(g.LastSyncTime, last)) {
			last = g.LastSyncTime
		}
	}
	if was := st.LastSyncTime; last == nil || was != nil && !future(was) && last.Before(was) {
		return
	}
	st.LastSyncTime = last.DeepCopy()
}

// handledRequest returns the request that every gateway has handled, or that was given up because there were no agents.
func handledRequest(f *facts, p progress) string {
	at, handled := f.Ref.Desired.RequestedAt, f.last.LastHandledRequest
	if at == "" {
		return handled
	}
	if f.Target.RequestedAt == at && f.resolved && f.fleet.allHandled() || p.gaveUp {
		handled = at
	}
	if handled == at && reopened(f, p) {
		return ""
	}
	return handled
}

// reopened reports whether the current request was only given up because there were no agents, and now there are. A given-up
// request for which git was not polled stays given up while the deadline is over, because otherwise agents that come and go would
// restart the wait each time.
func reopened(f *facts, p progress) bool {
	if f.away != nil || len(f.fleet) == 0 {
		return false
	}
	at := f.Ref.Desired.RequestedAt
	if f.Target.RequestedAt != at { // git was not polled for it
		return !p.stalled || p.ready.reason != v1alpha1.ReasonProgressDeadlineExceeded
	}
	ready := f.lastCondition(v1alpha1.ConditionReady)
	givenUp := ready != nil && ready.Status == metav1.ConditionUnknown || f.last.Target != nil && f.last.Target.RequestedAt != at
	return givenUp && !f.fleet.allHandled()
}
