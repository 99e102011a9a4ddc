package status

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/api/v1alpha1/schedule"
	"stoker.io/stoker/internal/failure"
)

// outcome returns status.outcome, the answer for all readers. The condition ready says whether the gateways run the commit. The
// outcome says more: whether they have handled the request, and whether waiting helps. handledRequest is
// status.lastHandledRequest.
func outcome(f *facts, ready *metav1.Condition, handledRequest string) *v1alpha1.Outcome {
	d := f.Ref.Desired
	// polled: git was polled for the request. handled: status.lastHandledRequest names it.
	polled := d.RequestedAt == "" || f.Ref.Answered == d.RequestedAt
	handled := d.RequestedAt == "" || handledRequest == d.RequestedAt
	o := &v1alpha1.Outcome{Phase: v1alpha1.OutcomeProgressing, Ref: d.Ref, Total: int32(len(f.fleet)),
		Reason: v1alpha1.Reason(ready.Reason), Message: ready.Message}
	say := func(phase v1alpha1.OutcomePhase, reason v1alpha1.Reason, message string) {
		o.Phase, o.Reason, o.Message = phase, admitted(reason), failure.Cut(message, maxMessage)
	}
	if polled && f.resolved {
		o.Commit, o.Synced = f.Target.Commit, int32(f.fleet.synced())
	}
	s := f.fleet.count(polled, func(g *gateway) bool { return handled || g.handled && f.Target.RequestedAt == d.RequestedAt })
	o.Failed = int32(s.failed)
	deadline := o.Reason == v1alpha1.ReasonProgressDeadlineExceeded
	refused := f.Ref.Err != nil && failure.Reason(f.Ref.Err, "").Class() == v1alpha1.ClassStalled && ready.Status != metav1.ConditionTrue
	switch ready := ready.Status == metav1.ConditionTrue; {
	case f.Invalid != nil:
		say(v1alpha1.OutcomeFailed, failure.Reason(f.Invalid, v1alpha1.ReasonProfilesInvalid), f.Invalid.Error())
	case refused && polled:
		say(v1alpha1.OutcomeFailed, failure.Reason(f.Ref.Err, ""), refMessage(f))
	case ready && polled && handled:
		o.Phase = v1alpha1.OutcomeSucceeded
		if prefix := f.rollbackPrefix(); prefix != "" {
			say(o.Phase, v1alpha1.ReasonRolledBack, prefix+strings.TrimPrefix(o.Message, prefix))
		}
	case o.Reason == v1alpha1.ReasonAgentsAway, o.Reason == v1alpha1.ReasonNoGateways:
	case f.rolling() && f.Rollout.Phase == v1alpha1.RolloutAborted && polled:
		say(v1alpha1.OutcomeFailed, v1alpha1.ReasonCanaryStageFailed, f.Rollout.Message)
	case s.broken != nil:
		say(v1alpha1.OutcomeFailed, s.broken.Reason, gatewaypod.GatewayLabel(s.broken.Name, s.broken.PodName)+": "+s.broken.Message)
	case deadline && (polled || handled):
		o.Phase = v1alpha1.OutcomeFailed
	case f.GatewaySync.Paused():
		say(v1alpha1.OutcomePaused, v1alpha1.ReasonPaused, "paused; "+strings.TrimPrefix(o.Message, "paused; "))
	case !polled:
		say(o.Phase, v1alpha1.ReasonWaitingForLead, "git was not polled for "+d.Ref+" since it was requested")
	case ready:
		say(o.Phase, v1alpha1.ReasonProgressing, o.Message+"; not every gateway has handled the request")
	case f.resolved && s.behind > 0:
		o.Phase = waiting(f, s, handled)
	}
	return o
}

// waiting returns the phase of gateways that are behind without a failure: whether they go on by themselves.
func waiting(f *facts, s counts, handled bool) v1alpha1.OutcomePhase {
	switch {
	case f.rolling():
		if f.Rollout.Phase == v1alpha1.RolloutWaiting {
			return v1alpha1.OutcomeHeld
		}
	case s.setting == s.behind && handled:
		return v1alpha1.OutcomePaused
	case s.user > 0 && s.user+s.peer+s.setting == s.behind:
		return v1alpha1.OutcomeHeld
	}
	return v1alpha1.OutcomeProgressing
}

