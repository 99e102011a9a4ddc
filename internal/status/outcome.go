package status

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// setOutcome sets status.outcome, the answer for all readers, from the condition Ready and the rows. Ready says whether the
// gateways run the commit. The outcome says more: whether they have handled the request, and whether waiting helps.
func (w *writer) setOutcome() {
	d, ready := w.Ref.Desired, meta.FindStatusCondition(w.next.Conditions, v1alpha1.ConditionReady)
	polled := d.RequestedAt == "" || w.Ref.Answered == d.RequestedAt
	handled := d.RequestedAt == "" || w.next.LastHandledRequest == d.RequestedAt
	o := &v1alpha1.Outcome{Phase: v1alpha1.OutcomeProgressing, Ref: d.Ref, Total: int32(len(w.rows)),
		Reason: v1alpha1.Reason(ready.Reason), Message: ready.Message}
	say := func(phase v1alpha1.OutcomePhase, reason v1alpha1.Reason, message string) {
		o.Phase, o.Reason, o.Message = phase, reason, Cut(message, maxMessage)
	}
	if polled && w.resolved {
		o.Commit, o.Synced = w.Target.Commit, int32(w.synced)
	}
	s := w.count(polled, handled)
	o.Failed = int32(s.failed)
	deadline := o.Reason == v1alpha1.ReasonProgressDeadlineExceeded
	refused := w.Ref.Err != nil && failure.Reason(w.Ref.Err, "").Class() == v1alpha1.ClassStalled
	switch ready := ready.Status == metav1.ConditionTrue; {
	case w.Invalid != nil:
		say(v1alpha1.OutcomeFailed, failure.Reason(w.Invalid, v1alpha1.ReasonProfilesInvalid), w.Invalid.Error())
	case refused && polled:
		say(v1alpha1.OutcomeFailed, failure.Reason(w.Ref.Err, ""), w.refMessage())
	case ready && polled && handled:
		o.Phase = v1alpha1.OutcomeSucceeded
		if off := w.heldOff(); off != "" {
			say(o.Phase, v1alpha1.ReasonRolledBack, off+strings.TrimPrefix(o.Message, off))
		}
	case o.Reason == v1alpha1.ReasonAgentsAway, o.Reason == v1alpha1.ReasonNoGateways:
	case w.rolling() && w.next.Rollout.Phase == v1alpha1.RolloutAborted && polled:
		say(v1alpha1.OutcomeFailed, v1alpha1.ReasonCanaryStageFailed, w.next.Rollout.Message)
	case s.broken != nil:
		say(v1alpha1.OutcomeFailed, s.broken.Reason, v1alpha1.GatewayLabel(s.broken.Name, s.broken.PodName)+": "+s.broken.Message)
	case deadline && (polled || handled):
		o.Phase = v1alpha1.OutcomeFailed
	case w.GatewaySync.Paused():
		say(v1alpha1.OutcomePaused, v1alpha1.ReasonPaused, "paused; "+strings.TrimPrefix(o.Message, "paused; "))
	case !polled:
		say(o.Phase, v1alpha1.ReasonWaitingForLead, "git was not polled for "+d.Ref+" since it was requested")
	case ready:
		say(o.Phase, v1alpha1.ReasonProgressing, o.Message+"; not every gateway has handled the request")
	case !w.resolved, s.behind == 0:
	case w.rolling():
		if w.next.Rollout.Phase == v1alpha1.RolloutWaiting {
			o.Phase = v1alpha1.OutcomeHeld
		}
	case s.rest == s.behind && handled:
		o.Phase = v1alpha1.OutcomePaused
	case s.user > 0 && s.user+s.peer+s.rest == s.behind:
		o.Phase = v1alpha1.OutcomeHeld
	}
	w.next.Outcome = o
}

// refMessage returns why the desired ref is refused, with what the gateways do meanwhile if the lead says so.
func (w *writer) refMessage() string {
	if c := meta.FindStatusCondition(w.next.Conditions, v1alpha1.ConditionRefResolved); w.Ref.Looked && c != nil {
		return c.Message
	}
	return w.Ref.Err.Error()
}

