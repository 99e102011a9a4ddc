package request

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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

// Verdict is the outcome of a GatewaySync as a reader may rely on it.
type Verdict struct {
	Phase    Phase           `json:"phase"`
	Ref      string          `json:"ref"`
	Commit   string          `json:"commit,omitempty"`
	Gateways Count           `json:"gateways"`
	Reason   v1alpha1.Reason `json:"reason,omitempty"`
	Message  string          `json:"message"`
	// Rollout is how far the rollout in steps is; nil if all gateways change at once.
	Rollout *v1alpha1.RolloutStatus `json:"rollout,omitempty"`
	// Behind lists the gateways that do not run the commit yet.
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
// describe the current spec and request, or that no agent confirms, never counts as done. target holds the lock of the lead; nil
// if it was not read: then only the age of the status shows whether an agent leads.
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

// pendingVerdict returns the verdict on an object for a caller that waits for ref, unless answered says that its outcome decides: then it describes the
// current spec and request, and the desired ref is the one that the caller waits for.
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
// within seconds. If target is nil, because it was not read, the age of the status decides.
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

// Two annotations record past requests, so that a repeated request is recognized: the last ids of each sender, and the last
// tags that were followed. People read these annotations too.
const (
	maxID  = 256
	maxIDs = 32 << 10 // limit of the annotation; all annotations of an object may have 256 KiB
	// keptIDs is the number of ids per sender, keptTags the number of tags, and keptChars the limit of either list in bytes.
	keptIDs, keptTags, keptChars = 8, 16, 1024
	// maxClockSkew is how far the clock of Kargo may be ahead. Ids from further in the future say nothing about the order of others.
	maxClockSkew = 5 * time.Minute
)

// appendBounded appends one to the list, which always keeps it, and drops the oldest entries.
func appendBounded(list []string, one string, most int) []string {
	list = append(slices.DeleteFunc(slices.Clone(list), func(s string) bool { return s == one }), one)
	list = list[max(0, len(list)-most):]
	for len(list) > 1 && len(strings.Join(list, " ")) > keptChars {
		list = list[1:]
	}
	return list
}

func fields(text string) []string {
	return slices.DeleteFunc(strings.Split(text, " "), func(s string) bool { return s == "" })
}

// readIDs parses the annotation stoker.io/requested-ids: the ids of each sender, newest last. It ignores an annotation of
// another form.
func readIDs(text string) map[string][]string {
	var have map[string]string
	if len(text) > maxIDs || json.Unmarshal([]byte(text), &have) != nil {
		have = nil
	}
	ids := make(map[string][]string, len(have))
	for sender, list := range have {
		ids[sender] = fields(list)
	}
	return ids
}

// writeIDs formats the annotation. It drops unknown senders and overlong ids, so that the annotation cannot grow.
func writeIDs(ids map[string][]string) (string, error) {
	lines := map[string]string{}
	for _, by := range sender.Names() {
		var kept []string
		for _, id := range ids[by] {
			if len(id) <= maxID {
				kept = appendBounded(kept, id, keptIDs)
			}
		}
		if len(kept) > 0 {
			lines[by] = strings.Join(kept, " ")
		}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(lines); err != nil {
		return "", errors.Join(errors.New("the ids cannot be written"), err)
	}
	return strings.TrimSpace(b.String()), nil
}

// knownOutcome returns the outcome of a request that was made before or is older than the last one, or "" if the request is new.
func knownOutcome(ids map[string][]string, by, id string, now time.Time) (Outcome, string) {
	if id == "" {
		return "", ""
	}
	if last := newest(ids, by); older(by, id, last) && createdAt(last).Before(now.Add(maxClockSkew)) {
		return Superseded, fmt.Sprintf("promotion %s is older than %s, which was already requested", id, last)
	}
	if slices.Contains(ids[by], id) {
		return Unchanged, fmt.Sprintf("request %s of %s was already carried out", id, by)
	}
	return "", ""
}

func newest(ids map[string][]string, by string) string {
	if list := ids[by]; len(list) > 0 {
		return list[len(list)-1]
	}
	return ""
}

// Taken reports whether a request of this sender with this id is recorded as carried out.
func Taken(o v1alpha1.Requestable, by, id string) bool {
	return id != "" && slices.Contains(readIDs(o.GetAnnotations()[v1alpha1.AnnotationRequestedIDs])[by], id)
}

// NotTaken reports whether a request with this id was certainly never carried out: it would have left its id, and only older
// ids are recorded. Nothing is certain about ids without an order.
func NotTaken(o v1alpha1.Requestable, id string) bool {
	last := newest(readIDs(o.GetAnnotations()[v1alpha1.AnnotationRequestedIDs]), sender.Kargo)
	return last != "" && older(sender.Kargo, last, id) && !Taken(o, sender.Kargo, id)
}

// Followed returns the tags that were followed last, newest last.
func Followed(o v1alpha1.Requestable) []string {
	text := o.GetAnnotations()[v1alpha1.AnnotationRequestedTags]
	if len(text) > maxIDs {
		return nil
	}
	tags := fields(text)
	return tags[max(0, len(tags)-keptTags):]
}

// Ordered reports whether ids of this kind have an order: the name of a Kargo promotion is <stage>.<ulid>.<freight>, and ULIDs
// sort by time.
func Ordered(by, id string) bool { return by == sender.Kargo && ulid(id) != "" }

// older reports whether a Kargo promotion is older than the last one. Ids of other senders have no order.
func older(by, id, last string) bool {
	return Ordered(by, id) && Ordered(by, last) && ulid(id) < ulid(last)
}

// digits are the digits of a ULID. Its first ten encode the milliseconds since 1970.
const digits = "0123456789abcdefghjkmnpqrstvwxyz"

// ulid returns the ULID in the name of a promotion in lower case, or "". The stage may contain dots itself.
func ulid(id string) string {
	parts := strings.Split(strings.ToLower(id), ".")
	for i := len(parts) - 1; i >= 0; i-- {
		if p := parts[i]; len(p) == 26 && p[0] <= '7' && strings.Trim(p, digits) == "" {
			return p
		}
	}
	return ""
}

// createdAt returns when a promotion was created, by the clock of Kargo.
func createdAt(id string) time.Time {
	var ms int64
	for _, c := range ulid(id)[:min(10, len(ulid(id)))] {
		ms = ms<<5 | int64(strings.IndexRune(digits, c))
	}
	return time.UnixMilli(ms)
}
