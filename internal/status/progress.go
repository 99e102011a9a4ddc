package status

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/api/v1alpha1/syntax"
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

// Standing is the state of a gateway for the published target, from which a rollout is decided.
type Standing struct {
	Name string
	// Pod is the name of its pod.
	Pod string
	// Label also names the pod if its name differs.
	Label string
	// Synced means that the gateway runs the target, verified.
	Synced bool
	// Stale means that it said so of an earlier revision of the target, and has not answered this one.
	Stale   bool
	Phase   v1alpha1.GatewaySyncState
	Reason  v1alpha1.Reason
	Message string
	// Commit is the commit on its disk.
	Commit string
	// Planned is the commit of its dry run.
	Planned string
}

// Standings returns the states of the gateways, sorted by name. A report about an earlier target says Pending, and so does a terminating pod, which
// may be one that the target broke.
func Standings(s Seen) []Standing {
	rows := gateways(&s, true)
	out := make([]Standing, len(rows))
	for i := range rows {
		g := &rows[i]
		out[i] = Standing{Name: g.Name, Pod: g.PodName, Label: gatewaypod.GatewayLabel(g.Name, g.PodName), Synced: g.synced, Stale: g.stale, Phase: g.SyncStatus, Reason: g.Reason,
			Message: g.Message, Commit: g.SyncedCommit, Planned: g.planned}
	}
	return out
}

// rolloutVerdict returns the state of a fleet during a rollout.
func rolloutVerdict(f *facts) verdict {
	r := f.Rollout
	stage := func(reason v1alpha1.Reason) string {
		if r.Stage == "" {
			return ""
		}
		return nameWithReason("stage "+r.Stage, reason, 0)
	}
	says := func(reason v1alpha1.Reason) verdict {
		return verdict{metav1.ConditionFalse, reason, f.fleet.countSynced(f.describeTarget()) + "; " + r.Message, stage(reason)}
	}
	switch r.Phase {
	case v1alpha1.RolloutAborted:
		return verdict{metav1.ConditionFalse, v1alpha1.ReasonCanaryStageFailed, r.Message, stage(v1alpha1.ReasonCanaryStageFailed)}
	case v1alpha1.RolloutWaiting:
		return says(v1alpha1.ReasonApprovalNeeded)
	case v1alpha1.RolloutSoaking:
		return says(v1alpha1.ReasonRolloutSoaking)
	case v1alpha1.RolloutPlanning:
		return says(v1alpha1.ReasonProgressing)
	}
	if f.fleet.synced() == len(f.fleet) {
		return says(v1alpha1.ReasonProgressing)
	}
	v := f.fleet.behind(f.describeTarget())
	if planned(v.reason) && v.reason != v1alpha1.ReasonMaintenanceWindow { // the reports of the open step are on their way
		return says(v1alpha1.ReasonProgressing)
	}
	return v
}

// rolloutEvents tells which stage began or failed.
func rolloutEvents(f *facts, emit eventFunc) {
	was, is := f.last.Rollout, f.Rollout
	if is == nil || was != nil && was.Commit == is.Commit && was.Phase == is.Phase && was.Stage == is.Stage {
		return
	}
	if was == nil || was.Commit != is.Commit {
		was = &v1alpha1.RolloutStatus{}
	}
	switch is.Phase {
	case v1alpha1.RolloutProgressing, v1alpha1.RolloutSoaking:
		if is.Step > was.Step && is.Stage != "" && (is.Stage != was.Stage || was.Phase == v1alpha1.RolloutWaiting) {
			approved := ""
			if annotation.Approved(f.GatewaySync, is.Stage, is.Commit) {
				approved = "; approved as " + is.Stage + "@" + is.Commit
			}
			emit(false, v1alpha1.EventStageOpened, "stage %s: its gateways may follow %s%s", is.Stage, syntax.ShortCommit(is.Commit), approved)
		}
	case v1alpha1.RolloutWaiting:
		emit(true, v1alpha1.EventSyncHeld, "%s: %s", v1alpha1.ReasonApprovalNeeded, is.Message)
	case v1alpha1.RolloutAborted:
		emit(true, v1alpha1.EventCanaryStageFailed, "%s", is.Message)
	case v1alpha1.RolloutPlanning, v1alpha1.RolloutDone:
	}
}
