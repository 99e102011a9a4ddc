package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/agents"
	"stoker.io/stoker/internal/request"
)

func (c *cli) snapshots() *cobra.Command {
	command := &cobra.Command{
		Use:   "snapshots NAME",
		Short: "List the snapshots of the gateways, or restore one",
		Long: `List the snapshots of the gateways, or restore one.

A snapshot keeps what one sync replaced or deleted on a gateway (spec.snapshots). COMMIT is what the gateway ran before that sync, and
SYNCED what the sync brought. STORED is where the snapshot is, if there is object storage: on the data volume (local), in object storage
(remote) or both. BACKUP is yes if a backup of the whole gateway with the same id is there (spec.snapshots.gatewayBackup). The command asks
each agent through the API server, so it needs the right to get pods and pods/proxy.

With --restore, the gateway that the id begins with goes back to what it was before that sync: all later syncs are undone, too. It does
not need git. The gateway stays there, with reason RolledBack, until another commit is requested or until it is retried (stoker retry).
The command writes an annotation, which Argo CD does not revert.`,
		Example: `  stoker snapshots line

  # bring the gateway area-4 back to what it was before the sync of that time
  stoker snapshots line --restore area-4-20260212-102000`,
		Args: cobra.ExactArgs(1),
	}
	restore := command.Flags().String("restore", "", "id of the `snapshot` to restore")
	gateway := command.Flags().String("gateway", "", "name of one gateway (default: all gateways)")
	c.requests(command, func(ctx context.Context, got *requester, args []string) error {
		if command.Flags().Changed("restore") {
			if *gateway != "" {
				return exitErrorf(exitUsage, "--restore excludes --gateway: the id names the gateway")
			}
			return got.send(ctx, args[0], "snapshot "+*restore+" is restored", func(ctx context.Context, p target) (request.Answer, error) {
				return p.setter().Restore(ctx, p.namespace, p.name, *restore)
			})
		}
		return c.listSnapshots(ctx, args[0], *gateway, *got.output)
	})
	return command
}

func (c *cli) listSnapshots(ctx context.Context, name, only, form string) error {
	p, err := c.connect()
	if err != nil {
		return err
	}
	gs, err := p.load(ctx, name)
	if err != nil {
		return err
	}
	list, found := []agents.Snapshot{}, false
	var failed []error
	for _, g := range gs.Status.DiscoveredGateways {
		if only != "" && g.Name != only {
			continue
		}
		found = true
		of, err := p.snapshots(ctx, g)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", g.Name, err))
		}
		list = append(list, of...)
	}
	switch {
	case only != "" && !found:
		return exitErrorf(exitFailed, "GatewaySync %s has no gateway %s: list its gateways with 'stoker status %s'", name, only, name)
	case len(list) == 0 && form == asTable:
		if gs.Spec.Snapshots == nil || !gs.Spec.Snapshots.Enabled {
			fmt.Fprintln(c.stderr, "No snapshots are taken: set spec.snapshots.enabled to true.")
		} else if len(failed) == 0 {
			fmt.Fprintln(c.stderr, "No gateway has a snapshot yet. The next sync that changes files takes one.")
		}
		return errors.Join(failed...)
	}
	r := result{data: list}
	for _, s := range list {
		r.names = append(r.names, s.ID)
	}
	head, lines := snapshotRows(list, gs.Spec.Snapshots.ObjectStorage() != nil)
	r.table = func(w io.Writer) { rows(w, head, lines) }
	return errors.Join(append([]error{c.print(form, r)}, failed...)...)
}

// snapshotRows returns the table of snapshots. It has a column for where they are if there is object storage, and one for backups if there
// is one.
func snapshotRows(list []agents.Snapshot, stored bool) (head []string, lines [][]string) {
	head = []string{"GATEWAY", "SNAPSHOT", "COMMIT", "SYNCED", "FILES", "SIZE"}
	if stored {
		head = append(head, "STORED")
	}
	backups := slices.ContainsFunc(list, func(s agents.Snapshot) bool { return s.Backup })
	if backups {
		head = append(head, "BACKUP")
	}
	for _, s := range list {
		line := []string{s.Gateway, s.ID, s.Commit.Short(), s.To.Short(), strconv.Itoa(s.Files), v1alpha1.SizeText(s.Bytes)}
		if stored {
			line = append(line, string(s.Stored))
		}
		if backups {
			line = append(line, map[bool]string{true: "yes", false: "-"}[s.Backup])
		}
		lines = append(lines, line)
	}
	return head, lines
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
