package verb

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
)

// Phase is how far the gateways are with the desired ref.
type Phase string

// The phases. Without a new request, only Progressing changes into another phase.
const (
	Progressing Phase = "Progressing"
	Succeeded   Phase = "Succeeded"
	Failed      Phase = "Failed"
	Held        Phase = "Held"
	Overtaken   Phase = "Superseded"
)

// Verdict is the progress of a fleet towards the desired ref.
type Verdict struct {
	Phase    Phase           `json:"phase"`
	Ref      string          `json:"ref"`
	Commit   string          `json:"commit,omitempty"`
	Gateways Count           `json:"gateways"`
	Reason   v1alpha1.Reason `json:"reason,omitempty"`
	Message  string          `json:"message"`
	// Behind lists the gateways that do not run the commit yet.
	Behind []Behind `json:"behind,omitempty"`
	// Waits is true if everything that is missing waits for a person, a gate or a Designer.
	Waits bool `json:"waits,omitempty"`
	// Since is when an agent last led; zero if unknown or if the reason is not AgentsAway.
	Since time.Time `json:"-"`
	// open means that the SyncReports would make the verdict more precise
	open bool
}

// Count holds numbers of gateways.
type Count struct {
	Total  int `json:"total"`
	Synced int `json:"synced"`
	Failed int `json:"failed"`
}

// Behind is a gateway that does not run what it should, and why.
type Behind struct {
	Name    string                    `json:"name"`
	Pod     string                    `json:"pod,omitempty"`
	Status  v1alpha1.GatewaySyncState `json:"status"`
	Reason  v1alpha1.Reason           `json:"reason,omitempty"`
	Commit  string                    `json:"commit,omitempty"`
	Message string                    `json:"message,omitempty"`
}

// Evidence is what Judge considers in addition to the GatewaySync.
type Evidence struct {
	// Now is the time by the clock of the API server.
	Now time.Time
	// Reports, by pod, show which gateways have handled the last request. Without them a failure counts only once all gateways
	// have handled it.
	Reports map[string]*v1alpha1.SyncReport
	// Target holds the lock of the lead; nil if it was not read. Then only the age of the status shows whether an agent leads.
	Target *v1alpha1.SyncTarget
}

// Judge reports how far the gateways of gs are with ref, or with the desired ref if ref is "". It is pure.
//
// Judge never relies on the condition Ready alone. The status must describe the current generation and ref, git must have been
// polled since the last request, each gateway must run the commit and have handled that request, and an agent must lead.
func Judge(gs *v1alpha1.GatewaySync, ref string, e Evidence) Verdict {
	d, err := v1alpha1.DesiredRef(gs, "")
	if err != nil {
		return Verdict{Phase: Failed, Ref: ref, Gateways: Count{Total: len(gs.Status.DiscoveredGateways)}, Reason: v1alpha1.ReasonRefNotFound, Message: err.Error()}
	}
	j := &judge{GatewaySync: gs, want: d, Evidence: e, v: Verdict{Phase: Progressing, Ref: d.Ref}}
	if ref != "" && d.Ref != ref {
		return j.overtaken(ref)
	}
	j.count()
	return j.judge()
}

type judge struct {
	*v1alpha1.GatewaySync
	Evidence
	want   v1alpha1.Desired
	v      Verdict
	broken *Behind // the first gateway that a retry does not help
}

func (j *judge) overtaken(ref string) Verdict {
	who := "spec.git.ref says so"
	if j.want.Override {
		who = "asked for by " + j.want.Asker()
	}
	j.v.Phase, j.v.Message = Overtaken, fmt.Sprintf("the gateways are to run %s (%s) and no longer %s", j.want.Ref, who, ref)
	return j.v
}

// current reports whether the status describes the current spec.
func (j *judge) current() bool { return j.Status.ObservedGeneration == j.Generation }

