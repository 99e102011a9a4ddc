package request

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/sender"
)

// Phase is how far the gateways are with the desired ref: a phase of the outcome, or Overtaken.
type Phase string

// The phases. In Progressing and Held, waiting may help. In Paused, each caller decides. The others are final. Overtaken means that the
// caller waits for another ref or commit than the desired one.
const (
	Progressing Phase = Phase(v1alpha1.OutcomeProgressing)
	Succeeded   Phase = Phase(v1alpha1.OutcomeSucceeded)
	Failed      Phase = Phase(v1alpha1.OutcomeFailed)
	Held        Phase = Phase(v1alpha1.OutcomeHeld)
	Paused      Phase = Phase(v1alpha1.OutcomePaused)
	Overtaken   Phase = "Superseded"
)

// Verdict is the outcome of a GatewaySync or ConfigSync as a reader may rely on it.
type Verdict struct {
	Phase    Phase           `json:"phase"`
	Ref      string          `json:"ref"`
	Commit   string          `json:"commit,omitempty"`
	Gateways Count           `json:"gateways"`
	Reason   v1alpha1.Reason `json:"reason,omitempty"`
	Message  string          `json:"message"`
	// Rollout is how far the rollout in steps is; nil if all gateways change at once.
	Rollout *v1alpha1.RolloutStatus `json:"rollout,omitempty"`
	// Behind lists the gateways with a row in the status that do not run the commit yet.
	Behind []Behind `json:"behind,omitempty"`
	// Since is when an agent last led; zero if unknown or if the reason is not AgentsAway.
	Since time.Time `json:"-"`
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

// Read returns the outcome of gs, for a caller that waits for ref, or for the desired ref if ref is "". An outcome that does not
// describe the current spec and request never counts as done, and one that no agent confirms never as Succeeded. target holds the lock of the
// lead; nil if it was not read: then only the age of the status shows whether an agent leads.
func Read(gs *v1alpha1.GatewaySync, ref string, target *v1alpha1.SyncTarget, now time.Time) Verdict {
	v, answered := pendingVerdict(gs, ref)
	o := gs.Status.Outcome
	if !answered {
		v.Gateways.Total = len(gs.Status.DiscoveredGateways)
		switch {
		case v.Phase != Progressing:
		case o == nil:
			v.Message = "neither an agent nor the injector has read this GatewaySync yet"
		case gs.Status.ObservedGeneration != gs.Generation:
			v.Message = fmt.Sprintf("the lead has not read generation %d of the spec yet", gs.Generation)
		default:
			v.Message = "the lead has not read the request yet"
		}
		return v
	}
	v = Verdict{Phase: Phase(o.Phase), Ref: o.Ref, Commit: o.Commit, Gateways: Count{int(o.Total), int(o.Synced), int(o.Failed)}, Reason: o.Reason, Message: o.Message,
		Rollout: gs.Status.Rollout}
	if since, gone := LeadGone(gs, target, now); gone && (v.Phase == Succeeded || v.Phase != Failed && o.Total > 0 && o.Reason != v1alpha1.ReasonAgentsAway) {
		v.Phase, v.Reason, v.Message, v.Since, v.Gateways.Synced = Progressing, v1alpha1.ReasonAgentsAway, Unconfirmed(since), since, 0
		return v
	}
	for _, g := range gs.Status.DiscoveredGateways {
		if !g.SyncStatus.Synced() || g.SyncedCommit != o.Commit {
			v.Behind = append(v.Behind, Behind{Name: g.Name, Pod: g.PodName, Status: g.SyncStatus, Reason: g.Reason, Commit: g.SyncedCommit, Message: g.Message})
		}
	}
	return v
}

// pendingVerdict returns the verdict on an object for a caller that waits for ref. If answered is true, status.outcome decides instead: it
// describes the current spec and request, and the caller waits for the desired ref.
func pendingVerdict(o v1alpha1.Requestable, ref string) (v Verdict, answered bool) {
	status := desiredref.RefStatusOf(o)
	d, err := desiredref.Of(o, "")
	v = Verdict{Phase: Progressing, Ref: d.Ref, Reason: v1alpha1.ReasonWaitingForLead}
	if status.Current {
		v.Ref = status.Ref
	}
	bad, invalid := errors.AsType[*v1alpha1.Error](err)
	switch {
	case ref != "" && v.Ref != "" && v.Ref != ref:
		v.Phase, v.Reason = Overtaken, ""
		v.Message = fmt.Sprintf("the desired ref is %s (%s) and no longer %s", v.Ref, Origin(o, v.Ref), ref)
	case status.Current:
		return v, true
	case invalid:
		v.Phase, v.Reason, v.Message = Failed, bad.Reason, bad.Error()
	}
	return v, false
}

// Origin returns who asked for ref, the desired ref: the field of the spec, or the sender of the request.
func Origin(o v1alpha1.Requestable, ref string) string {
	q := desiredref.InputsOf(o)
	if ref != q.Annotations[v1alpha1.AnnotationRequestedRef] || ref == q.Spec && q.Commit() == "" {
		return q.Field
	}
	by := q.By()
	if by == "" {
		by = "an annotation"
	}
	if what := annotation.Line(q.Annotations[v1alpha1.AnnotationRequestedFor]); what != "" && by == sender.CLI {
		by = what // the person
	} else if what != "" {
		by += " for " + what
	}
	return "requested by " + by
}

// At returns v for a caller that waits for a commit: it is Overtaken if another commit is desired. An empty commit
// means any.
func At(o v1alpha1.Requestable, v Verdict, commit string) Verdict {
	commit = strings.ToLower(commit)
	desired, q := v.Commit, desiredref.InputsOf(o)
	if requested := q.Commit(); requested != "" && v.Ref == q.Annotations[v1alpha1.AnnotationRequestedRef] {
		desired = requested
	} else if syntax.IsCommit(v.Ref) {
		desired = strings.ToLower(v.Ref)
	}
	if commit == "" || desired == "" || desired == commit || v.Phase == Overtaken {
		return v
	}
	v.Phase, v.Reason = Overtaken, ""
	v.Message = fmt.Sprintf("the desired ref is %s at %s (%s) and no longer %s", v.Ref, syntax.ShortCommit(desired), Origin(o, v.Ref), syntax.ShortCommit(commit))
	return v
}

// ReadConfig returns the outcome of a ConfigSync, for a caller that waits for ref, or for the desired ref if ref is "". An outcome that
// does not describe the current spec and request never counts as done.
func ReadConfig(cs *v1alpha1.ConfigSync, ref string) Verdict {
	v, answered := pendingVerdict(cs, ref)
	switch o := cs.Status.Outcome; {
	case answered:
		return Verdict{Phase: Phase(o.Phase), Ref: o.Ref, Commit: o.Commit, Reason: o.Reason, Message: o.Message}
	case v.Phase == Progressing:
		v.Reason = v1alpha1.ReasonProgressing
		v.Message = "no run has handled the spec and the request yet: stoker config run makes runs, or stoker config apply " + cs.Name
	}
	return v
}

// ReadWithLock is Read for callers that can query the API server. Before it returns Succeeded, it checks that the lock of the SyncTarget
// is renewed. The verdict is valid even with an error: then the age of the status decides.
func ReadWithLock(ctx context.Context, clients kube.Clients, gs *v1alpha1.GatewaySync, ref string) (Verdict, error) {
	v := Read(gs, ref, nil, clients.Now())
	if v.Phase != Succeeded {
		return v, nil
	}
	target, err := TargetOf(ctx, clients, gs)
	return Read(gs, ref, target, clients.Now()), err
}

// TargetOf returns the SyncTarget of gs. If there is none, it returns an empty one, which has no lead. It
// returns nil with an error, and without one if this version cannot decode the SyncTarget.
func TargetOf(ctx context.Context, clients kube.Clients, gs *v1alpha1.GatewaySync) (*v1alpha1.SyncTarget, error) {
	t, err := kube.SyncTargets(clients.Dynamic, gs.Namespace).Get(ctx, gs.Name)
	_, undecodable := errors.AsType[*kube.UndecodableError](err)
	switch {
	case apierrors.IsNotFound(err):
		return &v1alpha1.SyncTarget{}, nil
	case undecodable:
		return nil, nil // another version wrote it: the age of the status decides
	case err != nil:
		return nil, fmt.Errorf("the SyncTarget cannot be read, so that a missing lead shows only after %s: %w", v1alpha1.ConfirmedFor, err)
	}
	return t, nil
}

// LeadGone reports whether no agent leads, so that no agent corrects the status of gs, and since when, if known. The lock shows it
// within seconds. A status that is too old shows it, too, whatever the lock says. If target is nil, because it was not read, only the age of
// the status decides.
func LeadGone(gs *v1alpha1.GatewaySync, target *v1alpha1.SyncTarget, now time.Time) (since time.Time, gone bool) {
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
	return since, lead.Holder == "" || now.Sub(at) > lead.ValidFor()
}

// renewed returns when a lock was last renewed. It prefers the API server's record of the write in managedFields, because the clock of
// the lead's node may be wrong; otherwise it is spec.lead.renewed. It ignores times far in the future, because writers can patch
// managedFields.
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
		at = " since " + since.Local().Format(time.RFC3339)
	}
	return "no agent leads" + at + ", so what the gateways run is not known: look for pods without an agent and for a missing injector (stoker check)"
}

// Fails reports whether waiting does not help. With designerSessionPolicy fail, an open Designer session fails too: the status
// is then Error instead of Held.
func (b Behind) Fails() bool {
	class := b.Reason.Class()
	return class == v1alpha1.ClassStalled || class == v1alpha1.ClassHeld && b.Status == v1alpha1.GatewayError
}

// String returns the gateway and why it is behind.
func (b Behind) String() string {
	line := fmt.Sprintf("%s %s", gatewaypod.GatewayLabel(b.Name, b.Pod), b.Status)
	if b.Reason != "" && string(b.Reason) != string(b.Status) {
		line += "/" + string(b.Reason)
	}
	if b.Message != "" {
		line += ": " + b.Message
	}
	return line
}
