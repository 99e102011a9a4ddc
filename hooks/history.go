package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"stoker.io/stoker/agent/audit"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/agents"
	"stoker.io/stoker/hooks/display"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/internal/giturl"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
)

func newHistoryCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "history NAME [PATH...]",
		Short: "List the last commits that ran on every gateway, newest first",
		Long: `List the last commits that ran on every gateway, newest first.

With --gateway, list the last ten syncs that changed one gateway or failed, as its SyncReport has them.

With --audit, list the audit records of the gateways: what each sync changed, and on whose request. With --diff, list the files
that one of the last ten syncs of a gateway changed; the audit record names it in the field diff. Both ask the agents, and need the
right to get pods and pods/proxy. Use -o json for all fields.

With --text, --diff prints the text of these changes, or of those of some PATHs. This needs the right to create pods/exec.`,
		Example: `  stoker history line
  stoker rollback line --to 8a9ef4f

  # the last syncs of the gateway line-1
  stoker history line --gateway line-1

  # who requested them
  stoker history line --audit --gateway line-1`,
		Args: cobra.MinimumNArgs(1),
	}
	format := output.AddFlag(command.Flags())
	audit := command.Flags().Bool("audit", false, "list the audit records of the gateways")
	gateway := command.Flags().String("gateway", "", "name of one gateway; with --audit the default is all gateways")
	diff := command.Flags().String("diff", "", "list the files that the sync with this `id` changed; requires --gateway")
	text := command.Flags().Bool("text", false, "print the text of the changes; requires --diff")
	command.RunE = func(command *cobra.Command, args []string) error {
		if *text && *diff == "" || len(args) > 1 && !*text {
			return exit.Errorf(exit.Usage, "--text requires --diff, and a PATH requires --text")
		}
		if *diff != "" && (*audit || *gateway == "") {
			return exit.Errorf(exit.Usage, "--diff requires --gateway and cannot be used with --audit")
		}
		ctx := command.Context()
		p, gs, err := c.loadGatewaySync(ctx, args[0])
		if err != nil {
			return err
		}
		gateways, err := gatewaysOf(gs, *gateway)
		if err != nil {
			return err
		}
		web := giturl.WebOf(gs.Spec.Git.Repo, gs.Spec.Provider())
		switch {
		case *text:
			if err := exclude(command, "text", "output"); err != nil {
				return err
			}
			agent, err := agents.Of(ctx, p.Core, p.namespace, gateways[0])
			if err != nil {
				return err
			}
			changes, err := agent.TextOfSync(ctx, p.Clients, *diff, args[1:])
			if err != nil {
				return withReason(err)
			}
			_, err = io.WriteString(c.stdout, output.CleanText(changes))
			return err
		case *diff != "":
			d, err := p.changedFiles(ctx, gs, gateways[0], *diff)
			if err != nil {
				return err
			}
			if d.Truncated && *format == output.Table {
				fmt.Fprintln(c.stderr, "The sync changed more files than the report can hold.")
			}
			return display.ChangedFiles(d).Print(c.stdout, *format)
		case *audit:
			return c.listAudit(ctx, p, web, gateways, *format)
		case *gateway != "":
			list, err := p.syncs(ctx, gs, gateways[0])
			if err != nil {
				return err
			}
			return c.printTable(display.Syncs(list, web), *format, "No sync has changed the gateway yet.")
		}
		return c.printTable(display.Commits(gs.Status.History, web), *format, "No commit has run on all gateways yet.")
	}
	return command
}

// gatewaysOf returns the gateways of gs, or only the one with that name if the name is not "".
func gatewaysOf(gs *v1alpha1.GatewaySync, name string) ([]v1alpha1.DiscoveredGateway, error) {
	all := gs.Status.DiscoveredGateways
	if name == "" {
		return all, nil
	}
	i := slices.IndexFunc(all, func(g v1alpha1.DiscoveredGateway) bool { return g.Name == name })
	if i < 0 {
		return nil, exit.Errorf(exit.Failed, "GatewaySync %s has no gateway %s: list its gateways with 'stoker status %[1]s'", gs.Name, name)
	}
	return all[i : i+1], nil
}

