// Package status computes the status of a GatewaySync: conditions, rows, the outcome, and the Events of a change. The lead calls Summarize
// with everything that agents report. While no agent leads, the injector calls WithoutLead with the last status and the pods.
//
// Both functions first compute the facts: the fleet, and how far it is with the desired ref. Each part of the status is then a function
// of these facts.
package status

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/desiredref"
)

// Seen is the input of Summarize.
type Seen struct {
	// GatewaySync holds the last status. If Invalid says that the spec cannot be decoded, it has only metadata and status.
	GatewaySync *v1alpha1.GatewaySync
	// Invalid is why the spec is invalid; nil if it is valid.
	Invalid error
	// Flawed says, by name, why a profile is invalid.
	Flawed map[string]error
	// Ref is what is known of the desired ref.
	Ref Ref
	// Target is the last published target.
	Target v1alpha1.SyncTargetSpec
	// Subject is TargetStatus.Subject for the commit of Target; "" if it is not known.
	Subject string
	// Rollout is how far the rollout of the target is; nil if all gateways change at once.
	Rollout *v1alpha1.RolloutStatus
	Reports []*v1alpha1.SyncReport
	// Unreadable says, by name, why reports cannot be decoded.
	Unreadable map[string]error
	Pods       []Pod
	// Sole means that the namespace has no other GatewaySync, so that pods need not name theirs.
	Sole bool
	// Now is from the API server's clock, which leads and injector share, because it is compared with times of the status.
	Now time.Time
}

// Ref is what is known of the desired ref.
type Ref struct {
	Desired desiredref.Desired
	// Err is why it is not resolved, or why the last poll failed.
	Err error
	// Polled means that this lead has polled it. Until then the result of an earlier lead counts.
	Polled bool
	// Answered is the last stoker.io/requested-at for which git was polled, with any outcome.
	Answered string
	// Polling is true during a poll.
	Polling bool
	// HostKey means that the ssh host key of the git host was accepted.
	HostKey bool
}

// Summary is the output of Summarize.
type Summary struct {
	Status v1alpha1.GatewaySyncStatus
	// Events are the changes since the last status, to be sent once this one is written.
	Events []Event
	// Again is when the summary changes without any other change; zero for never.
	Again time.Time
	// Discovered is the number of gateways, and Synced how many of them run the desired ref.
	Discovered, Synced int
	// States are the numbers of gateways by state.
	States map[v1alpha1.GatewaySyncState]int
}

// Summarize returns the status of a GatewaySync as its lead writes it. It is pure. For the same input it returns the existing
// status and no events.
func Summarize(s Seen) Summary {
	gs := s.GatewaySync
	f := assess(s)
	st := gs.Status.DeepCopy()
	observe(st, gs)
	if s.Target.Commit != "" && !annotation.SameSync(s.Target.Requests, annotation.Hash(gs)) { // no agent knows of a new request, such as a retry
		st.ObservedRequest = f.last.ObservedRequest
	}
	st.GatewaysReady = fmt.Sprintf("%d/%d", f.running(), len(f.fleet))
	st.Target, st.Rollout = f.target, s.Rollout
	if d := s.Ref.Desired; d.Ref != "" {
		st.Request = d.Status()
	}
	for _, c := range Conditions {
		if c.compute != nil {
			putCondition(st, c.Type, c.compute(f))
		}
	}
	v := judge(f)
	putCondition(st, v1alpha1.ConditionAllGatewaysSynced, allGatewaysSynced(f, v))
	p := progressOf(f, v)
	p.write(st, f)
	setLastSync(st, f.fleet, s.Now)
	setLastGood(st, f)
	st.LastHandledRequest = handledRequest(f, p)
	st.Outcome = outcome(f, meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReady), st.LastHandledRequest)
	st.Rollback, st.Retry, st.Approval = rollback(f, st.LastGood), retry(f), approval(f)
	st.DiscoveredGateways = fitRows(f.fleet)
	return Summary{
		Status: *st, Events: transitions(f, st), Again: p.again, Discovered: len(f.fleet), Synced: f.running(), States: f.fleet.states(),
	}
}

// observe sets what the status is about: a reader compares it with the object.
func observe(st *v1alpha1.GatewaySyncStatus, gs *v1alpha1.GatewaySync) {
	st.ObservedGeneration, st.ObservedRequest = gs.Generation, desiredref.Key(gs)
}

const maxHistory = 10

// setLastGood makes the target the last good commit, and adds it to the history, if all gateways run it and its rollout is done.
func setLastGood(st *v1alpha1.GatewaySyncStatus, f *facts) {
	if synced := f.fleet.synced(); !f.resolved || synced != len(f.fleet) || synced == 0 || f.rolling() {
		return
	}
	if g := st.LastGood; g == nil || g.Commit != f.Target.Commit || g.Ref != f.Target.Ref {
		good := v1alpha1.CommitRecord{Ref: f.Target.Ref, Commit: f.Target.Commit, Subject: f.target.Subject, At: f.now}
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
