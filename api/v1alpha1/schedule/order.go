// Package schedule decides when a gateway may get a commit: its step of a rollout (stages and syncOrder of spec.deployment) and its
// maintenance windows. Both follow from the spec alone, so that the lead (the elected agent) and the agents agree without a message.
package schedule

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
)

// Step is a group of gateways that a rollout reaches at the same time.
type Step struct {
	// Stage is the name of the stage; empty for gateways in no stage.
	Stage string
	// Weight is the weight in spec.deployment.syncOrder. Within a stage, higher weights come first.
	Weight int32

	stage int // index of the stage, or the number of stages for gateways in no stage
}

// Order is the order in which a rollout reaches gateways. It does not depend on which gateways run.
type Order struct {
	steps   []Step
	stages  []v1alpha1.Stage
	entries []orderEntry
}

// orderEntry is an entry of spec.deployment.syncOrder.
type orderEntry struct {
	name   string
	weight int32
	stage  int // of the gateway with this name; unused for a pattern
}

// Steps returns the steps of a rollout in their order. There is at least one. A step may have no gateway.
func Steps(gs *v1alpha1.GatewaySync) []Step { return OrderOf(gs).Steps() }

// StepOf returns the number of the step of a gateway, counted from 1. names are its name and that of its pod.
func StepOf(gs *v1alpha1.GatewaySync, names ...string) int { return OrderOf(gs).StepOf(names...) }

// OrderOf returns the order in which a rollout reaches gateways. If the spec is TooLarge, there is one step.
func OrderOf(gs *v1alpha1.GatewaySync) Order {
	o := Order{stages: gs.Stages()}
	if TooLarge(gs) {
		o.stages = nil
	} else if gs.Spec.Deployment != nil {
		for _, e := range gs.Spec.Deployment.SyncOrder {
			weight := int32(v1alpha1.DefaultWeight)
			if e.Weight != nil {
				weight = *e.Weight
			}
			o.entries = append(o.entries, orderEntry{e.Name, weight, o.stageOf(e.Name)})
		}
	}
	for stage := range len(o.stages) + 1 {
		o.steps = append(o.steps, o.stepsOf(stage)...)
	}
	return o
}

// TooLarge reports whether a spec has so many names and patterns that Validate refuses it. OrderOf then ignores stages and syncOrder.
func TooLarge(gs *v1alpha1.GatewaySync) bool { return comparisons(gs.Spec.Deployment) > maxComparisons }

// maxComparisons bounds comparisons, so that OrderOf takes seconds at most.
const maxComparisons = 2 << 20

// comparisons bounds the work of OrderOf: it compares the names in stages, and all entries of syncOrder, also those with "*", with the
// patterns, and each comparison takes time in proportion to the length of the pattern. Other comparisons are cheap.
func comparisons(d *v1alpha1.DeploymentSpec) int {
	if d == nil {
		return 0
	}
	names, patterns := 0, 0
	add := func(name string, isEntry bool) {
		if isPattern(name) {
			patterns += len(name)
		}
		if isEntry || !isPattern(name) {
			names++
		}
	}
	for i := range d.Stages {
		for _, name := range d.Stages[i].Gateways {
			add(name, false)
		}
	}
	for i := range d.SyncOrder {
		add(d.SyncOrder[i].Name, true)
	}
	return names * patterns
}

// Steps returns the steps in their order.
func (o Order) Steps() []Step { return o.steps }

// StepOf returns the number of the step of a gateway, counted from 1. names are its name and that of its pod: one-replica StatefulSets are
// the rule, and the gateway of their pod line-0 is called line. If the names are in different stages, the earlier stage counts. Within one
// stage, a name with an entry in syncOrder counts before one without.
func (o Order) StepOf(names ...string) int {
	gateway := o.nameOf(names)
	step := o.step(o.stageOf(gateway), o.entryOf(gateway))
	i, _ := slices.BinarySearchFunc(o.steps, step, compareSteps)
	return min(i, len(o.steps)-1) + 1
}

// Stage returns the stage of a step, which is counted from 1; nil for gateways in no stage, and for a step that does not exist.
func (o Order) Stage(step int) *v1alpha1.Stage {
	if step < 1 || step > len(o.steps) || o.steps[step-1].stage == len(o.stages) {
		return nil
	}
	return &o.stages[o.steps[step-1].stage]
}

// Opens reports whether a step, counted from 1, is the first of its stage.
func (o Order) Opens(step int) bool {
	return step == 1 || o.steps[step-1].stage != o.steps[step-2].stage
}

// Ends reports whether a step, counted from 1, is the last of its stage.
func (o Order) Ends(step int) bool {
	return step == len(o.steps) || o.steps[step-1].stage != o.steps[step].stage
}

// nameOf returns the name of a gateway that decides its step.
func (o *Order) nameOf(names []string) string {
	best := ""
	for _, name := range names {
		switch is, was := o.stageOf(name), o.stageOf(best); {
		case name == "":
		case best == "", is < was, is == was && o.entryOf(best) < 0 && o.entryOf(name) >= 0:
			best = name
		}
	}
	return best
}

// StageOf returns the stage of a gateway with these names, or nil if it is in none.
func StageOf(gs *v1alpha1.GatewaySync, names ...string) *v1alpha1.Stage {
	for i, s := range gs.Stages() {
		if matchesAny(s.Gateways, names...) {
			return &gs.Spec.Deployment.Stages[i]
		}
	}
	return nil
}

