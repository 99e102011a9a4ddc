// Package status computes the status of a GatewaySync: conditions, rows, the outcome, and the Events of a change. The lead calls it
// with everything that agents report. The injector calls it while no agent leads, with nothing but pods.
package status

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Seen is the input of Summarise.
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
	Desired v1alpha1.Desired
	// Err is why it is not resolved, or why the last poll failed.
	Err error
	// Looked means that this lead has polled it. Until then the result of an earlier lead counts.
	Looked bool
	// Answered is the last stoker.io/requested-at for which git was polled, with any outcome.
	Answered string
	// Asking is true during a poll.
	Asking bool
	// HostKey means that the ssh host key of the git host was accepted.
	HostKey bool
}

// Summary is the output of Summarise.
type Summary struct {
	Status v1alpha1.GatewaySyncStatus
	// Events are the changes since the last status, to be sent once this one is written.
	Events []Event
	// Again is when the summary changes without any other change; zero for never.
	Again              time.Time
	Discovered, Synced int
	// States are the numbers of gateways by state.
	States map[v1alpha1.GatewaySyncState]int
}

// Summarise returns the status of a GatewaySync as its lead writes it. It is pure. For the same input it returns the existing
// status and no events.
func Summarise(s Seen) Summary {
	gs := s.GatewaySync
	w := newWriter(s)
	w.next.Rollout = s.Rollout
	w.rows = gateways(&s)
	w.keepAbsent()
	w.rejectUsedProfiles()
	st := &w.next
	w.observe()
	w.observeRetry()
	if s.Invalid == nil {
		st.ProfileCount = int32(min(len(gs.Spec.Sync.Profiles), 1<<20))
	}
	for i := range w.rows {
		if w.rows[i].synced {
			w.synced++
		}
	}
	w.resolved = s.Target.Commit != "" && s.Target.Generation == gs.Generation && s.Target.Ref == s.Ref.Desired.Ref &&
		s.Ref.Desired.CheckCommit(s.Target.Commit) == nil
	run := 0 // while the desired ref is unresolved, no gateway runs it
	if w.resolved {
		run = w.synced
	}
	st.GatewaysReady = fmt.Sprintf("%d/%d", run, len(w.rows))
	w.setTarget()
	w.keepFailureReason()
	w.inheritRefError()
	for _, c := range Conditions {
		if c.set != nil {
			c.set(w)
		}
	}
	verdict := w.verdict()
	w.setAllSynced(verdict)
	w.setRecords()
	again := w.setReady(verdict)
	w.reopenRequest()
	w.setOutcome()
	w.setRollback()
	w.setRetry()
	st.DiscoveredGateways = fitRows(w.rows)
	return Summary{
		Status: w.next, Events: w.transitions(), Again: again, Discovered: len(w.rows), Synced: run, States: w.states(),
	}
}

func (w *writer) states() map[v1alpha1.GatewaySyncState]int {
	states := map[v1alpha1.GatewaySyncState]int{}
	for i := range w.rows {
		states[w.rows[i].SyncStatus]++
	}
	return states
}

// writer is the state of a summary.
type writer struct {
	Seen
	last      *v1alpha1.GatewaySyncStatus
	next      v1alpha1.GatewaySyncStatus
	now       metav1.Time
	rows      []gateway
	synced    int
	resolved  bool // the target is the desired ref
	inherited bool // Ref.Err is from an earlier lead
	moved     bool // without a lead: another ref is desired than the target
	// absence is not nil if gateways are known but none is live; leaving are their terminating pods.
	absence *Absence
	leaving []string
}

func newWriter(s Seen) *writer {
	return &writer{Seen: s, last: &s.GatewaySync.Status, next: *s.GatewaySync.Status.DeepCopy(), now: metav1.NewTime(s.Now.Truncate(time.Second))}
}

// verdict is the state of the fleet for the condition Ready.
type verdict struct {
	status  metav1.ConditionStatus
	reason  v1alpha1.Reason
	message string
	short   string // for status.summary; "" for the reason
}

func (w *writer) set(condition string, status metav1.ConditionStatus, reason v1alpha1.Reason, message string) {
	meta.SetStatusCondition(&w.next.Conditions, metav1.Condition{
		Type: condition, Status: status, Reason: string(reason), Message: Cut(message, maxMessage),
		ObservedGeneration: w.GatewaySync.Generation, LastTransitionTime: w.now,
	})
}

// setTarget sets the target and the request.
func (w *writer) setTarget() {
	d := w.Ref.Desired
	if d.Ref == "" {
		return // the request or the spec is invalid: keep the last target
	}
	t := &v1alpha1.TargetStatus{Ref: d.Ref, RefShort: d.Ref, RequestedBy: d.RequestedBy, RequestedAt: w.Ref.Answered}
	if v1alpha1.IsCommit(d.Ref) {
		t.RefShort = short(d.Ref)
	}
	if w.resolved {
		t.Commit, t.CommitShort = w.Target.Commit, short(w.Target.Commit)
	}
	w.next.Target = t
	w.next.Request = nil
	if d.Over != "" || d.Lapsed != "" {
		w.next.Request = &v1alpha1.RequestStatus{Over: d.Over, Lapsed: d.Lapsed, Refused: d.Refused}
	}
}

// inheritRefError adopts the error of an earlier lead about the same ref, so that it causes no new Event.
func (w *writer) inheritRefError() {
	c := w.lastCondition(v1alpha1.ConditionRefResolved)
	if w.Ref.Looked || w.Ref.Err != nil || c == nil || c.Status != metav1.ConditionFalse ||
		c.ObservedGeneration != w.GatewaySync.Generation || !w.sameRef() {
		return
	}
	w.Ref.Err, w.inherited = failure.New(v1alpha1.Reason(c.Reason), "%s", c.Message), true
}

