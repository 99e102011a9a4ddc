package status

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// verdict returns the first state of the fleet that applies.
func (w *writer) verdict() verdict {
	gs, n := w.GatewaySync, len(w.rows)
	ref := failure.Reason(w.Ref.Err, "")
	if w.Ref.Err != nil && ref == "" {
		ref = v1alpha1.ReasonGitUnreachable
	}
	switch {
	case w.Invalid != nil:
		return verdict{metav1.ConditionFalse, failure.Reason(w.Invalid, v1alpha1.ReasonProfilesInvalid), w.Invalid.Error(), ""}
	case w.Ref.Err != nil && (!w.resolved || ref.Class() == v1alpha1.ClassStalled):
		return verdict{metav1.ConditionFalse, ref, meta.FindStatusCondition(w.next.Conditions, v1alpha1.ConditionRefResolved).Message, ""}
	case w.absence != nil:
		return verdict{metav1.ConditionUnknown, v1alpha1.ReasonAgentsAway, w.describeAbsent(), ""}
	case n == 0:
		return verdict{metav1.ConditionUnknown, v1alpha1.ReasonNoGateways, NoGateways(gs.Name), ""}
	case !w.resolved:
		return verdict{metav1.ConditionFalse, v1alpha1.ReasonProgressing, "asking git for " + w.Ref.Desired.Ref, ""}
	case w.rolling() && !gs.Paused():
		return w.rolloutVerdict()
	case w.synced == n && gs.Paused():
		return verdict{metav1.ConditionTrue, v1alpha1.ReasonPaused, w.allRun() + "; paused", ""}
	case w.synced == n && w.unanswered():
		return verdict{metav1.ConditionFalse, ref, meta.FindStatusCondition(w.next.Conditions, v1alpha1.ConditionRefResolved).Message, ""}
	case w.synced == n:
		return verdict{metav1.ConditionTrue, v1alpha1.ReasonSynced, w.heldOff() + w.allRun(), w.heldBack()}
	case gs.Paused():
		return verdict{metav1.ConditionFalse, v1alpha1.ReasonPaused, fmt.Sprintf("paused; %d of %d gateways run %s", w.synced, n, w.describeDesired()), ""}
	}
	return w.behind()
}

// heldBack returns the summary if a rollback is in force.
func (w *writer) heldBack() string {
	if w.heldOff() == "" {
		return ""
	}
	return string(v1alpha1.ReasonRolledBack)
}

// unanswered reports whether a poll was requested and failed. It counts as work in progress, and waiting clients get the result
// at the deadline. A new request does not change that before one has succeeded.
func (w *writer) unanswered() bool {
	at, ready := w.Ref.Desired.RequestedAt, w.lastCondition(v1alpha1.ConditionReady)
	asked := w.Ref.Answered == at || ready != nil && ready.Status == metav1.ConditionFalse
	return w.Ref.Err != nil && at != "" && asked && w.Target.RequestedAt != at
}

func (w *writer) describeDesired() string {
	if strings.HasPrefix(w.Target.Commit, w.Target.Ref) {
		return short(w.Target.Commit)
	}
	return w.Target.Ref + " at " + short(w.Target.Commit)
}

func (w *writer) allRun() string {
	if len(w.rows) == 1 {
		return v1alpha1.GatewayLabel(w.rows[0].Name, w.rows[0].PodName) + " runs " + w.describeDesired()
	}
	return fmt.Sprintf("all %d gateways run %s", len(w.rows), w.describeDesired())
}

// rests reports whether a gateway is behind on purpose.
func rests(r v1alpha1.Reason) bool {
	return r == v1alpha1.ReasonPaused || r == v1alpha1.ReasonDryRun
}

// Planned reports whether a gateway or a fleet with this reason waits for a time that the spec names, for the rollout, or for an approval.
// No deadline runs while nothing else is missing.
func Planned(r v1alpha1.Reason) bool {
	switch r {
	case v1alpha1.ReasonMaintenanceWindow, v1alpha1.ReasonGateClosed, v1alpha1.ReasonApprovalNeeded, v1alpha1.ReasonRolloutSoaking:
		return true
	}
	return false
}

