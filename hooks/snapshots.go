package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/agents"
	"stoker.io/stoker/hooks/display"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/internal/request"
)

func newSnapshotsCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "snapshots NAME",
		Short: "List the snapshots of the gateways, or restore one",
		Long: `List the snapshots of the gateways, or restore one.

A snapshot keeps what one sync replaced or deleted on a gateway (spec.snapshots). COMMIT is what the gateway ran before that sync, and
SYNCED what the sync brought. STORED is where the snapshot is, if there is object storage: on the data volume (local), in object storage
(remote) or both. BACKUP is yes if a backup of the whole gateway with the same id is there (spec.snapshots.gatewayBackup). The command asks
each agent, and needs the right to get pods and pods/proxy.

With --restore, the gateway whose name begins the id goes back to what it was before that sync, without git: all later syncs are undone,
too. The gateway stays there, with reason Restored, until another commit is requested or until it is retried (stoker retry).`,
		Example: `  stoker snapshots line

  # bring the gateway area-4 back to what it was before the sync of that time
  stoker snapshots line --restore area-4-20260212-102000`,
		Args: cobra.ExactArgs(1),
	}
	restore := command.Flags().String("restore", "", "id of the `snapshot` to restore")
	gateway := command.Flags().String("gateway", "", "name of one gateway (default: all gateways)")
	c.newRequester(command, func(ctx context.Context, r *requester, args []string) error {
		if command.Flags().Changed("restore") {
			if *gateway != "" {
				return exit.Errorf(exit.Usage, "--restore cannot be used with --gateway: the id names the gateway")
			}
			r.role = "stoker-edit" // a restore needs the verb update
			return r.send(ctx, args[0], "restore of snapshot "+*restore+" requested", func(ctx context.Context, p target) (request.Answer, error) {
				return p.setter().Restore(ctx, p.namespace, p.name, *restore)
			})
		}
		return c.listSnapshots(ctx, args[0], *gateway, *r.output)
	})
	return command
}

func (c *cli) listSnapshots(ctx context.Context, name, gateway, format string) error {
	p, gs, err := c.loadGatewaySync(ctx, name)
	if err != nil {
		return err
	}
	gateways, err := gatewaysOf(gs, gateway)
	if err != nil {
		return err
	}
	list, failed := collect(gateways, func(g v1alpha1.DiscoveredGateway) ([]agents.Snapshot, error) { return p.snapshots(ctx, g) })
	empty := ""
	if gs.Spec.Snapshots == nil || !gs.Spec.Snapshots.Enabled {
		empty = "No snapshots are taken: set spec.snapshots.enabled to true."
	} else if failed == nil {
		empty = "No gateway has a snapshot yet. The next sync that changes files takes one."
	}
	return errors.Join(c.printTable(display.Snapshots(list, gs.Spec.Snapshots.ObjectStorage() != nil), format, empty), failed)
}

func (p target) snapshots(ctx context.Context, g v1alpha1.DiscoveredGateway) ([]agents.Snapshot, error) {
	agent, err := agents.Of(ctx, p.Core, p.namespace, g)
	if err != nil {
		return nil, err
	}
	live, err := agent.State(ctx)
	if err != nil {
		return nil, withReason(err)
	}
	return agent.Snapshots(live), nil
}
