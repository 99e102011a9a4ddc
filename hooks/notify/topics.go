package notify

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/request"
	"stoker.io/stoker/internal/status"
)

// seen is the input of the topics: a GatewaySync and what its status says.
type seen struct {
	*v1alpha1.GatewaySync
	verdict request.Verdict
	ready   metav1.Condition
}

func look(gs *v1alpha1.GatewaySync, now time.Time) seen {
	s := seen{GatewaySync: gs, verdict: request.Read(gs, "", nil, now)}
	if c := meta.FindStatusCondition(gs.Status.Conditions, v1alpha1.ConditionReady); c != nil {
		s.ready = *c
	}
	return s
}

// topic is a row of the table of topics that spec.alerting can name.
type topic struct {
	name v1alpha1.AlertTopic
	// news is true for an event, and false for a state. For an event, is returns a value that differs from that of the previous event, or ""
	// if there was none. For a state, is returns why the state is true, or "".
	news bool
	is   func(seen) string
	// text returns the message of an event; nil for a state
	text func(seen) string
}

// topics is the table, in the order of v1alpha1.AlertTopics.
var topics = []topic{
	{name: "NotReady", is: notReady},
	{name: "AgentsAway", is: func(s seen) string {
		if s.verdict.Reason == v1alpha1.ReasonAgentsAway {
			return s.verdict.Message
		}
		return ""
	}},
	{name: "SyncFailed", is: rows(func(g *v1alpha1.DiscoveredGateway) bool { return g.SyncStatus == v1alpha1.GatewayError })},
	{name: "SyncHeld", is: rows(func(g *v1alpha1.DiscoveredGateway) bool {
		return g.SyncStatus == v1alpha1.GatewayHeld && g.Reason != v1alpha1.ReasonPaused
	})},
	reason(v1alpha1.ReasonScanFailed),
	{name: "RefResolutionFailed", is: func(s seen) string {
		if c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionRefResolved); c != nil && c.Status == metav1.ConditionFalse {
			return c.Reason + ": " + c.Message
		}
		return ""
	}},
	reason(v1alpha1.ReasonConflictDetected),
	reason(v1alpha1.ReasonDesignerSessionActive),
	reason(v1alpha1.ReasonMassDeletion),
	reason("ApprovalNeeded"),
	reason("CanaryStageFailed"),
	{name: "AutoRollbackPerformed", is: rows(func(g *v1alpha1.DiscoveredGateway) bool { return g.Reason == v1alpha1.ReasonRolledBack })},
	{name: "GatewayFilesModified", is: rows(func(g *v1alpha1.DiscoveredGateway) bool { return g.Drift > 0 })},
	reason(v1alpha1.ReasonChangesRefused),
	{name: "Ready", news: true, text: message, is: func(s seen) string {
		if s.ready.Status != metav1.ConditionTrue {
			return ""
		}
		return s.ready.LastTransitionTime.UTC().Format(time.RFC3339)
	}},
	{name: "RefUpdated", news: true, is: func(s seen) string {
		if t := s.Status.Target; t != nil {
			return t.Commit
		}
		return ""
	}, text: func(s seen) string {
		return fmt.Sprintf("%s is at %s (%s)", s.Status.Target.Ref, request.Short(s.Status.Target.Commit), request.Origin(s.GatewaySync, s.Status.Target.Ref))
	}},
	{name: "SyncCompleted", news: true, text: message, is: func(s seen) string {
		if good := s.Status.LastGood; good != nil {
			return good.Ref + " " + good.Commit
		}
		return ""
	}},
	{name: "RollbackCompleted", news: true, text: message, is: func(s seen) string {
		if s.verdict.Phase == request.Succeeded && s.verdict.Reason == v1alpha1.ReasonRolledBack {
			return s.verdict.Commit
		}
		return ""
	}},
}

// topicOf returns the topic of a name in the spec, or false if there is none.
func topicOf(name v1alpha1.AlertTopic) (topic, bool) {
	switch name { // aliases
	case "ScanFailure":
		name = "ScanFailed"
	case "AutoRollback":
		name = "AutoRollbackPerformed"
	}
	i := slices.IndexFunc(topics, func(w topic) bool { return w.name == name })
	if i < 0 {
		return topic{}, false
	}
	return topics[i], true
}

// notReady returns why the gateways do not run the commit, if waiting alone is not expected to help. A pause is intended.
func notReady(s seen) string {
	switch class := v1alpha1.Reason(s.ready.Reason).Class(); {
	case s.verdict.Phase == request.Paused, s.verdict.Phase == request.Succeeded:
		return ""
	case s.verdict.Phase == request.Failed, s.verdict.Phase == request.Held, s.verdict.Reason == v1alpha1.ReasonAgentsAway:
	case s.ready.Status != metav1.ConditionFalse, class == v1alpha1.ClassWorking, class == v1alpha1.ClassDone:
		return ""
	}
	if s.verdict.Reason == "" {
		return s.verdict.Message
	}
	return string(s.verdict.Reason) + ": " + s.verdict.Message
}

func message(s seen) string { return s.verdict.Message }

// reason returns the topic of a state that holds while the GatewaySync or one of its gateways has the reason r.
func reason(r v1alpha1.Reason) topic {
	of := rows(func(g *v1alpha1.DiscoveredGateway) bool { return g.Reason == r })
	return topic{name: v1alpha1.AlertTopic(r), is: func(s seen) string {
		if text := of(s); text != "" || s.verdict.Reason != r {
			return text
		}
		return s.verdict.Message
	}}
}

// maxNamed bounds the gateways that a message names.
const maxNamed = 10

// rows returns a function that names the gateways for which is returns true.
func rows(is func(*v1alpha1.DiscoveredGateway) bool) func(seen) string {
	return func(s seen) string {
		var sent []string
		more := 0
		for i := range s.Status.DiscoveredGateways {
			g := &s.Status.DiscoveredGateways[i]
			switch {
			case !is(g):
			case len(sent) == maxNamed:
				more++
			default:
				sent = append(sent, row(g))
			}
		}
		if more > 0 {
			sent = append(sent, fmt.Sprintf("and %d more", more))
		}
		return strings.Join(sent, "; ")
	}
}

func row(g *v1alpha1.DiscoveredGateway) string {
	text := v1alpha1.GatewayLabel(g.Name, g.PodName)
	if g.Reason != "" {
		text += " " + string(g.Reason)
	}
	if g.Message != "" {
		text += ": " + status.Cut(v1alpha1.Line(g.Message), 200)
	}
	if g.Drift > 0 {
		text += fmt.Sprintf(" (%d changed on the gateway)", g.Drift)
	}
	return text
}