// refMessage returns why the desired ref is refused, with what the gateways do meanwhile if the lead says so.
func refMessage(f *facts) string {
	if f.Ref.Polled {
		return refResolved(f).Message
	}
	return f.Ref.Err.Error()
}

// counts classifies the gateways that are behind by what they wait for.
type counts struct {
	behind     int      // all of them
	setting    int      // see waitsForSetting
	user, peer int      // for a user, or for the other node of a redundant pair
	failed     int      // waiting does not help them
	broken     *gateway // the first one that failed on the request
}

// count counts the gateways that do not run the commit, or have not handled the request.
func (rows fleet) count(polled bool, handled func(*gateway) bool) counts {
	var c counts
	for i := range rows {
		g := &rows[i]
		hasHandled := handled(g)
		if g.synced && hasHandled {
			continue
		}
		c.behind++
		switch class := g.Reason.Class(); {
		case g.synced:
		case class == v1alpha1.ClassStalled, class == v1alpha1.ClassHeld && g.SyncStatus == v1alpha1.GatewayError:
			// With designerSessionPolicy fail, an open Designer session fails, too.
			if polled && (hasHandled || g.Reason == v1alpha1.ReasonPodRestartNeeded) {
				c.failed++
				if c.broken == nil {
					c.broken = g
				}
			}
		case waitsForSetting(g.Reason):
			c.setting++
		case g.Reason == v1alpha1.ReasonNoConfigAccess:
			c.peer++
		case class == v1alpha1.ClassHeld:
			c.user++
		}
	}
	return c
}

// rollback returns status.rollback, what a rollback would request now.
func rollback(f *facts, good *v1alpha1.CommitRecord) *v1alpha1.Rollback {
	commit := ""
	if f.resolved {
		commit = f.Target.Commit
	}
	return f.Ref.Desired.Rollback(desiredref.InputsOf(f.GatewaySync), commit, good)
}

// approval returns status.approval, what an approval would approve now.
func approval(f *facts) *v1alpha1.Approval {
	if !f.resolved {
		return nil
	}
	a := &v1alpha1.Approval{Commit: f.Target.Commit, Stage: f.waitingStage()}
	if gs := f.GatewaySync; len(gs.MaintenanceWindows()) > 0 && !annotation.WindowApproved(gs, a.Commit) {
		a.Window = len(f.fleet) == 0 || f.fleet.synced() < len(f.fleet)
	}
	if a.Stage == "" && !a.Window {
		return nil
	}
	return a
}

// waitingStage returns the stage that waits for an approval, or "". After the rollout it is one that got requireApproval while a gateway of it was
// behind.
func (f *facts) waitingStage() string {
	r := f.Rollout
	if r == nil || r.Commit != f.Target.Commit {
		return ""
	}
	switch r.Phase {
	case v1alpha1.RolloutWaiting:
		if slices.Contains(f.GatewaySync.StageNames(), r.Stage) {
			return r.Stage
		}
	case v1alpha1.RolloutDone:
		for i := range f.fleet {
			g := &f.fleet[i]
			if stage := schedule.StageOf(f.GatewaySync, g.Name, g.PodName); g.Reason == v1alpha1.ReasonApprovalNeeded && stage != nil {
				return stage.Name
			}
		}
	case v1alpha1.RolloutPlanning, v1alpha1.RolloutProgressing, v1alpha1.RolloutSoaking, v1alpha1.RolloutAborted:
	}
	return ""
}

// retry returns status.retry, what a retry would request now.
func retry(f *facts) string {
	rollout := f.Rollout
	if f.resolved && (rollout != nil && rollout.Phase == v1alpha1.RolloutAborted && rollout.Commit == f.Target.Commit ||
		slices.ContainsFunc(f.fleet, func(g gateway) bool {
			return g.Reason == v1alpha1.ReasonRolledBack || g.Reason == v1alpha1.ReasonRestored || g.AutoRollback == f.Target.Commit
		})) {
		return f.Target.Commit
	}
	return ""
}
