// Package display shows GatewaySyncs and ConfigSyncs to users of a terminal: lists of them, the state of one, once or again after
// each change, and its history.
package display

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/api/v1alpha1/schedule"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/hooks/sites"
	"stoker.io/stoker/internal/request"
	"stoker.io/stoker/internal/status"
)

// ResourceName returns the name of an object in the form of kubectl.
func ResourceName(o v1alpha1.Requestable) string {
	if _, ok := o.(*v1alpha1.ConfigSync); ok {
		return resourceName(v1alpha1.KindConfigSync, o.GetName())
	}
	return resourceName(v1alpha1.KindGatewaySync, o.GetName())
}

func resourceName(kind, name string) string {
	return strings.ToLower(kind) + "." + v1alpha1.GroupVersion.Group + "/" + name
}

// BareObject returns a copy without managed fields, with kind and version set.
func BareObject(o v1alpha1.Requestable) v1alpha1.Requestable {
	switch o := o.(type) {
	case *v1alpha1.GatewaySync:
		o = o.DeepCopy()
		o.ManagedFields, o.APIVersion, o.Kind = nil, v1alpha1.GroupVersion.String(), v1alpha1.KindGatewaySync
		return o
	case *v1alpha1.ConfigSync:
		o = o.DeepCopy()
		o.ManagedFields, o.APIVersion, o.Kind = nil, v1alpha1.GroupVersion.String(), v1alpha1.KindConfigSync
		return o
	}
	return o
}

// List returns a table of GatewaySyncs, with a column for the namespace if namespaces is true. data is the result as JSON or
// YAML.
func List(list []*v1alpha1.GatewaySync, l sites.Leads, now time.Time, namespaces bool, data any) *output.Result {
	r := &output.Result{Data: data, Head: []string{"NAME", "REF", "COMMIT", "GATEWAYS", "READY", "CONFIRMED", "AGE", "STATUS"}}
	if namespaces {
		r.Head = append([]string{"NAMESPACE"}, r.Head...)
	}
	for _, gs := range list {
		cells := listCells(gs, l.Target(gs), now)
		if namespaces {
			cells = append([]string{gs.Namespace}, cells...)
		}
		r.Add(ResourceName(gs), cells...)
	}
	return r
}

// listCells returns the row of a GatewaySync. target is nil if its SyncTarget is unknown.
func listCells(gs *v1alpha1.GatewaySync, target *v1alpha1.SyncTarget, now time.Time) []string {
	v := request.Read(gs, "", target, now)
	ref, gateways, confirmed := v.Ref, "", ""
	if syntax.IsCommit(ref) {
		ref = syntax.ShortCommit(ref)
	}
	if gs.Status.Outcome != nil {
		gateways = fmt.Sprintf("%d/%d", v.Gateways.Synced, v.Gateways.Total)
	}
	if t := gs.Status.ConfirmedAt; t != nil {
		confirmed = output.Age(t.Time)
	}
	return []string{gs.Name, ref, syntax.ShortCommit(v.Commit), gateways, string(ready(gs, v)), confirmed, output.Age(gs.CreationTimestamp.Time), output.Shorten(v.Message)}
}

// ready returns the condition Ready that belongs to a verdict. The one in the status may be of an earlier request, or of a lead that is gone.
func ready(gs *v1alpha1.GatewaySync, v request.Verdict) metav1.ConditionStatus {
	c := meta.FindStatusCondition(gs.Status.Conditions, v1alpha1.ConditionReady)
	runs := v.Commit != "" && v.Gateways.Synced == v.Gateways.Total
	switch {
	case v.Phase == request.Succeeded, v.Phase == request.Paused && runs:
		return metav1.ConditionTrue
	case v.Phase == request.Failed && c != nil && c.Status == metav1.ConditionUnknown && c.Reason == string(v.Reason): // its agents were away for too long
		return metav1.ConditionUnknown
	case v.Phase == request.Progressing && slices.Contains([]v1alpha1.Reason{v1alpha1.ReasonAgentsAway, v1alpha1.ReasonNoGateways, v1alpha1.ReasonWaitingForLead}, v.Reason):
		return metav1.ConditionUnknown
	}
	return metav1.ConditionFalse
}

// Describe prints a GatewaySync, the verdict on it, why gateways are behind, and its gateways, those that are behind first. With
// onlyBehind it leaves out the others. Commands name the context unless it is "".
func Describe(w io.Writer, gs *v1alpha1.GatewaySync, v request.Verdict, context string, onlyBehind bool) {
	line := func(label, value string) {
		if value != "" {
			fmt.Fprintf(w, "%-12s %s\n", label+":", output.OneLine(value))
		}
	}
	line("Name", gs.Namespace+"/"+gs.Name)
	line("Repository", gs.Spec.Git.Repo)
	line("Ref", output.RefAt(v.Ref, v.Commit)+refOrigin(gs, v.Ref))
	if t := gs.Status.Target; t != nil && t.Commit == v.Commit {
		line("Commit", t.Subject)
	}
	unknown := v.Reason == v1alpha1.ReasonAgentsAway
	if unknown && v.Gateways.Total > 0 {
		line("Gateways", fmt.Sprintf("what %d run is not known; below is what they reported last", v.Gateways.Total))
	} else {
		line("Gateways", fmt.Sprintf("%d of %d run it", v.Gateways.Synced, v.Gateways.Total))
	}
	gateways, behind := behindFirst(gs, v)
	if unknown {
		line("Next", status.Next(v.Reason))
	} else {
		for _, why := range reasons(gs.Name+sites.Flags(gs.Namespace, context), gateways[:behind]) {
			line("Behind", why)
		}
	}
	if gs.Paused() {
		line("Paused", "yes")
	}
	line("Phase", string(v.Phase))
	line("Rollout", rolloutLine(gs))
	line("Warning", schedule.Unmatched(gs))
	line("Ready", fmt.Sprintf("%s, %s: %s", ready(gs, v), v.Reason, v.Message))
	if g := gs.Status.LastGood; g != nil {
		line("Last good", output.RefAt(g.Ref, g.Commit)+", "+output.Age(g.At.Time)+" ago")
	}
	if c := meta.FindStatusCondition(gs.Status.Conditions, v1alpha1.ConditionBidirectionalReady); c != nil && c.Status == metav1.ConditionTrue {
		line("Proposals", c.Message)
	} else if c != nil {
		line("Proposals", c.Reason+": "+c.Message)
	}
	if onlyBehind {
		gateways = gateways[:behind]
	}
	describeGateways(w, gateways)
}