func (w *writer) setRefResolved() {
	switch err := w.Ref.Err; {
	case err != nil:
		w.next.RefResolutionStatus = v1alpha1.RefResolutionError
		reason, message := failure.Reason(err, v1alpha1.ReasonGitUnreachable), err.Error()
		if w.resolved && !w.inherited {
			message = fmt.Sprintf("%s; the gateways stay at %s", Cut(message, maxMessage-80), short(w.Target.Commit))
		}
		// The text of a network error differs between attempts, for example in a port. Only another reason is a change.
		if c := w.lastCondition(v1alpha1.ConditionRefResolved); c != nil && c.Status == metav1.ConditionFalse && c.Reason == string(reason) &&
			reason.Class() == v1alpha1.ClassRetry && w.sameRef() && c.ObservedGeneration == w.GatewaySync.Generation {
			message = c.Message
		}
		w.set(v1alpha1.ConditionRefResolved, metav1.ConditionFalse, reason, message)
	case w.resolved:
		w.next.RefResolutionStatus = v1alpha1.RefResolved
		message := fmt.Sprintf("%s is at %s", w.Target.Ref, short(w.Target.Commit))
		if w.Target.Ref == w.Target.Commit {
			message = "the repository has commit " + short(w.Target.Commit)
		}
		w.set(v1alpha1.ConditionRefResolved, metav1.ConditionTrue, v1alpha1.ReasonRefResolved, message)
	case w.Ref.Asking:
		w.next.RefResolutionStatus = v1alpha1.RefResolving
		w.set(v1alpha1.ConditionRefResolved, metav1.ConditionUnknown, v1alpha1.ReasonProgressing, "asking git for "+w.Ref.Desired.Ref)
	default:
		w.next.RefResolutionStatus = v1alpha1.RefNotResolved
		w.set(v1alpha1.ConditionRefResolved, metav1.ConditionUnknown, v1alpha1.ReasonProgressing, "git was not asked yet")
	}
}

// sameRef reports whether the last status is about the same ref.
func (w *writer) sameRef() bool {
	return w.last.Target != nil && w.next.Target != nil && w.last.Target.Ref == w.next.Target.Ref
}

func (w *writer) lastCondition(condition string) *metav1.Condition {
	return meta.FindStatusCondition(w.last.Conditions, condition)
}

// setHostKey sets SSHHostKeyVerification for repositories over ssh, and removes it for others.
func (w *writer) setHostKey() {
	const condition = v1alpha1.ConditionSSHHostKeyVerification
	git := w.GatewaySync.Spec.Git
	if w.Invalid == nil && !OverSSH(git.Repo) {
		meta.RemoveStatusCondition(&w.next.Conditions, condition)
		return
	}
	if w.Invalid != nil {
		return
	}
	if git.Auth != nil && git.Auth.SSHKey != nil && git.Auth.SSHKey.InsecureIgnoreHostKey {
		w.set(condition, metav1.ConditionFalse, v1alpha1.ReasonHostKeyUnknown,
			"the git host is not checked: spec.git.auth.sshKey.insecureIgnoreHostKey is set")
		return
	}
	bad := func(r v1alpha1.Reason) bool {
		return r == v1alpha1.ReasonHostKeyUnknown || r == v1alpha1.ReasonHostKeyMismatch
	}
	if r := failure.Reason(w.Ref.Err, ""); bad(r) {
		w.set(condition, metav1.ConditionFalse, r, w.Ref.Err.Error())
		return
	}
	for _, g := range w.rows {
		if bad(g.Reason) {
			w.set(condition, metav1.ConditionFalse, g.Reason, v1alpha1.GatewayLabel(g.Name, g.PodName)+": "+g.Message)
			return
		}
	}
	known := w.lastCondition(condition)
	if w.Ref.HostKey || w.synced > 0 || known != nil && known.Status == metav1.ConditionTrue && w.sameRef() {
		w.set(condition, metav1.ConditionTrue, v1alpha1.ReasonHostKeyVerified, "the git host showed a key that is trusted")
		return
	}
	w.set(condition, metav1.ConditionUnknown, v1alpha1.ReasonProgressing, "the git host was not reached yet")
}

// setSidecars sets SidecarInjected from the pods without an agent, and why an evicted pod has no successor.
func (w *writer) setSidecars(without []string, awaited string) {
	var problems []string
	if len(without) > 0 {
		problems = append(problems, fmt.Sprintf("%s without an agent: %s. Events of the pod say why it was not injected; delete the pod to try again",
			counted(len(without), "pod"), list(without)))
	}
	if awaited != "" {
		problems = append(problems, awaited)
	}
	if len(problems) == 0 {
		w.set(v1alpha1.ConditionSidecarInjected, metav1.ConditionTrue, v1alpha1.ReasonSidecarInjected, "every pod that asks for an agent has one")
		return
	}
	w.set(v1alpha1.ConditionSidecarInjected, metav1.ConditionFalse, v1alpha1.ReasonMissingSidecar, strings.Join(problems, "; "))
}

// podsWithoutAgent returns the pods whose rows say that they have no agent.
func (w *writer) podsWithoutAgent() []string {
	var without []string
	for _, g := range w.rows {
		if g.SyncStatus == v1alpha1.GatewayMissingSidecar {
			without = append(without, g.PodName)
		}
	}
	return without
}
