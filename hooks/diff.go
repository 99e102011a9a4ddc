package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/diff"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/hooks/offline"
	"stoker.io/stoker/hooks/output"
)

func newDiffCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "diff NAME",
		Short: "Show what a commit would change on the running gateways",
		Long: `Show what a commit would change on the running gateways.

The command asks each agent, through the API server, which commit its gateway runs, and plans the change with the agent's own code
from a local clone that has both commits. It also lists files that were changed on the gateway. It needs the right to get pods and
pods/proxy.`,
		Example: `  # before a push: show what HEAD of this clone would change
  stoker diff line

  # before a promotion: show what a tag would change on one gateway
  stoker diff line --repo ../plant --ref v2.4.0 --gateway line-1`,
		Args: cobra.ExactArgs(1),
	}
	var d renderFlags
	d.addSourceFlags(command)
	gateway := command.Flags().String("gateway", "", "name of one gateway (default: all gateways)")
	format := output.AddFlag(command.Flags())
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
