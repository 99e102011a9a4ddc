package status

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
)

// Event is a one-time event: a difference between two statuses.
type Event struct {
	// Pod is the subject; nil for the GatewaySync.
	Pod     *Pod
	Warning bool
	Reason  string // one of v1alpha1.Event…
	Note    string
}

// maxEvents bounds the events of one summary.
const (
	maxEvents = 200
	few       = 10 // reserved for those about the whole fleet
)

// transitions compares the last status with the new one. It uses no other state, so that the next lead repeats no event.
func (w *writer) transitions() []Event {
	var out []Event
	tell := func(warning bool, reason, format string, args ...any) {
		out = append(out, Event{Warning: warning, Reason: reason, Note: Cut(fmt.Sprintf(format, args...), maxMessage)})
	}
	w.ofRef(tell)
	told, out := out, nil
	known, request := w.known(), w.request()
	var troubles []trouble
	for i := range w.rows {
		g := &w.rows[i]
		was := known[g.Name]
		if was == nil && len(w.rows) > maxRows {
			continue // it may only have been omitted from the status
		}
		for _, e := range g.transitions(was) {
			switch e.Reason {
			case v1alpha1.EventSyncCompleted, v1alpha1.EventSyncFailed, v1alpha1.EventSyncHeld, v1alpha1.EventConflictDetected, v1alpha1.EventDesignerSessionActive:
				e.Note = Cut(e.Note, maxMessage-len(request)) + request
			}
			for j := range g.pods {
				e.Pod = &g.pods[j]
				out = append(out, e)
			}
			if e.Warning {
				troubles = append(troubles, trouble{e.Reason, g.Name, v1alpha1.GatewayLabel(g.Name, g.PodName), e.Note})
			}
		}
	}
	told, out = append(told, out[:min(len(out), maxEvents-len(told)-few)]...), nil
	for len(troubles) > 0 {
		reason := troubles[0].reason
		tell(true, reason, "%s", together(troubles, reason))
		troubles = slices.DeleteFunc(troubles, func(t trouble) bool { return t.reason == reason })
	}
	w.ofFleet(tell)
	w.ofRollout(tell)
	return append(told, out...)
}

// trouble is what an Event says of one gateway.
type trouble struct{ reason, gateway, label, note string }

// together returns one note for all warnings with this reason. Events with the same reason about the same object are merged,
// and only the first note would be kept.
func together(all []trouble, reason string) string {
	var names, notes []string
	of := map[string][]string{}
	for _, t := range all {
		if t.reason != reason {
			continue
		}
		if of[t.note] == nil {
			notes = append(notes, t.note)
		}
		names, of[t.note] = append(names, t.gateway), append(of[t.note], t.label)
	}
	var said []string
	for _, note := range notes {
		said = append(said, strings.Join(of[note], ", ")+": "+note)
	}
	if text := strings.Join(said, "; "); len(text) <= maxMessage {
		return text
	}
	// The names matter most: the Events of the pods have the details.
	return fmt.Sprintf("%s: %s: %s", counted(len(names), "gateway"), Cut(strings.Join(names, ", "), maxMessage*3/4), notes[0])
}

type teller func(warning bool, reason, format string, args ...any)

func (w *writer) ofRef(tell teller) {
	was, is := w.before(v1alpha1.ConditionRefResolved), meta.FindStatusCondition(w.st.Conditions, v1alpha1.ConditionRefResolved)
	true1, true2 := was != nil && was.Status == metav1.ConditionTrue, is.Status == metav1.ConditionTrue
	before, now := w.was.Target, w.st.Target
	same := before == nil || now == nil || before.Ref == now.Ref
	moved := before != nil && now != nil && same && before.Commit != "" && now.Commit != "" && before.Commit != now.Commit
	switch {
	case is.Status == metav1.ConditionFalse && (was == nil || was.Status != is.Status || was.Reason != is.Reason):
		tell(true, v1alpha1.EventRefResolutionFailed, "%s: %s", is.Reason, is.Message)
	case moved && true2:
		tell(false, v1alpha1.EventRefUpdated, "%s moved from %s to %s%s", w.Target.Ref, short(w.was.Target.Commit), short(w.Target.Commit), w.asked())
	case true2 && (!true1 || !same): // whether or not the status said in between that a poll runs
		from := ""
		if g := w.was.LastGood; g != nil && (g.Ref != w.Target.Ref || g.Commit != w.Target.Commit) { // the status may have lost the last target meanwhile
			from = "; before, all gateways ran " + at(g.Ref, g.Commit)
		}
		tell(false, v1alpha1.EventRefResolved, "%s%s%s", is.Message, from, w.asked())
	}
}

// at returns a ref with its commit.
func at(ref, commit string) string {
	if v1alpha1.IsCommit(ref) {
		return short(commit)
	}
	return ref + " at " + short(commit)
}

// asked returns who asked for the ref, or for the poll that found its commit; "" if no request did.
func (w *writer) asked() string {
	d := w.Ref.Desired
	if d.RequestedBy == "" || !d.Override && (w.was.Target == nil || w.was.Target.RequestedAt == w.st.Target.RequestedAt) {
		return ""
	}
	said := "; requested by " + Cut(d.RequestedBy, 64)
	if d.RequestedAt != "" {
		said += " at " + d.RequestedAt
	}
	return said
}