// behindFirst returns the gateways, and how many of them do not run the commit. Those come first, the most urgent before others.
func behindFirst(gs *v1alpha1.GatewaySync, v request.Verdict) (gateways []v1alpha1.DiscoveredGateway, behind int) {
	rank := func(g v1alpha1.DiscoveredGateway) int {
		if g.SyncStatus.Synced() && (v.Commit == "" || g.SyncedCommit == v.Commit) {
			return -1
		}
		return status.Weight(g.Reason)
	}
	gateways = slices.Clone(gs.Status.DiscoveredGateways)
	slices.SortStableFunc(gateways, func(a, b v1alpha1.DiscoveredGateway) int { return rank(b) - rank(a) })
	behind = slices.IndexFunc(gateways, func(g v1alpha1.DiscoveredGateway) bool { return rank(g) < 0 })
	if behind < 0 {
		behind = len(gateways)
	}
	return gateways, behind
}

// reasons returns a line for each reason of gateways that are behind, in their order: how many there are, and what happens next.
// name is the GatewaySync as a command names it.
func reasons(name string, behind []v1alpha1.DiscoveredGateway) (lines []string) {
	var order []v1alpha1.Reason
	count := map[v1alpha1.Reason]int{}
	for _, g := range behind {
		r := g.Reason
		if r == "" || g.SyncStatus.Synced() {
			r = v1alpha1.ReasonProgressing
		}
		if count[r]++; count[r] == 1 {
			order = append(order, r)
		}
	}
	for _, r := range order {
		s := fmt.Sprintf("%d %s", count[r], r)
		if next := status.NextOf(name, r); next != "" {
			s += ": " + next
		}
		lines = append(lines, s)
	}
	return lines
}

// describeGateways prints a table of the gateways and one of the notes about their last syncs. An empty table is left out.
func describeGateways(w io.Writer, gateways []v1alpha1.DiscoveredGateway) {
	var rows, notes [][]string
	for _, g := range gateways {
		drift := ""
		if g.Drift > 0 {
			drift = fmt.Sprint(g.Drift)
		}
		reason := string(g.Reason)
		if reason == string(g.SyncStatus) {
			reason = ""
		}
		rows = append(rows, []string{g.Name, string(g.SyncStatus), reason, syntax.ShortCommit(g.SyncedCommit), g.Profile, drift, g.PodName, output.Shorten(g.Message)})
		for _, note := range g.Notes {
			notes = append(notes, []string{g.Name, note})
		}
	}
	if len(rows) > 0 {
		fmt.Fprintln(w)
		output.WriteTable(w, []string{"GATEWAY", "STATUS", "REASON", "COMMIT", "PROFILE", "DRIFT", "POD", "MESSAGE"}, rows)
	}
	if len(notes) > 0 {
		fmt.Fprintln(w)
		output.WriteTable(w, []string{"GATEWAY", "NOTE"}, notes)
	}
}

// rolloutLine returns how far the rollout of gs is, or "" if all gateways change at once.
func rolloutLine(gs *v1alpha1.GatewaySync) string {
	r := gs.Status.Rollout
	if r == nil {
		return ""
	}
	s := rolloutStep(r)
	if r.Since != nil {
		s += ", for " + output.Age(r.Since.Time)
	}
	if r.Message != "" {
		s += ": " + r.Message
	}
	return s
}

// rolloutStep returns the phase, the step and the stage of a rollout.
func rolloutStep(r *v1alpha1.RolloutStatus) string {
	s := fmt.Sprintf("%s, step %d of %d", r.Phase, r.Step, r.Steps)
	if r.Stage != "" {
		s += ", stage " + r.Stage
	}
	return s
}

// refOrigin returns who requested the ref, or "" if it comes from the spec.
func refOrigin(gs *v1alpha1.GatewaySync, ref string) string {
	from := request.Origin(gs, ref)
	if from == "spec.git.ref" {
		return ""
	}
	s := " (" + from
	if commit := desiredref.InputsOf(gs).Commit(); commit != "" {
		s += ", at " + syntax.ShortCommit(commit) + " only"
	}
	if ref != gs.Spec.Git.Ref {
		s += "; spec.git.ref is " + gs.Spec.Git.Ref
	}
	if d, err := desiredref.Of(gs, ""); err == nil && d.Unless != "" {
		s += fmt.Sprintf(", until it moves on from %s", syntax.ShortCommit(d.Unless))
	}
	return s + ")"
}