// collect returns what get returns for all gateways. The list is valid even with an error, which joins the errors of the gateways.
func collect[T any](gateways []v1alpha1.DiscoveredGateway, get func(v1alpha1.DiscoveredGateway) ([]T, error)) ([]T, error) {
	all := []T{}
	var errs []error
	for _, g := range gateways {
		list, err := get(g)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", g.Name, err))
		}
		all = append(all, list...)
	}
	return all, errors.Join(errs...)
}

// listAudit prints the audit records of gateways, newest first.
func (c *cli) listAudit(ctx context.Context, p target, web giturl.Web, gateways []v1alpha1.DiscoveredGateway, format string) error {
	list, failed := collect(gateways, func(g v1alpha1.DiscoveredGateway) ([]audit.Entry, error) { return p.audit(ctx, g) })
	slices.SortStableFunc(list, func(a, b audit.Entry) int { return b.Time.Compare(a.Time) })
	empty := "No sync has changed a gateway yet."
	if failed != nil {
		empty = ""
	}
	return errors.Join(c.printTable(display.AuditRecords(list, web), format, empty), failed)
}

func (p target) audit(ctx context.Context, g v1alpha1.DiscoveredGateway) ([]audit.Entry, error) {
	agent, err := agents.Of(ctx, p.Core, p.namespace, g)
	if err != nil {
		return nil, err
	}
	list, err := agent.Audit(ctx)
	return list, withReason(err)
}

// syncs returns the last syncs of a gateway, newest first, as its agent reports them.
func (p target) syncs(ctx context.Context, gs *v1alpha1.GatewaySync, g v1alpha1.DiscoveredGateway) ([]v1alpha1.SyncRecord, error) {
	report, err := kube.SyncReports(p.Dynamic, p.namespace).Get(ctx, g.PodName)
	switch {
	case apierrors.IsNotFound(err), err == nil && report.Status.Gateway != g.Name:
		return nil, exit.Errorf(exit.Failed, "the agent of gateway %s has not reported yet: see 'stoker status %s'", g.Name, gs.Name)
	case err != nil:
		return nil, p.explain(gs.Name, err)
	}
	return report.Status.SyncHistory, nil
}

// changedFiles returns the files that a sync of a gateway changed. id is the id of the report about that sync.
func (p target) changedFiles(ctx context.Context, gs *v1alpha1.GatewaySync, g v1alpha1.DiscoveredGateway, id string) (audit.Diff, error) {
	agent, err := agents.Of(ctx, p.Core, p.namespace, g)
	if err != nil {
		return audit.Diff{}, err
	}
	d, err := agent.Diff(ctx, id)
	if apierrors.IsNotFound(err) {
		return d, exit.Errorf(exit.Failed, "gateway %s has no report %.300q: the field diff of 'stoker history %s --audit --gateway %[1]s -o json' lists them, and the last ten are kept",
			g.Name, id, gs.Name)
	}
	return d, withReason(err)
}

func newProposalsCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "proposals NAME",
		Short: "List the pull requests with changes made on gateways",
		Long: `List the pull requests with changes made on gateways.

The list shows each gateway with changes that are proposed, refused or under way, and the branch if there is no pull request. The
command status shows why changes are refused.

With --renew, the agent of that gateway closes its pull request and proposes the current changes from the current base. Use it if the
pull request conflicts with its base branch.`,
		Example: `  stoker proposals line

  # close the pull request of the gateway line-1, and propose its changes again
  stoker proposals line --renew line-1`,
		Args: cobra.ExactArgs(1),
	}
	renew := command.Flags().String("renew", "", "propose the changes of this `gateway` again, from the current base")
	c.newRequester(command, func(ctx context.Context, r *requester, args []string) error {
		if command.Flags().Changed("renew") {
			return r.send(ctx, args[0], "changes of "+*renew+" are proposed again", func(ctx context.Context, p target) (request.Answer, error) {
				return p.setter().Propose(ctx, p.namespace, p.name, *renew)
			})
		}
		_, gs, err := c.loadGatewaySync(ctx, args[0])
		if err != nil {
			return err
		}
		return c.printTable(display.Proposals(gs.Status.DiscoveredGateways), *r.output, "No gateway has changes to propose.")
	})
	return command
}

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
