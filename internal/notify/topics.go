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
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/request"
)

// input is what a topic is computed from: a GatewaySync, and what its status says. For a topic of a ConfigSync, verdict and ready are those of
// the ConfigSync.
type input struct {
	*v1alpha1.GatewaySync
	verdict request.Verdict
	ready   metav1.Condition
	now     time.Time
	// pausedSince is when the channel saw that the GatewaySync is paused; zero while it is not.
	pausedSince time.Time
}

// Severity is how urgent a state is, in the words of PagerDuty.
type Severity string

// The severities.
const (
	Info     Severity = "info"     // the wait ends by itself, or with an approval
	Warning  Severity = "warning"  // the agent tries again, or a user has to act when it suits
	Error    Severity = "error"    // the gateways do not run the commit until a user acts
	Critical Severity = "critical" // no agent reports
)

// rank returns the order of the severities. An unknown one is the least.
func rank(s Severity) int { return slices.Index([]Severity{Info, Warning, Error, Critical}, s) }

// situation is why a state holds; its text is empty while it does not.
type situation struct {
	text     string
	reason   v1alpha1.Reason
	severity Severity
	count    int       // of gateways
	since    time.Time // when it began, if the status says so
}

// key returns the reason as a word: the status of a gateway may have any text.
func (s situation) key() string {
	for _, r := range string(s.reason) {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') || len(s.reason) > 64 {
			return "Other"
		}
	}
	return string(s.reason)
}

// happening is an event; its id is empty if there was none. unknown means that there may have been one that the status does not show now.
type happening struct {
	id, ref, commit, text string
	unknown               bool
}

// severityOf returns the severity of a reason. failed means that waiting does not help.
func severityOf(reason v1alpha1.Reason, failed bool) Severity {
	switch class := reason.Class(); {
	case reason == v1alpha1.ReasonAgentsAway:
		return Critical
	case failed, class == v1alpha1.ClassStalled, class == v1alpha1.ClassNotInjected:
		return Error
	case waits(reason):
		return Info
	}
	return Warning
}

// waits reports whether a reason is a wait that ends by itself, or with an approval that the spec asks for.
func waits(reason v1alpha1.Reason) bool {
	return reason.Cause() == v1alpha1.CausePlan || reason == v1alpha1.ReasonDesignerSessionActive
}

func newInput(gs *v1alpha1.GatewaySync, now time.Time) input {
	in := input{GatewaySync: gs, verdict: request.Read(gs, "", nil, now), now: now}
	if c := meta.FindStatusCondition(gs.Status.Conditions, v1alpha1.ConditionReady); c != nil {
		in.ready = *c
	}
	return in
}

// since returns when a condition got its status. Without the condition, it returns since when the fleet is not ready.
func (in input) since(condition string) time.Time {
	if c := meta.FindStatusCondition(in.Status.Conditions, condition); c != nil {
		return c.LastTransitionTime.Time
	}
	if in.ready.Status != metav1.ConditionTrue {
		return in.ready.LastTransitionTime.Time
	}
	return time.Time{}
}

// topic is a row of the table of topics that spec.alerting can name. It is a state, which begins and ends, or an event.
type topic struct {
	name v1alpha1.AlertTopic
	// state returns why the state holds; nil for an event.
	state func(input) situation
	// event returns the last event; nil for a state.
	event func(input) happening
}

// longPause is how long a pause may last before PausedForLong. The alert StokerPaused has the same time.
const longPause = 24 * time.Hour

// pausedForLong is a topic. The status does not say when a pause began, so the record keeps when the channel first saw it, as pausedSince.
const pausedForLong, pausedSince v1alpha1.AlertTopic = "PausedForLong", "PausedSince"

