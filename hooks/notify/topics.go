package notify

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/request"
)

// input is what a topic is computed from: a GatewaySync, and what its status says.
type input struct {
	*v1alpha1.GatewaySync
	verdict request.Verdict
	ready   metav1.Condition
}

func newInput(gs *v1alpha1.GatewaySync, now time.Time) input {
	in := input{GatewaySync: gs, verdict: request.Read(gs, "", nil, now)}
	if c := meta.FindStatusCondition(gs.Status.Conditions, v1alpha1.ConditionReady); c != nil {
		in.ready = *c
	}
	return in
}

// topic is a row of the table of topics that spec.alerting can name. It is a state, which begins and ends, or an event.
type topic struct {
	name v1alpha1.AlertTopic
	// state returns why the state holds, or "" while it does not; nil for an event.
	state func(input) string
	// event returns the identity of the last event, or "" if there was none; nil for a state. text is the message of that event.
	event, text func(input) string
}

// topics is the table, in the order of v1alpha1.AlertTopics.
var topics = []topic{
	{name: "NotReady", state: notReady},
	{name: "AgentsAway", state: func(in input) string {
		if in.verdict.Reason == v1alpha1.ReasonAgentsAway {
			return in.verdict.Message
		}
		return ""
	}},
	{name: "SyncFailed", state: gatewaysThat(func(g *v1alpha1.DiscoveredGateway) bool { return g.SyncStatus == v1alpha1.GatewayError })},
	{name: "SyncHeld", state: gatewaysThat(func(g *v1alpha1.DiscoveredGateway) bool {
		return g.SyncStatus == v1alpha1.GatewayHeld && g.Reason != v1alpha1.ReasonPaused
	})},
	reasonTopic(v1alpha1.ReasonScanFailed),
	{name: "RefResolutionFailed", state: func(in input) string {
		if c := meta.FindStatusCondition(in.Status.Conditions, v1alpha1.ConditionRefResolved); c != nil && c.Status == metav1.ConditionFalse {
			return c.Reason + ": " + c.Message
		}
		return ""
	}},
	reasonTopic(v1alpha1.ReasonConflictDetected),
	reasonTopic(v1alpha1.ReasonDesignerSessionActive),
	reasonTopic(v1alpha1.ReasonMassDeletion),
	reasonTopic("ApprovalNeeded"),
	reasonTopic("CanaryStageFailed"),
	{name: "AutoRollbackPerformed", state: gatewaysThat(func(g *v1alpha1.DiscoveredGateway) bool { return g.Reason == v1alpha1.ReasonRolledBack })},
	{name: "GatewayFilesModified", state: gatewaysThat(func(g *v1alpha1.DiscoveredGateway) bool { return g.Drift > 0 })},
	reasonTopic(v1alpha1.ReasonChangesRefused),
	{name: "Ready", text: verdictMessage, event: func(in input) string {
		if in.ready.Status != metav1.ConditionTrue {
			return ""
		}
		return in.ready.LastTransitionTime.UTC().Format(time.RFC3339)
	}},
	{name: "RefUpdated", event: func(in input) string {
		if t := in.Status.Target; t != nil {
			return t.Commit
		}
		return ""
	}, text: func(in input) string {
		return fmt.Sprintf("%s is at %s (%s)", in.Status.Target.Ref, syntax.ShortCommit(in.Status.Target.Commit), request.Origin(in.GatewaySync, in.Status.Target.Ref))
	}},
	{name: "SyncCompleted", text: verdictMessage, event: func(in input) string {
		if good := in.Status.LastGood; good != nil {
			return good.Ref + " " + good.Commit
		}
		return ""
	}},
	{name: "RollbackCompleted", text: verdictMessage, event: func(in input) string {
		if in.verdict.Phase == request.Succeeded && in.verdict.Reason == v1alpha1.ReasonRolledBack {
			return in.verdict.Commit
		}
		return ""
	}},
}

// topicOf returns the topic of a name or an alias in the spec, or false if there is none.
func topicOf(name v1alpha1.AlertTopic) (topic, bool) {
	switch name {
	case "ScanFailure":
		name = "ScanFailed"
	case "AutoRollback":
		name = "AutoRollbackPerformed"
	}
	i := slices.IndexFunc(topics, func(t topic) bool { return t.name == name })
	if i < 0 {
		return topic{}, false
	}
	return topics[i], true
}

// notReady returns why the gateways do not run the commit, if waiting alone is not expected to help. A pause is intended.
func notReady(in input) string {
	switch class := v1alpha1.Reason(in.ready.Reason).Class(); {
	case in.verdict.Phase == request.Paused, in.verdict.Phase == request.Succeeded:
		return ""
	case in.verdict.Phase == request.Failed, in.verdict.Phase == request.Held, in.verdict.Reason == v1alpha1.ReasonAgentsAway:
	case in.ready.Status != metav1.ConditionFalse, class == v1alpha1.ClassWorking, class == v1alpha1.ClassDone:
		return ""
	}
	if in.verdict.Reason == "" {
		return in.verdict.Message
	}
	return string(in.verdict.Reason) + ": " + in.verdict.Message
}

func verdictMessage(in input) string { return in.verdict.Message }

// reasonTopic returns the topic of a state that holds while the GatewaySync or one of its gateways has the reason r.
func reasonTopic(r v1alpha1.Reason) topic {
	list := gatewaysThat(func(g *v1alpha1.DiscoveredGateway) bool { return g.Reason == r })
	return topic{name: v1alpha1.AlertTopic(r), state: func(in input) string {
		if text := list(in); text != "" || in.verdict.Reason != r {
			return text
		}
		return in.verdict.Message
	}}
}

// maxListed bounds the gateways that a message lists.
const maxListed = 10

// gatewaysThat returns a function that lists the gateways for which match returns true.
func gatewaysThat(match func(*v1alpha1.DiscoveredGateway) bool) func(input) string {
	return func(in input) string {
		var list []string
		more := 0
		for i := range in.Status.DiscoveredGateways {
			g := &in.Status.DiscoveredGateways[i]
			switch {
			case !match(g):
			case len(list) == maxListed:
				more++
			default:
				list = append(list, gatewayLine(g))
			}
		}
		if more > 0 {
			list = append(list, fmt.Sprintf("and %d more", more))
		}
		return strings.Join(list, "; ")
	}
}

func gatewayLine(g *v1alpha1.DiscoveredGateway) string {
	text := gatewaypod.GatewayLabel(g.Name, g.PodName)
	if g.Reason != "" {
		text += " " + string(g.Reason)
	}
	if g.Message != "" {
		text += ": " + failure.Cut(annotation.Line(g.Message), 200)
	}
	if g.Drift > 0 {
		text += fmt.Sprintf(" (%d changed on the gateway)", g.Drift)
	}
	return text
}
