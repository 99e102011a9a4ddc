// Package diff plans what a commit would change on running gateways. It asks the agent of a gateway which commit runs, and plans
// the change with the agent's own code, from a local clone that has both commits.
package diff

import (
	"context"
	"fmt"
	"io"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/hooks/agents"
	"stoker.io/stoker/hooks/offline"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/internal/kube"
)

// Planner plans the change of gateways to one commit.
type Planner struct {
	Core        kube.Core
	Namespace   string
	GatewaySync *v1alpha1.GatewaySync
	Repository  *offline.Checkout
	To          repo.Resolution
	Ref         string        // the ref that templates see
	Form        resource.Form // of the signatures of resources
}

// Difference is what a commit would change on one gateway.
type Difference struct {
	Gateway string   `json:"gateway"`
	Pod     string   `json:"pod"`
	From    string   `json:"from,omitempty"`
	To      string   `json:"to"`
	Summary string   `json:"summary"`
	Held    string   `json:"held,omitempty"`
	Changes []change `json:"changes"`
	Drift   []string `json:"drift,omitempty"`
	text    string   // for the table format
}

type change struct {
	Op   string `json:"op"`
	Path string `json:"path"`
}

// Plan plans the change of one gateway, from the commit that its agent reports.
func (p Planner) Plan(ctx context.Context, row v1alpha1.DiscoveredGateway) (Difference, error) {
	agent, err := agents.Of(ctx, p.Core, p.Namespace, row)
	if err != nil {
		return Difference{}, err
	}
	state, err := agent.State(ctx)
	if err != nil {
		return Difference{}, err
	}
	pod := agent.Pod()
	profile, err := effective.Of(p.GatewaySync, row.Profile, pod.Annotations)
	if err != nil {
		return Difference{}, err
	}
	ordinal, _ := gatewaypod.Ordinal(pod.Name, pod.Labels)
	g := offline.Gateway{Profile: profile, Form: p.Form, Facts: plan.Facts{
		GatewayName: row.Name, PodName: pod.Name, PodOrdinal: ordinal, Namespace: pod.Namespace, CRName: p.GatewaySync.Name, Labels: pod.Labels,
	}}
	wanted, err := p.Repository.Tree(ctx, g, p.To, p.Ref)
	if err != nil {
		return Difference{}, err
	}
	current := &offline.Tree{}
	if !state.Commit.IsZero() {
		if current, err = p.Repository.Tree(ctx, g, repo.Resolution{Commit: state.Commit}, state.Ref); err != nil {
			return Difference{}, fmt.Errorf("commit %s of the gateway: %w; fetch it into the clone", state.Commit.Short(), err)
		}
	}
	changes, err := wanted.From(current)
	if err != nil {
		return Difference{}, err
	}
	if _, err := wanted.Check(changes); err != nil {
		return Difference{}, err
	}
	return newDifference(row, state, changes), nil
}

// newDifference converts a plan to a Difference.
func newDifference(row v1alpha1.DiscoveredGateway, state agents.State, changes *plan.Changes) Difference {
	d := Difference{Gateway: row.Name, Pod: row.PodName, To: changes.To.String(), Summary: changes.Summary(), Changes: []change{}}
	if !state.Commit.IsZero() {
		d.From = state.Commit.String()
	}
	if changes.Held != nil {
		d.Held = string(changes.Held.Reason) + ": " + changes.Held.Message
	}
	for _, ch := range changes.List {
		if op := opNames[ch.Op]; op != "" {
			d.Changes = append(d.Changes, change{op, ch.Path})
		}
	}
	d.text = "# " + row.Name + ": " + changes.String()
	if state.Drift != nil && state.Drift.Files > 0 {
		d.text += fmt.Sprintf("changed on the gateway itself: %d\n", state.Drift.Files)
		for _, f := range state.Drift.Paths {
			d.Drift = append(d.Drift, f.Path)
			d.text += "! " + output.OneLine(f.Path) + " (" + output.OneLine(f.What) + ")\n"
		}
	}
	return d
}

// opNames are the names of the operations that the output shows. It leaves out Adopt, which changes only the agent's record of a file.
var opNames = map[plan.Op]string{
	plan.Create: "create", plan.Update: "update", plan.Delete: "delete", plan.Release: "release", plan.Keep: "keep",
}

// Result returns differences for printing.
func Result(list []Difference) *output.Result {
	r := &output.Result{Data: list, Text: func(w io.Writer) {
		for i, one := range list {
			if i > 0 {
				fmt.Fprintln(w)
			}
			fmt.Fprint(w, output.Clean(one.text))
		}
	}}
	for _, one := range list {
		for _, ch := range one.Changes {
			r.Names = append(r.Names, one.Gateway+"/"+ch.Path)
		}
	}
	return r
}