// looked reports whether git was polled for this ref and the requested commit since the last request, with any outcome.
func (j *judge) looked() bool {
	t := j.Status.Target
	return j.current() && t != nil && t.Ref == j.want.Ref && (j.want.RequestedAt == "" || t.RequestedAt == j.want.RequestedAt) &&
		(t.Commit == "" || j.want.CheckCommit(t.Commit) == nil)
}

// moved reports whether the desired ref differs from that of the status. An annotation edited by hand may change the ref and
// nothing else.
func (j *judge) moved() bool { return j.Status.Target != nil && j.Status.Target.Ref != j.want.Ref }

// handled reports whether all gateways have handled the last request.
func (j *judge) handled() bool {
	return j.want.RequestedAt == "" || j.Status.LastHandledRequest == j.want.RequestedAt
}

// lost reports whether all agents were away until the progress deadline. The rows are then out of date, and a request counts as
// handled only because it was given up.
func (j *judge) lost() bool {
	c := j.condition(v1alpha1.ConditionReady)
	return c != nil && c.Status == metav1.ConditionUnknown && c.Reason == string(v1alpha1.ReasonProgressDeadlineExceeded)
}

// away returns the condition Ready if it says that all agents are away, but not for so long that they are given up. The rows
// are then out of date.
func (j *judge) away() *metav1.Condition {
	if c := j.condition(v1alpha1.ConditionReady); c != nil && c.Reason == string(v1alpha1.ReasonAgentsAway) {
		return c
	}
	return nil
}

// handledBy reports whether one gateway has handled the last request.
func (j *judge) handledBy(g *v1alpha1.DiscoveredGateway) bool {
	if j.handled() {
		return true
	}
	r := j.Reports[g.PodName]
	return r != nil && r.Status.HandledRequest == j.want.RequestedAt
}

// condition returns a condition of the current generation, or nil.
func (j *judge) condition(name string) *metav1.Condition {
	c := meta.FindStatusCondition(j.Status.Conditions, name)
	if c == nil || c.ObservedGeneration != j.Generation || !j.current() {
		return nil
	}
	return c
}

const unhandled = "has not dealt with the request yet"

// count evaluates every gateway. Synced gateways run the commit. If the reports show that a synced gateway has not handled the
// request, it is also Behind.
func (j *judge) count() {
	looked := j.looked()
	if looked {
		j.v.Commit = j.Status.Target.Commit
	}
	rows := j.Status.DiscoveredGateways
	j.v.Gateways.Total = len(rows)
	failing := false
	for i := range rows {
		g := &rows[i]
		there := g.SyncStatus == v1alpha1.GatewaySynced || g.SyncStatus == v1alpha1.GatewayStandby
		b := Behind{Name: g.Name, Pod: g.PodName, Status: g.SyncStatus, Reason: g.Reason, Commit: g.SyncedCommit, Message: g.Message}
		switch {
		case there && looked && j.v.Commit != "" && g.SyncedCommit == j.v.Commit:
			j.v.Gateways.Synced++
			if j.Reports == nil || j.handledBy(g) {
				continue
			}
			b.Status, b.Reason, b.Message = v1alpha1.GatewayPending, v1alpha1.ReasonProgressing, unhandled
		case there:
			b.Status, b.Reason, b.Message = v1alpha1.GatewayPending, v1alpha1.ReasonProgressing, unhandled
		case looked && b.Fails() && (j.handledBy(g) || g.Reason == v1alpha1.ReasonPodRestartNeeded):
			j.v.Gateways.Failed++
			if j.broken == nil {
				j.broken = &b
			}
		}
		failing = failing || b.Fails()
		j.v.Behind = append(j.v.Behind, b)
	}
	j.v.open = looked && !j.handled() && (failing || len(rows) > 0 && len(j.v.Behind) == 0)
	// The status of a very large fleet omits rows, synced gateways first. Add those that its counters include.
	var synced, total int
	if n, _ := fmt.Sscanf(j.Status.GatewaysReady, "%d/%d", &synced, &total); n == 2 && total > len(rows) && len(rows) > 0 {
		if looked {
			j.v.Gateways.Synced += min(max(synced, 0), total-len(rows))
		}
		j.v.Gateways.Total = total
	}
}

