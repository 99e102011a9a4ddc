package main

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/agents"
	"stoker.io/stoker/hooks/diff"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/hooks/offline"
	"stoker.io/stoker/hooks/output"
)

func newDiffCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "diff NAME [PATH...]",
		Short: "Show what a commit would change on the running gateways",
		Long: `Show what a commit would change on the running gateways.

The command asks each agent, through the API server, which commit its gateway runs, and plans the change with the agent's own code
from a local clone that has both commits. It also lists files that were changed on the gateway. It needs the right to get pods and
pods/proxy.

With --drift, print the text of what was changed on the gateways, from git's content to the file now, without a clone: of the first ten
files of each gateway, or of some PATHs of one. This also needs the right to create pods/exec.`,
		Example: `  # before a push: show what HEAD of this clone would change
  stoker diff line

  # before a promotion: show what a tag would change on one gateway
  stoker diff line --repo ../plant --ref v2.4.0 --gateway line-1`,
		Args: cobra.MinimumNArgs(1),
	}
	var d renderFlags
	d.addSourceFlags(command)
	gateway := command.Flags().String("gateway", "", "name of one gateway (default: all gateways)")
	format := output.AddFlag(command.Flags())
	drift := command.Flags().Bool("drift", false, "print the text of what was changed on the gateways")
	command.RunE = func(command *cobra.Command, args []string) error {
		if *drift {
			if err := exclude(command, "drift", "repo", "ref", "ignition", "output"); err != nil {
				return err
			}
		}
		if len(args) > 1 && (!*drift || *gateway == "") {
			return exit.Errorf(exit.Usage, "a PATH requires --drift and --gateway")
		}
		p, err := c.connect()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(command.Context(), offlineTimeout)
		defer cancel()
		if *drift {
			return withReason(c.printDrift(ctx, p, args[0], *gateway, args[1:]))
		}
		return withReason(c.compare(ctx, p, args[0], *gateway, &d, *format))
	}
	return command
}

// exclude returns an error if a flag of a command is used together with one of others.
func exclude(command *cobra.Command, flag string, others ...string) error {
	for _, other := range others {
		if command.Flags().Changed(other) {
			return exit.Errorf(exit.Usage, "--%s cannot be used with --%s", flag, other)
		}
	}
	return nil
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
		return exit.Errorf(exit.Failed, "GatewaySync %s has no gateways yet%s", name, troubleshootingLink(v1alpha1.ReasonNoGateways))
	}
	planner := diff.Planner{Core: p.Core, Namespace: p.namespace, GatewaySync: gs, Repository: repository, To: to, Ref: d.templateRef(gs), Form: form}
	list, failed := collect(gateways, func(g v1alpha1.DiscoveredGateway) ([]diff.Difference, error) {
		one, err := planner.Plan(ctx, g)
		if err != nil {
			return nil, err
		}
		return []diff.Difference{one}, nil
	})
	return errors.Join(diff.Result(list).Print(c.stdout, format), failed)
}

// printDrift prints the text of what was changed on the gateways of a GatewaySync, or only on one if gateway is not "".
func (c *cli) printDrift(ctx context.Context, p target, name, gateway string, paths []string) error {
	gs, err := p.load(ctx, name)
	if err != nil {
		return err
	}
	gateways, err := gatewaysOf(gs, gateway)
	if err != nil {
		return err
	}
	texts, failed := collect(gateways, func(g v1alpha1.DiscoveredGateway) ([]string, error) {
		agent, err := agents.Of(ctx, p.Core, p.namespace, g)
		if err != nil {
			return nil, err
		}
		text, err := driftOf(ctx, p, agent, paths)
		if err != nil {
			return nil, err
		}
		return []string{"# " + g.Name + ": " + text}, nil
	})
	_, err = io.WriteString(c.stdout, output.CleanText(strings.Join(texts, "")))
	return errors.Join(failed, err)
}

// driftOf returns how many files were changed on a gateway, and the text of what was changed in the first of them, or in these paths.
func driftOf(ctx context.Context, p target, agent agents.Agent, paths []string) (string, error) {
	head := "changed on the gateway itself\n"
	if len(paths) == 0 {
		state, err := agent.State(ctx)
		if err != nil {
			return "", err
		}
		if state.Drift == nil || len(state.Drift.Paths) == 0 {
			return "nothing was changed on the gateway itself\n", nil
		}
		for _, f := range state.Drift.Paths[:min(len(state.Drift.Paths), maxDrift)] {
			paths = append(paths, f.Path)
		}
		head = "changed on the gateway itself: " + output.Count(state.Drift.Files, "file") + "\n"
	}
	text, err := agent.TextDrift(ctx, p.Clients, paths)
	return head + text, err
}

// maxDrift is how many changed files an agent names.
const maxDrift = 10