// matchesAny reports whether one of the patterns matches one of the names of a gateway.
func matchesAny(patterns []string, names ...string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return name != "" && matchesGateway(pattern, name) })
	})
}

// Unmatched returns the names and patterns of spec.deployment that match none of the gateways in the status, as one sentence with the
// gateways there are. It returns "" if all match, if no gateway is known, or if the spec is TooLarge. With a typing error in a name, a stage
// or a window has no effect.
func Unmatched(gs *v1alpha1.GatewaySync) string {
	d, gateways := gs.Spec.Deployment, gs.Status.DiscoveredGateways
	if d == nil || len(gateways) == 0 || TooLarge(gs) {
		return ""
	}
	var unmatched []string
	add := func(where string, patterns ...string) {
		for _, pattern := range patterns {
			if !slices.ContainsFunc(gateways, func(g v1alpha1.DiscoveredGateway) bool { return matchesAny([]string{pattern}, g.Name, g.PodName) }) {
				unmatched = append(unmatched, fmt.Sprintf("%.63q of %s", pattern, where))
			}
		}
	}
	for _, s := range gs.Stages() {
		add("stage "+s.Name, s.Gateways...)
	}
	for _, e := range d.SyncOrder {
		add("syncOrder", e.Name)
	}
	for _, w := range d.Windows {
		add("window "+w.Name, w.Gateways...)
	}
	if len(unmatched) == 0 {
		return ""
	}
	var labels []string
	for _, g := range gateways {
		labels = append(labels, gatewaypod.GatewayLabel(g.Name, g.PodName))
	}
	return "spec.deployment: no gateway is called " + first(unmatched, " or ") + "; there are " + first(labels, ", ")
}

// first joins at most five texts of a list, and counts the others.
func first(list []string, separator string) string {
	const most = 5
	text := strings.Join(list[:min(len(list), most)], separator)
	if more := len(list) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// matchesGateway reports whether a name, or a pattern with "*", matches the name of a gateway.
func matchesGateway(pattern, gateway string) bool {
	if !isPattern(pattern) {
		return pattern == gateway
	}
	ok, err := path.Match(pattern, gateway)
	return ok && err == nil
}

// stepsOf returns the steps in which a gateway of a stage can be, at least one. It returns nil for the gateways in no stage if a stage
// covers all gateways.
func (o *Order) stepsOf(stage int) []Step {
	var steps []Step
	noStage := stage == len(o.stages)
	if noStage && slices.ContainsFunc(o.stages, func(s v1alpha1.Stage) bool { return slices.Contains(s.Gateways, "*") }) {
		return nil
	}
	names := []string{"*"} // a gateway in no stage may have any name
	if !noStage {
		names = o.stages[stage].Gateways
	}
	for _, name := range names {
		if !isPattern(name) {
			if o.stageOf(name) == stage {
				steps = append(steps, o.step(stage, o.entryOf(name)))
			}
			continue
		}
		covered := false
		for i, e := range o.entries {
			if patternsMeet(name, e.name) && (isPattern(e.name) || e.stage == stage) {
				steps = append(steps, o.step(stage, i))
			}
			covered = covered || e.name == "*" || e.name == name
		}
		if !covered {
			steps = append(steps, o.step(stage, -1))
		}
	}
	if len(steps) == 0 {
		steps = append(steps, o.step(stage, -1))
	}
	slices.SortFunc(steps, compareSteps)
	return slices.CompactFunc(steps, func(a, b Step) bool { return compareSteps(a, b) == 0 })
}

// step returns the step of the gateways of an entry in a stage; the entry is -1 for gateways without one.
func (o *Order) step(stage, entry int) Step {
	s := Step{Weight: v1alpha1.DefaultWeight, stage: stage}
	if entry >= 0 {
		s.Weight = o.entries[entry].weight
	}
	if stage < len(o.stages) {
		s.Stage = o.stages[stage].Name
	}
	return s
}

func compareSteps(a, b Step) int {
	return cmp.Or(cmp.Compare(a.stage, b.stage), cmp.Compare(b.Weight, a.Weight))
}

// stageOf returns the index of the stage of a gateway, or the number of stages.
func (o *Order) stageOf(gateway string) int {
	for i := range o.stages {
		if matchesAny(o.stages[i].Gateways, gateway) {
			return i
		}
	}
	return len(o.stages)
}

// entryOf returns the index of the entry of a gateway, or -1.
func (o *Order) entryOf(gateway string) int {
	return slices.IndexFunc(o.entries, func(e orderEntry) bool { return matchesGateway(e.name, gateway) })
}

func isPattern(name string) bool { return strings.Contains(name, "*") }

// patternsMeet reports whether a name can match both patterns.
func patternsMeet(a, b string) bool {
	if !isPattern(b) {
		return matchesGateway(a, b)
	}
	meet := make([]bool, len(b)+1) // meet[j] reports whether a[i:] and b[j:] meet
	for i := len(a); i >= 0; i-- {
		next := slices.Clone(meet) // for i+1
		for j := len(b); j >= 0; j-- {
			switch {
			case i == len(a):
				meet[j] = strings.Trim(b[j:], "*") == ""
			case a[i] == '*':
				meet[j] = next[j] || j < len(b) && meet[j+1]
			case j == len(b):
				meet[j] = false
			case b[j] == '*':
				meet[j] = meet[j+1] || next[j]
			default:
				meet[j] = a[i] == b[j] && next[j+1]
			}
		}
	}
	return meet[0]
}
