package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/hooks/agents"
	"stoker.io/stoker/hooks/offline"
	"stoker.io/stoker/hooks/output"
)

func newDiffCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "diff NAME",
		Short: "Show what a commit would change on the running gateways",
		Long: `Show what a commit would change on the running gateways.

The command asks each agent, through the API server, which commit its gateway runs. It then plans the change with the agent's
own code, from a local clone that has both commits. It also lists files that were changed on the gateway itself. It needs
the right to get pods and pods/proxy.`,
		Example: `  # before a push: show what HEAD of this clone would change
  stoker diff line

  # before a promotion: show what a tag would change on one gateway
  stoker diff line --repo ../plant --ref v2.4.0 --gateway line-1`,
		Args: cobra.ExactArgs(1),
	}
	var d renderFlags
	d.addSourceFlags(command)
	gateway := command.Flags().String("gateway", "", "name of one gateway (default: all gateways)")
	format := addOutputFlag(command)
	command.RunE = func(command *cobra.Command, args []string) error {
		p, err := c.connect()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(command.Context(), offlineTimeout)
		defer cancel()
		return withReason(c.compare(ctx, p, args[0], *gateway, &d, *format))
	}
	return command
}

// difference is what a commit would change on one gateway.
type difference struct {
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

// compare prints what the commit of the flags would change on the gateways of a GatewaySync, or only on one if gateway is not "".
func (c *cli) compare(ctx context.Context, p target, name, gateway string, d *renderFlags, format string) (err error) {
	form, err := d.signatureForm()
	if err != nil {
		return err
	}
	gs, err := p.load(ctx, name)
	if err != nil {
		return err
	}
	repository, err := offline.Open(d.repo)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, repository.Close()) }()
	to, err := repository.Resolve(ctx, d.ref)
	if err != nil {
		return err
	}
	gateways, err := gatewaysOf(gs, gateway)
	if err != nil {
		return err
	}
	if len(gateways) == 0 {
		return exitErrorf(exitFailed, "GatewaySync %s has no gateways yet%s", name, troubleshootingLink(v1alpha1.ReasonNoGateways))
	}
	list, failed := collect(gateways, func(g v1alpha1.DiscoveredGateway) ([]difference, error) {
		return p.compare(ctx, gs, g, repository, to, d.templateRef(gs), form)
	})
	r := output.Result{Data: list, Text: func(w io.Writer) {
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
	return errors.Join(r.Print(c.stdout, format), failed)
}

// compare plans the change of one gateway, from the commit that its agent reports to the commit to. ref is the ref that templates
// see.
func (p target) compare(ctx context.Context, gs *v1alpha1.GatewaySync, row v1alpha1.DiscoveredGateway, repository *offline.Checkout,
	to repo.Resolution, ref string, form resource.Form) ([]difference, error) {
	agent, err := agents.Of(ctx, p.Core, p.namespace, row)
	if err != nil {
		return nil, err
	}
	state, err := agent.State(ctx)
	if err != nil {
		return nil, err
	}
	pod := agent.Pod()
	profile, err := effective.Of(gs, row.Profile, pod.Annotations)
	if err != nil {
		return nil, err
	}
	ordinal, _ := v1alpha1.PodOrdinal(pod.Name, pod.Labels)
	g := offline.Gateway{Profile: profile, Form: form, Facts: plan.Facts{
		GatewayName: row.Name, PodName: pod.Name, PodOrdinal: ordinal, Namespace: pod.Namespace, CRName: gs.Name, Labels: pod.Labels,
	}}
	wanted, err := repository.Tree(ctx, g, to, ref)
	if err != nil {
		return nil, err
	}
	current := &offline.Tree{}
	if !state.Commit.IsZero() {
		if current, err = repository.Tree(ctx, g, repo.Resolution{Commit: state.Commit}, state.Ref); err != nil {
			return nil, fmt.Errorf("commit %s of the gateway: %w; fetch it into the clone", state.Commit.Short(), err)
		}
	}
	changes, err := wanted.From(current)
	if err != nil {
		return nil, err
	}
	if _, err := wanted.Check(changes); err != nil {
		return nil, err
	}
	return []difference{newDifference(row, state, changes)}, nil
}

// newDifference converts a plan to a difference.
func newDifference(row v1alpha1.DiscoveredGateway, state agents.State, changes *plan.Changes) difference {
	d := difference{Gateway: row.Name, Pod: row.PodName, To: changes.To.String(), Summary: changes.Summary(), Changes: []change{}}
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

// opNames are the names of operations in the output. Other operations change nothing.
var opNames = map[plan.Op]string{
	plan.Create: "create", plan.Update: "update", plan.Delete: "delete", plan.Release: "release", plan.Keep: "keep",
}