// judge returns the first verdict that applies.
func (j *judge) judge() Verdict {
	c, n := j.v.Gateways, j.v.Gateways.Total
	since, left := Left(j.GatewaySync, j.Target, j.Now)
	profiles, resolved, stalled := j.condition(v1alpha1.ConditionProfilesValid), j.condition(v1alpha1.ConditionRefResolved), j.condition(v1alpha1.ConditionStalled)
	switch {
	case profiles != nil && profiles.Status == metav1.ConditionFalse:
		return j.say(Failed, v1alpha1.Reason(profiles.Reason), profiles.Message)
	case j.looked() && resolved != nil && resolved.Status == metav1.ConditionFalse && v1alpha1.Reason(resolved.Reason).Class() == v1alpha1.ClassStalled:
		return j.say(Failed, v1alpha1.Reason(resolved.Reason), resolved.Message)
	case j.away() != nil:
		return j.say(Progressing, v1alpha1.ReasonAgentsAway, j.away().Message)
	case n > 0 && c.Synced == n && j.handled() && !j.lost() && !left:
		return j.say(Succeeded, v1alpha1.ReasonSynced, j.heldOff()+j.progress())
	case j.broken != nil:
		return j.say(Failed, j.broken.Reason, v1alpha1.GatewayLabel(j.broken.Name, j.broken.Pod)+": "+j.broken.Message)
	case stalled != nil && (j.looked() || j.handled() && (!j.moved() || j.lost())) && v1alpha1.Reason(stalled.Reason) == v1alpha1.ReasonProgressDeadlineExceeded:
		return j.say(Failed, v1alpha1.ReasonProgressDeadlineExceeded, stalled.Message)
	case n > 0 && left:
		j.v.Since, j.v.Gateways.Synced, j.v.Behind = since, 0, nil // the rows are out of date
		return j.say(Progressing, v1alpha1.ReasonAgentsAway, Unconfirmed(since))
	case j.Paused():
		return j.say(Held, v1alpha1.ReasonPaused, j.progress()+"; paused: resume it, or look for spec.paused")
	case n == 0 && j.Status.ObservedGeneration == 0:
		return j.say(Progressing, v1alpha1.ReasonWaitingForLead, "nobody has looked at it yet: neither an agent nor the injector")
	case n == 0 && !j.current():
		return j.say(Progressing, v1alpha1.ReasonWaitingForLead, "the status does not speak of today's spec yet")
	case n == 0:
		return j.say(Progressing, v1alpha1.ReasonNoGateways, "no gateway was discovered")
	case resolved != nil && resolved.Status == metav1.ConditionFalse:
		return j.say(Progressing, v1alpha1.Reason(resolved.Reason), resolved.Message)
	case !j.looked():
		return j.say(Progressing, v1alpha1.ReasonWaitingForLead, "the lead has not asked git for "+j.want.Ref+" yet")
	}
	j.v.Waits = len(j.v.Behind) > 0
	for _, b := range j.v.Behind {
		held := b.Reason.Class() == v1alpha1.ClassHeld || b.Rests()
		j.v.Waits = j.v.Waits && held && !b.Fails()
	}
	reason := v1alpha1.ReasonProgressing
	if len(j.v.Behind) > 0 && j.v.Behind[0].Reason != "" {
		reason = j.v.Behind[0].Reason
	}
	return j.say(Progressing, reason, j.progress())
}

// lockFor is the duration of a lock that names none.
const lockFor = 15 * time.Second

// Left reports whether no agent leads, so that no agent corrects the status of gs, and since when, if known. The lock shows it
// within seconds. If target is nil, because it was not read, the age of the status decides.
func Left(gs *v1alpha1.GatewaySync, target *v1alpha1.SyncTarget, now time.Time) (since time.Time, left bool) {
	confirmed := gs.Status.Confirmed(now)
	if at := gs.Status.ConfirmedAt; at != nil && !at.After(now) {
		since = at.Time
	}
	if target == nil || !confirmed {
		return since, !confirmed
	}
	lead, at := target.Spec.Lead, renewed(target, now)
	if at.After(since) && !at.After(now) {
		since = at
	}
	holds := lead.Lasts()
	if holds == 0 {
		holds = lockFor
	}
	return since, lead.Holder == "" || now.Sub(at) > holds
}