// weight orders the reasons of gateways that are not synced: those that need a person come first.
func weight(r v1alpha1.Reason) int {
	switch {
	case r == v1alpha1.ReasonMaintenanceWindow: // what gateways of an open step wait for
		return 0
	case Planned(r): // says something only if nothing else is missing
		return -1
	case rests(r):
		return 2
	}
	switch r.Class() {
	case v1alpha1.ClassStalled:
		return 6
	case v1alpha1.ClassHeld:
		return 5
	case v1alpha1.ClassNotInjected:
		return 4
	case v1alpha1.ClassRetry:
		return 3
	default:
		return 1
	}
}

// behind returns the verdict of a fleet with gateways that are not synced: the reason with the highest weight.
func (w *writer) behind() verdict {
	var worst *gateway
	others := 0
	for i := range w.rows {
		g := &w.rows[i]
		switch {
		case g.synced:
		case worst == nil:
			worst = g
		case weight(g.Reason) > weight(worst.Reason):
			worst, others = g, others+1
		default:
			others++
		}
	}
	message := fmt.Sprintf("%d of %d gateways run %s; %s", w.synced, len(w.rows), w.describeDesired(), v1alpha1.GatewayLabel(worst.Name, worst.PodName))
	if worst.Message != "" {
		message += ": " + Cut(worst.Message, maxMessage/2)
	}
	if others > 0 {
		message += fmt.Sprintf("; %d more", others)
	}
	reason := worst.Reason
	if reason == "" || worst.Reason.Class() == v1alpha1.ClassDone && !rests(reason) {
		reason = v1alpha1.ReasonProgressing
	}
	return verdict{metav1.ConditionFalse, reason, message, nameWithReason(worst.Name, reason, others)}
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

// setSummary sets status.summary.
func (w *writer) setSummary(v verdict, overdue bool) {
	s := v.short
	if s == "" {
		s = string(v.reason)
	}
	changed := 0
	for i := range w.rows {
		if w.rows[i].Drift > 0 {
			changed++
		}
	}
	switch {
	case overdue:
		s = "overdue: " + s
	case v.status == metav1.ConditionTrue && w.Ref.Err != nil:
		s += "; git: " + string(failure.Reason(w.Ref.Err, v1alpha1.ReasonGitUnreachable))
	case v.status == metav1.ConditionTrue && changed > 0:
		s += fmt.Sprintf("; drift on %d", changed)
	}
	w.next.Summary = Cut(s, 64)
}

// setAllSynced sets AllGatewaysSynced, which describes the gateways alone: an unreachable git server does not change what they
// run.
func (w *writer) setAllSynced(v verdict) {
	switch n := len(w.rows); {
	case w.absence != nil:
		w.set(v1alpha1.ConditionAllGatewaysSynced, metav1.ConditionUnknown, v1alpha1.ReasonAgentsAway, w.describeAbsent())
	case n == 0:
		w.set(v1alpha1.ConditionAllGatewaysSynced, metav1.ConditionUnknown, v1alpha1.ReasonNoGateways, "no gateway was discovered")
	case w.resolved && w.synced == n && !w.rolling():
		w.set(v1alpha1.ConditionAllGatewaysSynced, metav1.ConditionTrue, v1alpha1.ReasonSynced, w.allRun())
	case w.resolved && v.status != metav1.ConditionTrue && w.Ref.Err == nil:
		w.set(v1alpha1.ConditionAllGatewaysSynced, metav1.ConditionFalse, v.reason, v.message)
	case w.resolved:
		b := w.behind()
		w.set(v1alpha1.ConditionAllGatewaysSynced, metav1.ConditionFalse, b.reason, b.message)
	default:
		w.set(v1alpha1.ConditionAllGatewaysSynced, metav1.ConditionFalse, v1alpha1.ReasonProgressing, "their desired commit is not known yet")
	}
}

// setReady sets Ready, and Reconciling or Stalled while they are true. It returns when the progress deadline ends.
func (w *writer) setReady(v verdict) time.Time {
	class := v.reason.Class()
	// A fleet that is paused or has no gateways waits for nothing.
	stalled := v.status != metav1.ConditionTrue && class == v1alpha1.ClassStalled
	working := v.status != metav1.ConditionTrue && class != v1alpha1.ClassStalled && class != v1alpha1.ClassDone
	again := time.Time{}
	w.setSummary(v, false)
	if working && Planned(v.reason) {
		w.set(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v.reason, v.message)
	} else if working {
		since, over := w.since()
		limit, err := w.GatewaySync.Spec.Deadline()
		if err != nil {
			limit = v1alpha1.DefaultProgressDeadline
		}
		away := v.status == metav1.ConditionUnknown
		if away {
			since, over = w.absence.Begun(w.same())
		}
		end := since.Add(limit)
		if over || !w.Now.Before(end) {
			stalled, working = true, false
			w.setSummary(v, true)
			if away && w.Ref.Desired.RequestedAt != "" {
				w.next.LastHandledRequest = w.Ref.Desired.RequestedAt // given up: clients that wait get the deadline as result
			}
			if away && !w.absence.Over {
				again = w.absence.Until // then they may be gone for good
			}
			goes := ", work goes on"
			if away {
				goes = ""
			}
			v = verdict{v.status, v1alpha1.ReasonProgressDeadlineExceeded, fmt.Sprintf("not done within %s%s: %s: %s", limit, goes, v.reason, v.message), v.short}
		} else {
			again = end
			w.set(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v.reason, v.message)
			meta.FindStatusCondition(w.next.Conditions, v1alpha1.ConditionReconciling).LastTransitionTime = metav1.NewTime(since)
		}
	}
	if !working {
		meta.RemoveStatusCondition(&w.next.Conditions, v1alpha1.ConditionReconciling)
	}
	if stalled {
		w.set(v1alpha1.ConditionStalled, metav1.ConditionTrue, v.reason, v.message)
	} else {
		meta.RemoveStatusCondition(&w.next.Conditions, v1alpha1.ConditionStalled)
	}
	w.set(v1alpha1.ConditionReady, v.status, v.reason, v.message)
	return again
}

// since returns when the current work began, see sinceTarget. Each step of a rollout has the whole time.
func (w *writer) since() (began time.Time, over bool) {
	began, over = w.sinceTarget()
	r := w.next.Rollout
	if !w.rolling() || r.Phase != v1alpha1.RolloutProgressing || r.Since == nil {
		return began, over
	}
	if stalled := w.lastCondition(v1alpha1.ConditionStalled); over && stalled != nil && !r.Since.After(stalled.LastTransitionTime.Time) || !r.Since.After(began) && !over {
		return began, over
	}
	return r.Since.Time, false
}

// sinceTarget returns when the current work began: with a change of generation, ref or commit, or when a gateway fell back. The
// condition Reconciling stores it for the next lead. over means that the deadline of this work ended before and there was no
// new request. A short absence of the agents changes neither. After an absence beyond the deadline, the time starts again.
func (w *writer) sinceTarget() (began time.Time, over bool) {
	same := w.same()
	if c := w.lastCondition(v1alpha1.ConditionReconciling); same && c != nil && c.Status == metav1.ConditionTrue && !c.LastTransitionTime.After(w.now.Time) {
		if Planned(v1alpha1.Reason(c.Reason)) { // the work begins now
			return w.now.Time, false
		}
		return c.LastTransitionTime.Time, false
	}
	c := w.lastCondition(v1alpha1.ConditionStalled)
	ready := w.lastCondition(v1alpha1.ConditionReady)
	over = same && w.last.Target.RequestedAt == w.next.Target.RequestedAt && c != nil && c.Reason == string(v1alpha1.ReasonProgressDeadlineExceeded) &&
		ready != nil && (ready.Status == metav1.ConditionFalse || ready.Status == metav1.ConditionUnknown && !Absent(w.GatewaySync, "", w.Now).Over)
	return w.now.Time, over
}

// same reports whether the target is that of the last status.
func (w *writer) same() bool {
	a, b := w.last.Target, w.next.Target
	return !w.moved && w.last.ObservedGeneration == w.GatewaySync.Generation && a != nil && b != nil && a.Ref == b.Ref && a.Commit == b.Commit
}

const maxHistory = 10

// setRecords updates the last sync, the last good commit, the history, and the last handled request.
func (w *writer) setRecords() {
	st := &w.next
	w.setLastSync()
	if at := w.Target.RequestedAt; at != "" && at == w.Ref.Desired.RequestedAt && w.resolved &&
		!slices.ContainsFunc(w.rows, func(g gateway) bool { return !g.handled }) {
		st.LastHandledRequest = at
	}
	if !w.resolved || w.synced != len(w.rows) || w.synced == 0 || w.rolling() {
		return
	}
	if g := st.LastGood; g == nil || g.Commit != w.Target.Commit || g.Ref != w.Target.Ref {
		good := v1alpha1.CommitRecord{Ref: w.Target.Ref, Commit: w.Target.Commit, At: w.now}
		st.LastGood = &good
		st.History = append([]v1alpha1.CommitRecord{good}, st.History[:min(len(st.History), maxHistory-1)]...)
	}
}

// early is how far the clock of a gateway's node may be ahead.
const early = time.Minute

// setLastSync sets the last delivered sync. The times are from the gateways' nodes. A time in the future has the lowest priority
// and is replaced by any other, because otherwise a clock that was wrong once would determine it for years.
func (w *writer) setLastSync() {
	future := func(at *metav1.Time) bool { return at.After(w.Now.Add(early)) }
	later := func(a, b *metav1.Time) bool {
		if future(a) != future(b) {
			return future(b)
		}
		return b.Before(a)
	}
	var last *gateway
	for i := range w.rows {
		if g := &w.rows[i]; g.delivered && g.LastSyncTime != nil && (last == nil || later(g.LastSyncTime, last.LastSyncTime)) {
			last = g
		}
	}
	st := &w.next
	switch was := st.LastSyncTime; {
	case last == nil, was != nil && was.Equal(last.LastSyncTime):
		return
	case was != nil && !future(was) && !was.Before(last.LastSyncTime):
		return
	}
	st.LastSyncTime = last.LastSyncTime.DeepCopy()
	st.LastSyncRef, st.LastSyncCommit, st.LastSyncCommitShort = last.SyncedRef, last.SyncedCommit, short(last.SyncedCommit)
	if v1alpha1.IsCommit(last.SyncedRef) { // of a rollback; the column LAST REF shows it
		st.LastSyncRef = short(last.SyncedRef)
	}
}

// reopenRequest resets a request that was only given up because there were no agents, and now there are. While the deadline is over
// and git was not polled, it stays given up, because agents that come and go would restart the wait each time.
func (w *writer) reopenRequest() {
	at, ready := w.Ref.Desired.RequestedAt, w.lastCondition(v1alpha1.ConditionReady)
	if at == "" || w.next.LastHandledRequest != at || w.absence != nil || len(w.rows) == 0 {
		return
	}
	stalled := meta.FindStatusCondition(w.next.Conditions, v1alpha1.ConditionStalled)
	over := stalled != nil && stalled.Reason == string(v1alpha1.ReasonProgressDeadlineExceeded)
	givenUp := ready != nil && ready.Status == metav1.ConditionUnknown || w.last.Target != nil && w.last.Target.RequestedAt != at
	unhandled := slices.ContainsFunc(w.rows, func(g gateway) bool { return !g.handled })
	if asked := w.Target.RequestedAt == at; asked && givenUp && unhandled || !asked && !over {
		w.next.LastHandledRequest = ""
	}
}
