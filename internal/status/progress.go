package status

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
)

// progress is a verdict after the progress deadline is taken into account.
type progress struct {
	ready   verdict // what Ready says
	summary string
	// working means that Reconciling is true, and stalled that Stalled is. A fleet that waits for nothing has neither.
	working, stalled bool
	// since is when the work began. It is set only while a deadline runs.
	since *metav1.Time
	// gaveUp means that the deadline has passed without agents. Clients that wait get ProgressDeadlineExceeded as the result of
	// their request.
	gaveUp bool
	// again is when the status changes by time alone: at the end of the progress deadline or of the absence; zero for never.
	again time.Time
}

// progressOf returns how far the work is that a verdict describes.
func progressOf(f *facts, v verdict) progress {
	p := progress{ready: v, summary: summary(f, v, false)}
	switch class := v.reason.Class(); {
	case v.status == metav1.ConditionTrue, class == v1alpha1.ClassDone, v.reason == v1alpha1.ReasonRestored: // paused, without gateways, or as a user left it
		return p
	case class == v1alpha1.ClassStalled:
		p.stalled = true
		return p
	case planned(v.reason):
		p.working = true
		return p
	}
	since, over := workBegan(f)
	limit := effective.ProgressDeadline(&f.GatewaySync.Spec)
	away := v.status == metav1.ConditionUnknown
	if away {
		since, over = f.away.Begun(f.sameTarget)
	}
	end := since.Add(limit)
	if !over && f.Now.Before(end) {
		p.working, p.since, p.again = true, &metav1.Time{Time: since}, end
		return p
	}
	p.stalled, p.gaveUp, p.summary = true, away, summary(f, v, true)
	if away && !f.away.Over {
		p.again = f.away.Until // after that, the gateways may count as gone, see Absence.Gone
	}
	suffix := ", still trying"
	if away {
		suffix = ""
	}
	p.ready.reason, p.ready.message = v1alpha1.ReasonProgressDeadlineExceeded, fmt.Sprintf("not done within %s%s: %s: %s", limit, suffix, v.reason, v.message)
	return p
}

// write sets Ready, Reconciling, Stalled and the summary.
func (p progress) write(st *v1alpha1.GatewaySyncStatus, f *facts) {
	st.Summary = p.summary
	var reconciling, stalled *metav1.Condition
	if p.working {
		reconciling = f.condition(metav1.ConditionTrue, p.ready.reason, p.ready.message)
	}
	if p.stalled {
		stalled = f.condition(metav1.ConditionTrue, p.ready.reason, p.ready.message)
	}
	putCondition(st, v1alpha1.ConditionReconciling, reconciling)
	if p.since != nil {
		meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReconciling).LastTransitionTime = *p.since
	}
	putCondition(st, v1alpha1.ConditionStalled, stalled)
	putCondition(st, v1alpha1.ConditionReady, f.condition(p.ready.status, p.ready.reason, p.ready.message))
}

// workBegan returns when the current work began, see targetBegan. Each step of a rollout has the whole time.
func workBegan(f *facts) (began time.Time, over bool) {
	began, over = targetBegan(f)
	r := f.Rollout
	if !f.rolling() || r.Phase != v1alpha1.RolloutProgressing || r.Since == nil {
		return began, over
	}
	if !over && !r.Since.After(began) { // the work began during this step
		return began, false
	}
	if stalled := f.lastCondition(v1alpha1.ConditionStalled); over && stalled != nil && !r.Since.After(stalled.LastTransitionTime.Time) {
		return began, true // the deadline ended during this step
	}
	return r.Since.Time, false
}

// targetBegan returns when the current work began: with a change of generation, ref or commit, or when a gateway fell behind. The
// condition Reconciling stores it for the next lead. over means that the deadline of this work ended before and there was no
// new request. A short absence of the agents changes neither. After an absence beyond the deadline, the time starts again.
func targetBegan(f *facts) (began time.Time, over bool) {
	if !f.sameTarget {
		return f.now.Time, false
	}
	if c := f.lastCondition(v1alpha1.ConditionReconciling); c != nil && c.Status == metav1.ConditionTrue && !c.LastTransitionTime.After(f.now.Time) {
		if planned(v1alpha1.Reason(c.Reason)) { // the work begins now
			return f.now.Time, false
		}
		return c.LastTransitionTime.Time, false
	}
	c := f.lastCondition(v1alpha1.ConditionStalled)
	ready := f.lastCondition(v1alpha1.ConditionReady)
	over = f.last.Target.RequestedAt == f.target.RequestedAt && c != nil && c.Reason == string(v1alpha1.ReasonProgressDeadlineExceeded) &&
		ready != nil && (ready.Status == metav1.ConditionFalse || ready.Status == metav1.ConditionUnknown && !Absent(f.GatewaySync, "", f.Now).Over)
	return f.now.Time, over
}