// counts classifies the gateways that are behind by what they wait for.
type counts struct {
	behind, rest, user, peer, failed int
	broken                           *gateway // the first one that failed on the request
}

// count counts the gateways that do not run the commit, or have not handled the request.
func (w *writer) count(polled, handled bool) counts {
	var c counts
	for i := range w.rows {
		g := &w.rows[i]
		dealt := handled || g.handled && w.Target.RequestedAt == w.Ref.Desired.RequestedAt
		if g.synced && dealt {
			continue
		}
		c.behind++
		switch class := g.Reason.Class(); {
		case g.synced:
		case class == v1alpha1.ClassStalled, class == v1alpha1.ClassHeld && g.SyncStatus == v1alpha1.GatewayError:
			// With designerSessionPolicy fail, an open Designer session fails, too.
			if polled && (dealt || g.Reason == v1alpha1.ReasonPodRestartNeeded) {
				c.failed++
				if c.broken == nil {
					c.broken = g
				}
			}
		case rests(g.Reason):
			c.rest++
		case g.Reason == v1alpha1.ReasonNoConfigAccess:
			c.peer++ // ends without a user
		case class == v1alpha1.ClassHeld:
			c.user++
		}
	}
	return c
}

// observe sets what the outcome is about: a reader compares it with the object.
func (w *writer) observe() {
	w.next.ObservedGeneration, w.next.ObservedRequest = w.GatewaySync.Generation, w.GatewaySync.RequestKey()
}

// observeRetry keeps what the last outcome was about until the target has the request to retry. The rows still show the failure before it.
func (w *writer) observeRetry() {
	if w.Target.Retry != w.GatewaySync.Retry() {
		w.next.ObservedRequest = w.last.ObservedRequest
	}
}

// setRollback sets status.rollback, what a rollback would request now. A rollback lapses when spec.git.ref moves on from the commit
// that is rolled back. If a request led there, a rollback replaces it and keeps the condition of an earlier rollback.
func (w *writer) setRollback() {
	w.next.Rollback = nil
	good, d, spec := w.next.LastGood, w.Ref.Desired, w.GatewaySync.Spec.Git.Ref
	if good == nil || !v1alpha1.IsCommit(good.Commit) {
		return
	}
	r := &v1alpha1.Rollback{Commit: good.Commit}
	runs := strings.EqualFold(d.Ref, good.Commit)
	switch {
	case d.Ref == "": // the request is not valid: a rollback replaces it
	case d.Override:
		if unless := w.GatewaySync.RequestedUnless(); v1alpha1.IsCommit(unless) {
			r.Unless = unless
		}
		runs = runs || w.resolved && w.Target.Commit == good.Commit
	case v1alpha1.IsCommit(spec):
		r.Unless = strings.ToLower(spec)
	case w.resolved:
		r.Unless, runs = w.Target.Commit, runs || w.Target.Commit == good.Commit
	default:
		return // until git was polled
	}
	if runs {
		r.Commit = ""
	}
	w.next.Rollback = r
}

// setRetry sets status.retry, what a retry would request now.
func (w *writer) setRetry() {
	w.next.Retry = ""
	rollout := w.next.Rollout
	if w.resolved && (rollout != nil && rollout.Phase == v1alpha1.RolloutAborted && rollout.Commit == w.Target.Commit ||
		slices.ContainsFunc(w.rows, func(g gateway) bool {
			return g.Reason == v1alpha1.ReasonRolledBack || g.AutoRollback == w.Target.Commit
		})) {
		w.next.Retry = w.Target.Commit
	}
}

// heldOff returns the beginning of the message if a rollback is in force: the fleet is healthy but does not run what the spec
// says.
func (w *writer) heldOff() string {
	unless := w.GatewaySync.RequestedUnless()
	if !w.Ref.Desired.Override || !v1alpha1.IsCommit(unless) {
		return ""
	}
	return fmt.Sprintf("rolled back: %s is held off at %s; ", w.GatewaySync.Spec.Git.Ref, short(unless))
}