// topics is the table, in the order of v1alpha1.AlertTopics.
var topics = []topic{
	{name: "NotReady", state: notReady},
	{name: "AgentsAway", state: func(in input) situation {
		if in.verdict.Reason == v1alpha1.ReasonAgentsAway {
			return in.situation(in.verdict.Message)
		}
		return situation{}
	}},
	{name: "SyncFailed", state: gatewaysThat(func(g *v1alpha1.DiscoveredGateway) bool { return g.SyncStatus == v1alpha1.GatewayError })},
	{name: "SyncHeld", state: gatewaysThat(func(g *v1alpha1.DiscoveredGateway) bool {
		return g.SyncStatus == v1alpha1.GatewayHeld && g.Reason != v1alpha1.ReasonPaused
	})},
	reasonTopic(v1alpha1.ReasonScanFailed),
	{name: "RefResolutionFailed", state: func(in input) situation {
		c := meta.FindStatusCondition(in.Status.Conditions, v1alpha1.ConditionRefResolved)
		if c == nil || c.Status != metav1.ConditionFalse {
			return situation{}
		}
		reason := v1alpha1.Reason(c.Reason)
		return situation{text: c.Reason + ": " + c.Message, reason: reason, severity: severityOf(reason, false), since: c.LastTransitionTime.Time}
	}},
	reasonTopic(v1alpha1.ReasonConflictDetected),
	reasonTopic(v1alpha1.ReasonDesignerSessionActive),
	reasonTopic(v1alpha1.ReasonMassDeletion),
	reasonTopic("ApprovalNeeded"),
	reasonTopic("CanaryStageFailed"),
	{name: "AutoRollbackPerformed", state: gatewaysThat(func(g *v1alpha1.DiscoveredGateway) bool { return g.Reason == v1alpha1.ReasonRolledBack })},
	{name: "GatewayFilesModified", state: gatewaysThat(func(g *v1alpha1.DiscoveredGateway) bool { return g.Drift > 0 })},
	reasonTopic(v1alpha1.ReasonChangesRefused),
	{name: pausedForLong, state: func(in input) situation {
		since := in.pausedSince
		if since.IsZero() || in.now.Sub(since) < longPause {
			return situation{}
		}
		return situation{text: "paused since " + since.UTC().Format(time.RFC3339) + ": " + in.verdict.Message, reason: v1alpha1.ReasonPaused, severity: Info, since: since}
	}},
	{name: configSyncNotReady, state: configSyncFails},
	{name: "Ready", event: func(in input) happening {
		if in.ready.Status != metav1.ConditionTrue {
			return happening{}
		}
		return happening{id: in.ready.LastTransitionTime.UTC().Format(time.RFC3339), ref: in.verdict.Ref, commit: in.verdict.Commit, text: in.ready.Message}
	}},
	{name: "RefUpdated", event: func(in input) happening {
		t := in.Status.Target
		if t == nil || t.Commit == "" {
			return happening{}
		}
		return happening{id: t.Commit, ref: t.Ref, commit: t.Commit, text: fmt.Sprintf("%s is at %s (%s)", t.Ref, syntax.ShortCommit(t.Commit), request.Origin(in.GatewaySync, t.Ref))}
	}},
	{name: "SyncCompleted", event: func(in input) happening {
		good := in.Status.LastGood
		if good == nil {
			return happening{}
		}
		return happening{id: good.Ref + " " + good.Commit, ref: good.Ref, commit: good.Commit, text: fmt.Sprintf("all gateways run %s at %s", good.Ref, syntax.ShortCommit(good.Commit))}
	}},
	{name: "RollbackCompleted", event: func(in input) happening {
		if in.verdict.Phase != request.Succeeded || in.verdict.Reason != v1alpha1.ReasonRolledBack {
			d, err := desiredref.Of(in.GatewaySync, "")
			return happening{unknown: err != nil || d.Unless != ""} // it may have completed before the gateways restarted
		}
		id := in.verdict.Commit
		if r := in.Status.Request; r != nil {
			id += " " + r.Over // another rollback to the same commit is another event
		}
		return happening{id: id, ref: in.verdict.Ref, commit: in.verdict.Commit, text: in.verdict.Message}
	}},
}