// renewed is when a lock was renewed last: by the API server's own record of the write, because the clock of the lead's node may
// be wrong, else by that. A time that is far ahead is neither: a writer may patch metadata.managedFields.
func renewed(t *v1alpha1.SyncTarget, now time.Time) (at time.Time) {
	latest := now.Add(v1alpha1.ConfirmedFor)
	for _, m := range t.ManagedFields {
		if m.Time != nil && m.FieldsV1 != nil && strings.Contains(m.FieldsV1.GetRawString(), `"f:renewed"`) && m.Time.After(at) && !m.Time.After(latest) {
			at = m.Time.Time
		}
	}
	if r := t.Spec.Lead.Renewed; at.IsZero() && r != nil && !r.After(latest) {
		at = r.Time
	}
	return at
}

// Unconfirmed returns what to do about a status that no agent confirms.
func Unconfirmed(since time.Time) string {
	at := ""
	if !since.IsZero() {
		at = " since " + since.UTC().Format(time.RFC3339)
	}
	return "no agent leads" + at + ", so what the gateways run is not known: look for pods without an agent and for a missing injector (stoker check)"
}

func (j *judge) say(p Phase, reason v1alpha1.Reason, message string) Verdict {
	j.v.Phase, j.v.Reason, j.v.Message = p, reason, message
	return j.v
}

// heldOff returns the beginning of the message if a rollback is in force: the fleet is healthy but does not run what the spec
// says.
func (j *judge) heldOff() string {
	unless := j.RequestedUnless()
	if !j.want.Override || !v1alpha1.IsCommit(unless) {
		return ""
	}
	return fmt.Sprintf("%s: %s is held off at %s: ", v1alpha1.ReasonRolledBack, j.Spec.Git.Ref, Short(unless))
}

// progress returns the state of the fleet in one line.
func (j *judge) progress() string {
	v := &j.v
	what := v.Ref
	if v.Commit != "" && !strings.HasPrefix(v.Commit, v.Ref) {
		what += " at " + Short(v.Commit)
	} else if v.Commit != "" {
		what = Short(v.Commit)
	}
	line := fmt.Sprintf("%d of %d gateways run %s", v.Gateways.Synced, v.Gateways.Total, what)
	if len(v.Behind) > 0 {
		line += "; " + v.Behind[0].String()
	}
	if more := len(v.Behind) - 1; more > 0 {
		line += fmt.Sprintf("; %d more", more)
	}
	if len(v.Behind) == 0 && !j.handled() {
		line += "; not all of them have dealt with the request yet"
	}
	return line
}

// Fails reports whether waiting does not help. With designerSessionPolicy fail, an open Designer session fails too: the status
// is then Error instead of Held.
func (b Behind) Fails() bool {
	class := b.Reason.Class()
	return class == v1alpha1.ClassStalled || class == v1alpha1.ClassHeld && b.Status == v1alpha1.GatewayError
}

// Rests reports whether the gateway is behind on purpose: its profile is paused, or asks for a dry run.
func (b Behind) Rests() bool {
	return b.Reason == v1alpha1.ReasonPaused || b.Reason == v1alpha1.ReasonDryRun
}

// String returns the gateway and why it is behind.
func (b Behind) String() string {
	line := fmt.Sprintf("%s %s", v1alpha1.GatewayLabel(b.Name, b.Pod), b.Status)
	if b.Reason != "" && string(b.Reason) != string(b.Status) {
		line += "/" + string(b.Reason)
	}
	if b.Message != "" {
		line += ": " + b.Message
	}
	return line
}

// Short returns the abbreviated commit.
func Short(commit string) string { return commit[:min(len(commit), minPrefix)] }
