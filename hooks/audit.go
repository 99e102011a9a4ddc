package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/agents"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
)

// listAudit prints the audit records of the gateways, newest first.
func (c *cli) listAudit(ctx context.Context, name, only, form string) error {
	p, err := c.connect()
	if err != nil {
		return err
	}
	gs, err := p.load(ctx, name)
	if err != nil {
		return err
	}
	list, found := []sync.Audit{}, false
	var failed []error
	for _, g := range gs.Status.DiscoveredGateways {
		if only != "" && g.Name != only {
			continue
		}
		found = true
		of, err := p.audit(ctx, g)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", g.Name, err))
		}
		list = append(list, of...)
	}
	if only != "" && !found {
		return exitErrorf(exitFailed, "GatewaySync %s has no gateway %s: list its gateways with 'stoker status %s'", name, only, name)
	}
	slices.SortStableFunc(list, func(a, b sync.Audit) int { return b.Time.Compare(a.Time) })
	if len(list) == 0 && form == asTable {
		if len(failed) == 0 {
			fmt.Fprintln(c.stderr, "No sync has changed a gateway yet.")
		}
		return errors.Join(failed...)
	}
	r := result{data: list}
	var lines [][]string
	for _, a := range list {
		r.names = append(r.names, a.To.String())
		by := a.By
		if a.For != "" {
			by += " (" + a.For + ")"
		}
		lines = append(lines, []string{a.Time.UTC().Format(time.RFC3339), a.Gateway, a.From.Short(), a.To.Short(), a.Ref, by, a.Author,
			strconv.Itoa(a.Files.Added + a.Files.Modified + a.Files.Deleted), string(a.Reason)})
	}
	r.table = func(w io.Writer) {
		rows(w, []string{"TIME", "GATEWAY", "FROM", "TO", "REF", "REQUESTED BY", "AUTHOR", "FILES", "RESULT"}, lines)
	}
	return errors.Join(append([]error{c.print(form, r)}, failed...)...)
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
func (c *cli) listSyncs(ctx context.Context, name, gateway, form string) error {
	p, err := c.connect()
	if err != nil {
		return err
	}
	gs, err := p.load(ctx, name)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(gs.Status.DiscoveredGateways, func(g v1alpha1.DiscoveredGateway) bool { return g.Name == gateway })
	if i < 0 {
		return exitErrorf(exitFailed, "GatewaySync %s has no gateway %s: list its gateways with 'stoker status %s'", name, gateway, name)
	}
	report, err := kube.SyncReports(p.Dynamic, p.namespace).Get(ctx, gs.Status.DiscoveredGateways[i].PodName)
	switch {
	case apierrors.IsNotFound(err), err == nil && report.Status.Gateway != gateway:
		return exitErrorf(exitFailed, "the agent of gateway %s has not reported yet: see 'stoker status %s'", gateway, name)
	case err != nil:
		return p.explain(name, err)
	}
	list := report.Status.SyncHistory
	if len(list) == 0 && form == asTable {
		fmt.Fprintln(c.stderr, "No sync has changed the gateway yet.")
		return nil
	}
	r := result{data: append([]v1alpha1.SyncRecord{}, list...)}
	var lines [][]string
	for _, s := range list {
		r.names = append(r.names, s.Commit)
		lines = append(lines, []string{s.Timestamp.UTC().Format(time.RFC3339), request.Short(s.Commit), s.Ref, strconv.Itoa(int(s.FilesChanged)),
			strconv.Itoa(int(s.ProjectsSynced)), s.Duration, string(s.Result), s.SnapshotID})
	}
	r.table = func(w io.Writer) {
		rows(w, []string{"TIME", "COMMIT", "REF", "FILES", "PROJECTS", "DURATION", "RESULT", "SNAPSHOT"}, lines)
	}
	return c.print(form, r)
}

// listDiff prints the files that a sync of a gateway changed.
func (c *cli) listDiff(ctx context.Context, name, gateway, id, form string) error {
	p, err := c.connect()
	if err != nil {
		return err
	}
	gs, err := p.load(ctx, name)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(gs.Status.DiscoveredGateways, func(g v1alpha1.DiscoveredGateway) bool { return g.Name == gateway })
	if i < 0 {
		return exitErrorf(exitFailed, "GatewaySync %s has no gateway %s: list its gateways with 'stoker status %s'", name, gateway, name)
	}
	agent, err := agents.Of(ctx, p.Core, p.namespace, gs.Status.DiscoveredGateways[i])
	if err != nil {
		return err
	}
	d, err := agent.Diff(ctx, id)
	if apierrors.IsNotFound(err) {
		return exitErrorf(exitFailed, "gateway %s has no report %.300q: the field diff of 'stoker history %s --audit --gateway %s -o json' lists them, and the last ten are kept",
			gateway, id, name, gateway)
	}
	if err != nil {
		return withReason(err)
	}
	r := result{data: d}
	var lines [][]string
	for _, f := range d.Changes {
		r.names = append(r.names, f.Path)
		lines = append(lines, []string{f.Action, f.Path, shortChecksum(f.Checksum.Before), shortChecksum(f.Checksum.After)})
	}
	r.table = func(w io.Writer) { rows(w, []string{"ACTION", "FILE", "BEFORE", "AFTER"}, lines) }
	if d.Truncated && form == asTable {
		fmt.Fprintln(c.stderr, "The sync changed more files than the report can hold.")
	}
	return c.print(form, r)
}

// shortChecksum shortens a checksum.
func shortChecksum(sum string) string { return request.Short(strings.TrimPrefix(sum, "git:")) }