// topicOf returns the topic of a name in the spec, or false if there is none.
func topicOf(name v1alpha1.AlertTopic) (topic, bool) {
	i := slices.IndexFunc(topics, func(t topic) bool { return t.name == name })
	if i < 0 {
		return topic{}, false
	}
	return topics[i], true
}

// notReady returns why the gateways do not run the commit, if waiting alone is not expected to help. A pause is intended, and so are waits
// that end by themselves or with an approval. During such a wait, only gateways with another problem count.
func notReady(in input) situation {
	switch class := v1alpha1.Reason(in.ready.Reason).Class(); {
	case in.verdict.Phase == request.Paused, in.verdict.Phase == request.Succeeded:
		return situation{}
	case waits(in.verdict.Reason) && in.verdict.Phase != request.Failed:
		return gatewaysThat(func(g *v1alpha1.DiscoveredGateway) bool {
			return g.SyncStatus == v1alpha1.GatewayError || g.SyncStatus == v1alpha1.GatewayHeld && !waits(g.Reason) && g.Reason != v1alpha1.ReasonPaused
		})(in)
	case in.verdict.Phase == request.Failed, in.verdict.Phase == request.Held, in.verdict.Reason == v1alpha1.ReasonAgentsAway:
	case in.ready.Status != metav1.ConditionFalse, class == v1alpha1.ClassWorking, class == v1alpha1.ClassDone:
		return situation{}
	}
	if in.verdict.Reason == "" {
		return in.situation(in.verdict.Message)
	}
	return in.situation(string(in.verdict.Reason) + ": " + in.verdict.Message)
}

// situation returns the situation of the fleet that its verdict describes.
func (in input) situation(text string) situation {
	s := situation{text: text, reason: in.verdict.Reason, severity: severityOf(in.verdict.Reason, in.verdict.Phase == request.Failed), since: in.since(v1alpha1.ConditionStalled)}
	if !in.verdict.Since.IsZero() {
		s.since = in.verdict.Since
	}
	for _, b := range in.verdict.Behind {
		if b.Reason == s.reason {
			s.count++
		}
	}
	return s
}

// reasonTopic returns the topic of a state that holds while the GatewaySync or one of its gateways has the reason r.
func reasonTopic(r v1alpha1.Reason) topic {
	list := gatewaysThat(func(g *v1alpha1.DiscoveredGateway) bool { return g.Reason == r })
	return topic{name: v1alpha1.AlertTopic(r), state: func(in input) situation {
		if s := list(in); s.text != "" || in.verdict.Reason != r {
			return s
		}
		return in.situation(in.verdict.Message)
	}}
}

// maxListed bounds the gateways that a message lists.
const maxListed = 10

// gatewaysThat returns a state that lists the gateways for which match returns true. Its reason is the most severe one of theirs.
func gatewaysThat(match func(*v1alpha1.DiscoveredGateway) bool) func(input) situation {
	return func(in input) situation {
		var list []string
		var s situation
		if in.ready.Status != metav1.ConditionTrue {
			s.since = in.ready.LastTransitionTime.Time
		}
		for i := range in.Status.DiscoveredGateways {
			g := &in.Status.DiscoveredGateways[i]
			if !match(g) {
				continue
			}
			severity := severityOf(g.Reason, in.verdict.Phase == request.Failed && g.SyncStatus == v1alpha1.GatewayError)
			if s.count == 0 || rank(severity) > rank(s.severity) {
				s.reason, s.severity = g.Reason, severity
			}
			if s.count++; s.count <= maxListed {
				list = append(list, gatewayLine(g))
			}
		}
		if s.count > maxListed {
			list = append(list, fmt.Sprintf("and %d more", s.count-maxListed))
		}
		s.text = strings.Join(list, "; ")
		return s
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
