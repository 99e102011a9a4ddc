package status

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/failure"
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
	maxEvents      = 200
	reservedEvents = 10 // reserved for those about the whole fleet
)

// transitions compares the last status with the next one. It uses no other state, so that the next lead repeats no event.
func transitions(f *facts, next *v1alpha1.GatewaySyncStatus) []Event {
	var out []Event
	emit := func(warning bool, reason, format string, args ...any) {
		out = append(out, Event{Warning: warning, Reason: reason, Note: failure.Cut(fmt.Sprintf(format, args...), maxMessage)})
	}
	refEvents(f, next, emit)
	fleet, out := out, nil
	known, request := rowsByName(f.last), requestNote(f)
	var troubles []trouble
	for i := range f.fleet {
		g := &f.fleet[i]
		was := known[g.Name]
		if was == nil && len(f.fleet) > maxRows {
			continue // it may only have been omitted from the status
		}
		for _, e := range g.transitions(was) {
			switch e.Reason {
			case v1alpha1.EventSyncCompleted, v1alpha1.EventSyncFailed, v1alpha1.EventSyncHeld, v1alpha1.EventConflictDetected, v1alpha1.EventDesignerSessionActive:
				e.Note = failure.Cut(e.Note, maxMessage-len(request)) + request
			}
			for j := range g.pods {
				e.Pod = &g.pods[j]
				out = append(out, e)
			}
			if e.Warning {
				troubles = append(troubles, trouble{e.Reason, g.Name, gatewaypod.GatewayLabel(g.Name, g.PodName), e.Note})
			}
		}
	}
	fleet, out = append(fleet, out[:min(len(out), maxEvents-len(fleet)-reservedEvents)]...), nil
	for len(troubles) > 0 {
		reason := troubles[0].reason
		emit(true, reason, "%s", mergeNotes(troubles, reason))
		troubles = slices.DeleteFunc(troubles, func(t trouble) bool { return t.reason == reason })
	}
	fleetEvents(f, next, emit)
	rolloutEvents(f, emit)
	return append(fleet, out...)
}

// trouble is what an Event says of one gateway.
type trouble struct{ reason, gateway, label, note string }

// mergeNotes returns one note for all warnings with this reason. Events with the same reason about the same object are merged,
// and only the first note would be kept.
func mergeNotes(all []trouble, reason string) string {
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
	return fmt.Sprintf("%s: %s: %s", counted(len(names), "gateway"), failure.Cut(strings.Join(names, ", "), maxMessage*3/4), notes[0])
}

type eventFunc func(warning bool, reason, format string, args ...any)

func refEvents(f *facts, next *v1alpha1.GatewaySyncStatus, emit eventFunc) {
	was, is := f.lastCondition(v1alpha1.ConditionRefResolved), meta.FindStatusCondition(next.Conditions, v1alpha1.ConditionRefResolved)
	wasResolved, isResolved := was != nil && was.Status == metav1.ConditionTrue, is.Status == metav1.ConditionTrue
	before, now := f.last.Target, f.target
	same := before == nil || now == nil || before.Ref == now.Ref
	moved := before != nil && now != nil && same && before.Commit != "" && now.Commit != "" && before.Commit != now.Commit
	switch {
	case is.Status == metav1.ConditionFalse && (was == nil || was.Status != is.Status || was.Reason != is.Reason):
		emit(true, v1alpha1.EventRefResolutionFailed, "%s: %s", is.Reason, is.Message)
	case moved && isResolved:
		emit(false, v1alpha1.EventRefUpdated, "%s moved from %s to %s%s", f.Target.Ref, syntax.ShortCommit(f.last.Target.Commit), syntax.ShortCommit(f.Target.Commit), requestedBy(f))
	case isResolved && (!wasResolved || !same):
		from := ""
		if g := f.last.LastGood; g != nil && (g.Ref != f.Target.Ref || g.Commit != f.Target.Commit) { // the status may have lost the last target meanwhile
			from = "; before, all gateways ran " + at(g.Ref, g.Commit)
		}
		emit(false, v1alpha1.EventRefResolved, "%s%s%s", is.Message, from, requestedBy(f))
	}
}

// at returns a ref with its commit.
func at(ref, commit string) string {
	if syntax.IsCommit(ref) {
		return syntax.ShortCommit(commit)
	}
	return ref + " at " + syntax.ShortCommit(commit)
}

// requestedBy returns who asked for the ref, or for the poll that found its commit; "" if no request did.
func requestedBy(f *facts) string {
	d := f.Ref.Desired
	if d.RequestedBy == "" || !d.Override && (f.last.Target == nil || f.last.Target.RequestedAt == f.target.RequestedAt) {
		return ""
	}
	said := "; requested by " + failure.Cut(d.RequestedBy, 64)
	if d.RequestedAt != "" {
		said += " at " + d.RequestedAt
	}
	return said
}

