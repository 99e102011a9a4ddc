package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/agents"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
)

func newHistoryCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "history NAME",
		Short: "List the last commits that ran on every gateway, newest first",
		Long: `List the last commits that ran on every gateway, newest first.

With --gateway, list the last ten syncs that changed one gateway or failed, as its SyncReport has them.

With --audit, list what the syncs of the gateways changed, and on whose request: the audit records on their data volumes. With --diff, list
the files that one of the last ten syncs of a gateway changed; the audit record names it in the field diff. For both, the command asks each
agent through the API server, so it needs the right to get pods and pods/proxy. Use -o json for all fields.`,
		Example: `  stoker history line
  stoker rollback line --to 8a9ef4f

  # the last syncs of the gateway line-1
  stoker history line --gateway line-1

  # who requested them
  stoker history line --audit --gateway line-1`,
		Args: cobra.ExactArgs(1),
	}
	format := addOutputFlag(command)
	audit := command.Flags().Bool("audit", false, "list the audit records of the gateways")
	gateway := command.Flags().String("gateway", "", "name of one gateway; with --audit the default is all gateways")
	diff := command.Flags().String("diff", "", "list the files that the sync with this `id` changed; requires --gateway")
	command.RunE = func(command *cobra.Command, args []string) error {
		if *diff != "" && (*audit || *gateway == "") {
			return exitErrorf(exitUsage, "--diff requires --gateway and excludes --audit")
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
		switch {
		case *diff != "":
			return c.listDiff(ctx, p, gs, gateways[0], *diff, *format)
		case *audit:
			return c.listAudit(ctx, p, gateways, *format)
		case *gateway != "":
			return c.listSyncs(ctx, p, gs, gateways[0], *format)
		}
		return c.listCommits(gs, *format)
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
		return nil, exitErrorf(exitFailed, "GatewaySync %s has no gateway %s: list its gateways with 'stoker status %[1]s'", gs.Name, name)
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

// listCommits prints the last commits that ran on every gateway.
func (c *cli) listCommits(gs *v1alpha1.GatewaySync, format string) error {
	list := gs.Status.History
	if len(list) == 0 && format == output.Table {
		fmt.Fprintln(c.stderr, "No commit has run on all gateways yet.")
		return nil
	}
	r := output.Result{Data: append([]v1alpha1.CommitRecord{}, list...), Head: []string{"SINCE", "REF", "COMMIT", "AGE"}}
	for _, h := range list {
		ref := h.Ref
		if ref == h.Commit { // of a rollback
			ref = request.Short(ref)
		}
		r.Add(h.Commit, h.At.UTC().Format(time.RFC3339), ref, request.Short(h.Commit), output.Age(h.At.Time))
	}
	return r.Print(c.stdout, format)
}

// listAudit prints the audit records of gateways, newest first.
func (c *cli) listAudit(ctx context.Context, p target, gateways []v1alpha1.DiscoveredGateway, format string) error {
	list, failed := collect(gateways, func(g v1alpha1.DiscoveredGateway) ([]sync.Audit, error) { return p.audit(ctx, g) })
	slices.SortStableFunc(list, func(a, b sync.Audit) int { return b.Time.Compare(a.Time) })
	if len(list) == 0 && format == output.Table {
		if failed == nil {
			fmt.Fprintln(c.stderr, "No sync has changed a gateway yet.")
		}
		return failed
	}
	r := output.Result{Data: list, Head: []string{"TIME", "GATEWAY", "FROM", "TO", "REF", "REQUESTED BY", "AUTHOR", "FILES", "RESULT"}}
	for _, a := range list {
		by := a.By
		if a.For != "" {
			by += " (" + a.For + ")"
		}
		r.Add(a.To.String(), a.Time.UTC().Format(time.RFC3339), a.Gateway, a.From.Short(), a.To.Short(), a.Ref, by, a.Author,
			strconv.Itoa(a.Files.Added+a.Files.Modified+a.Files.Deleted), string(a.Reason))
	}
	return errors.Join(r.Print(c.stdout, format), failed)
}

func (p target) audit(ctx context.Context, g v1alpha1.DiscoveredGateway) ([]sync.Audit, error) {
	agent, err := agents.Of(ctx, p.Core, p.namespace, g)
	if err != nil {
		return nil, err
	}
	list, err := agent.Audit(ctx)
	return list, withReason(err)
}

// listSyncs prints the last syncs of a gateway, newest first, as its agent reports them.
func (c *cli) listSyncs(ctx context.Context, p target, gs *v1alpha1.GatewaySync, g v1alpha1.DiscoveredGateway, format string) error {
	report, err := kube.SyncReports(p.Dynamic, p.namespace).Get(ctx, g.PodName)
	switch {
	case apierrors.IsNotFound(err), err == nil && report.Status.Gateway != g.Name:
		return exitErrorf(exitFailed, "the agent of gateway %s has not reported yet: see 'stoker status %s'", g.Name, gs.Name)
	case err != nil:
		return p.explain(gs.Name, err)
	}
	list := report.Status.SyncHistory
	if len(list) == 0 && format == output.Table {
		fmt.Fprintln(c.stderr, "No sync has changed the gateway yet.")
		return nil
	}
	r := output.Result{Data: append([]v1alpha1.SyncRecord{}, list...),
		Head: []string{"TIME", "COMMIT", "REF", "FILES", "PROJECTS", "DURATION", "RESULT", "SNAPSHOT"}}
	for _, s := range list {
		r.Add(s.Commit, s.Timestamp.UTC().Format(time.RFC3339), request.Short(s.Commit), s.Ref, strconv.Itoa(int(s.FilesChanged)),
			strconv.Itoa(int(s.ProjectsSynced)), s.Duration, string(s.Result), s.SnapshotID)
	}
	return r.Print(c.stdout, format)
}

// listDiff prints the files that a sync of a gateway changed. id is the id of the report about that sync.
func (c *cli) listDiff(ctx context.Context, p target, gs *v1alpha1.GatewaySync, g v1alpha1.DiscoveredGateway, id, format string) error {
	agent, err := agents.Of(ctx, p.Core, p.namespace, g)
	if err != nil {
		return err
	}
	d, err := agent.Diff(ctx, id)
	if apierrors.IsNotFound(err) {
		return exitErrorf(exitFailed, "gateway %s has no report %.300q: the field diff of 'stoker history %s --audit --gateway %[1]s -o json' lists them, and the last ten are kept",
			g.Name, id, gs.Name)
	}
	if err != nil {
		return withReason(err)
	}
	r := output.Result{Data: d, Head: []string{"ACTION", "FILE", "BEFORE", "AFTER"}}
	for _, f := range d.Changes {
		r.Add(f.Path, f.Action, f.Path, shortChecksum(f.Checksum.Before), shortChecksum(f.Checksum.After))
	}
	if d.Truncated && format == output.Table {
		fmt.Fprintln(c.stderr, "The sync changed more files than the report can hold.")
	}
	return r.Print(c.stdout, format)
}

func shortChecksum(sum string) string { return request.Short(strings.TrimPrefix(sum, "git:")) }