// request returns what Events of gateways say of the request that they deal with: its id, which is in logs, reports and the audit record,
// too. It returns "" if every gateway has dealt with it before.
func (w *writer) request() string {
	at := w.Target.RequestedAt
	if at == "" || at != w.Ref.Desired.RequestedAt || at == w.was.LastHandledRequest {
		return ""
	}
	return "; request " + at
}

// transitions returns the events of one gateway. was is nil for a new one.
func (g *gateway) transitions(was *v1alpha1.DiscoveredGateway) []Event {
	out := g.proposalEvents(was)
	if was == nil {
		was = &v1alpha1.DiscoveredGateway{}
	}
	tell := func(warning bool, reason, note string) {
		out = append(out, Event{Warning: warning, Reason: reason, Note: Cut(note, maxMessage)})
	}
	why := string(g.Reason)
	if g.Message != "" {
		why += ": " + g.Message
	}
	changed := was.SyncStatus != g.SyncStatus || was.Reason != g.Reason
	rested := rested(string(was.Reason))
	switch {
	case g.AutoRollback != "" && g.AutoRollback != was.AutoRollback:
		tell(true, v1alpha1.EventAutoRollbackPerformed, fmt.Sprintf("went back from %s by itself: %s", short(g.AutoRollback), why))
	case g.synced && (changed && !done(was) && !rested || was.SyncedCommit != g.SyncedCommit):
		tell(false, v1alpha1.EventSyncCompleted, fmt.Sprintf("%s runs %s", g.Name, short(g.SyncedCommit)))
	case !changed, was.Reason == g.Reason && was.SyncStatus == v1alpha1.GatewaySyncing && failed(was): // it retried
	case g.SyncStatus == v1alpha1.GatewayError:
		tell(true, v1alpha1.EventSyncFailed, why)
	case g.SyncStatus == v1alpha1.GatewayHeld:
		switch g.Reason {
		case v1alpha1.ReasonPaused, v1alpha1.ReasonGateClosed, v1alpha1.ReasonApprovalNeeded: // on purpose; the rollout has its own Events
		case v1alpha1.ReasonConflictDetected:
			tell(true, v1alpha1.EventConflictDetected, g.Message)
		case v1alpha1.ReasonDesignerSessionActive:
			tell(true, v1alpha1.EventDesignerSessionActive, g.Message)
		default:
			tell(true, v1alpha1.EventSyncHeld, why)
		}
	}
	if was.Drift <= 0 && g.Drift > 0 {
		tell(true, v1alpha1.EventGatewayFilesModified, fmt.Sprintf("%s changed on the gateway since they were written", counted(int(g.Drift), "file")))
	}
	replaced := was.FilesSaved != g.FilesSaved || was.SyncedCommit != g.SyncedCommit ||
		was.LastSyncTime != nil && g.LastSyncTime != nil && !was.LastSyncTime.Equal(g.LastSyncTime)
	if g.FilesSaved > 0 && replaced {
		tell(true, v1alpha1.EventGatewayFilesReplaced, fmt.Sprintf("replaced %s that a user had changed on %s; lost+found has the user's version (agent lost-and-found list)",
			counted(int(g.FilesSaved), "file"), g.Name))
	}
	return out
}

// rested reports whether the gateways were not synced for a reason that is not a failure: their state was unknown, or they were
// paused. The end of such a state is not a sync.
func rested(reason string) bool {
	return reason == string(v1alpha1.ReasonAgentsAway) || reason == string(v1alpha1.ReasonPaused)
}

func done(g *v1alpha1.DiscoveredGateway) bool {
	return g.SyncStatus == v1alpha1.GatewaySynced || g.SyncStatus == v1alpha1.GatewayStandby
}

func (w *writer) ofFleet(tell teller) {
	is := meta.FindStatusCondition(w.st.Conditions, v1alpha1.ConditionAllGatewaysSynced)
	was := w.before(v1alpha1.ConditionAllGatewaysSynced)
	good := w.was.LastGood == nil || w.st.LastGood != nil && (w.was.LastGood.Commit != w.st.LastGood.Commit || w.was.LastGood.Ref != w.st.LastGood.Ref)
	if is.Status == metav1.ConditionTrue && (good || was == nil || was.Status != is.Status && !rested(was.Reason)) {
		tell(false, v1alpha1.EventSyncCompleted, "%s", is.Message)
		if good && w.Ref.Desired.Override && w.GatewaySync.RequestedUnless() != "" {
			tell(false, v1alpha1.EventRollbackCompleted, "%s", is.Message)
		}
	}
	before, now := w.before(v1alpha1.ConditionStalled), meta.FindStatusCondition(w.st.Conditions, v1alpha1.ConditionStalled)
	if now == nil || before != nil && before.Reason == now.Reason {
		return
	}
	// Stalls of git or of one gateway have their own events.
	if w.Invalid != nil || now.Reason == string(v1alpha1.ReasonProgressDeadlineExceeded) {
		tell(true, v1alpha1.EventSyncFailed, "%s: %s", now.Reason, now.Message)
	}
}