// requestNote returns what Events of gateways say of the request that they deal with: its id, which is in logs, reports and the audit record,
// too. It returns "" if every gateway has dealt with it before.
func requestNote(f *facts) string {
	at := f.Target.RequestedAt
	if at == "" || at != f.Ref.Desired.RequestedAt || at == f.last.LastHandledRequest {
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
	emit := func(warning bool, reason, note string) {
		out = append(out, Event{Warning: warning, Reason: reason, Note: failure.Cut(note, maxMessage)})
	}
	why := string(g.Reason)
	if g.Message != "" {
		why += ": " + g.Message
	}
	changed := was.SyncStatus != g.SyncStatus || was.Reason != g.Reason
	rested := pausedOrUnknown(string(was.Reason))
	switch {
	case g.AutoRollback != "" && g.AutoRollback != was.AutoRollback:
		emit(true, v1alpha1.EventAutoRollbackPerformed, fmt.Sprintf("rolled back %s automatically: %s", syntax.ShortCommit(g.AutoRollback), why))
	case g.synced && (changed && !was.SyncStatus.Synced() && !rested || was.SyncedCommit != g.SyncedCommit):
		emit(false, v1alpha1.EventSyncCompleted, fmt.Sprintf("%s runs %s", g.Name, syntax.ShortCommit(g.SyncedCommit)))
	case !changed, was.Reason == g.Reason && was.SyncStatus == v1alpha1.GatewaySyncing && failed(was): // it retried
	case g.SyncStatus == v1alpha1.GatewayError:
		emit(true, v1alpha1.EventSyncFailed, why)
	case g.SyncStatus == v1alpha1.GatewayHeld:
		switch g.Reason {
		case v1alpha1.ReasonPaused, v1alpha1.ReasonGateClosed, v1alpha1.ReasonApprovalNeeded: // on purpose; the rollout has its own Events
		case v1alpha1.ReasonRestored:
			emit(false, v1alpha1.EventSyncHeld, why)
		case v1alpha1.ReasonConflictDetected:
			emit(true, v1alpha1.EventConflictDetected, g.Message)
		case v1alpha1.ReasonDesignerSessionActive:
			emit(true, v1alpha1.EventDesignerSessionActive, g.Message)
		default:
			emit(true, v1alpha1.EventSyncHeld, why)
		}
	}
	if was.Drift <= 0 && g.Drift > 0 {
		emit(true, v1alpha1.EventGatewayFilesModified, fmt.Sprintf("%s changed on the gateway since they were written", counted(int(g.Drift), "file")))
	}
	replaced := was.FilesSaved != g.FilesSaved || was.SyncedCommit != g.SyncedCommit ||
		was.LastSyncTime != nil && g.LastSyncTime != nil && !was.LastSyncTime.Equal(g.LastSyncTime)
	if g.FilesSaved > 0 && replaced {
		note := fmt.Sprintf("replaced %s that a user had changed on %s; lost+found has the user's version (agent lost-and-found list)",
			counted(int(g.FilesSaved), "file"), g.Name)
		if g.synced && g.Message != "" { // it names some of the files
			note += ": " + g.Message
		}
		emit(true, v1alpha1.EventGatewayFilesReplaced, note)
	}
	return out
}

// pausedOrUnknown reports whether the gateways were not synced for a reason that is not a failure: their state was unknown, or they were
// paused. The end of such a state is not a sync.
func pausedOrUnknown(reason string) bool {
	return reason == string(v1alpha1.ReasonAgentsAway) || reason == string(v1alpha1.ReasonPaused)
}

func fleetEvents(f *facts, next *v1alpha1.GatewaySyncStatus, emit eventFunc) {
	is := meta.FindStatusCondition(next.Conditions, v1alpha1.ConditionAllGatewaysSynced)
	was := f.lastCondition(v1alpha1.ConditionAllGatewaysSynced)
	good := f.last.LastGood == nil || next.LastGood != nil && (f.last.LastGood.Commit != next.LastGood.Commit || f.last.LastGood.Ref != next.LastGood.Ref)
	if is.Status == metav1.ConditionTrue && (good || was == nil || was.Status != is.Status && !pausedOrUnknown(was.Reason)) {
		emit(false, v1alpha1.EventSyncCompleted, "%s", is.Message)
		if good && f.goesBack() {
			emit(false, v1alpha1.EventRollbackCompleted, "%s", is.Message)
		}
	}
	before, now := f.lastCondition(v1alpha1.ConditionStalled), meta.FindStatusCondition(next.Conditions, v1alpha1.ConditionStalled)
	if now == nil || before != nil && before.Reason == now.Reason {
		return
	}
	// Stalls of git or of one gateway have their own events.
	if f.Invalid != nil || now.Reason == string(v1alpha1.ReasonProgressDeadlineExceeded) {
		emit(true, v1alpha1.EventSyncFailed, "%s: %s", now.Reason, now.Message)
	}
}
