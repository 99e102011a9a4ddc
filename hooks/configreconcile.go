package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"stoker.io/stoker/hooks/configsync/reconcile"
	"stoker.io/stoker/hooks/configsync/source"
	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/lease"
	"stoker.io/stoker/internal/metrics"
)

// configLease is the Lease that elects the replica that applies.
const configLease = "stoker-configsync"

// maxKept is how many bytes of git objects are kept between runs. The chart gives the program 1 GiB for them and for what runs fetch.
const maxKept = 256 << 20

func (c *cli) configRun() *cobra.Command {
	command := &cobra.Command{
		Use:   "run",
		Short: "Keep the ConfigSyncs of a cluster at git",
		Long: `Keep the ConfigSyncs of a cluster at git.

The command runs until it is stopped. It does what the command apply does for every ConfigSync: after a change of its spec or its
annotations, when a GatewaySync that it follows or an object that it depends on is ready, and at its refreshInterval. The chart runs it in the cluster (configSync.enabled). Of several that run, one applies;
the Lease stoker-configsync in the namespace of the command elects it.

Each run has the rights of the ServiceAccount that the ConfigSync names, of its own namespace and of no other. The caller needs the
verb impersonate on that account. Its own rights serve for the status, the finalizer and Events: get, list, watch and patch for
configsyncs, get, list and watch for gatewaysyncs, update for configsyncs/status, create for events of events.k8s.io, and get for namespaces.`,
		Example: `  stoker config run --watch-namespace plant`,
		Args:    cobra.NoArgs,
	}
	settings := daemonFlags(command, "ConfigSyncs")
	command.RunE = func(command *cobra.Command, _ []string) error {
		s, err := settings()
		if err != nil {
			return err
		}
		p, err := c.connect()
		if err != nil {
			return err
		}
		return runConfigSyncs(command.Context(), p, s, daemon.Log(c.talk, s.LogFormat, s.LogLevel))
	}
	return command
}

func runConfigSyncs(ctx context.Context, p target, s daemon.Settings, log *slog.Logger) error {
	accounts, err := p.Accounts()
	if err != nil {
		return err
	}
	var r *reconcile.Reconciler
	seen, err := kube.WatchConfigSyncs(p.Dynamic, s.WatchNamespace, s.Selector, func(namespace, name string) { r.Changed(namespace, name) },
		kube.LogFailures(log, "watching ConfigSyncs failed"))
	if err != nil {
		return err
	}
	gateways, err := kube.Watch(p.Dynamic, s.WatchNamespace, nil, func(namespace, name string) { r.GatewaySyncChanged(namespace, name) },
		kube.LogFailures(log, "watching GatewaySyncs failed"))
	if err != nil {
		return err
	}
	kept, err := source.NewCache(maxKept)
	if err != nil {
		return fmt.Errorf("create the cache of git objects: %w", err)
	}
	defer func() {
		if err := kept.Close(); err != nil {
			log.Warn("the cache of git objects cannot be removed", "error", err)
		}
	}()
	reg := daemon.Registry()
	measured := metrics.NewConfigSync(reg, version, seen.List)
	r = reconcile.New(reconcile.Config{
		ProgramClients: p.Clients, AccountClients: accounts, ConfigSync: seen.Get, ConfigSyncs: seen.List, GatewaySync: gateways.Get,
		OnRun: measured.Ran, OnPrune: measured.Pruned, Cache: kept, Log: log,
	})
	own := lease.Lease{Client: p.Core, Namespace: p.namespace, Name: configLease, Holder: lease.Identity(replica())}
	return daemon.Run(ctx, daemon.Config{
		Settings: s, Namespace: p.namespace, Metrics: reg, Log: log, Ready: seen.Served, Waits: "waiting for the list of ConfigSyncs",
		Loops: []func(context.Context) error{seen.Run, gateways.Run, func(ctx context.Context) error {
			return own.Elect(ctx, func(ctx context.Context) {
				log.Info("this replica applies ConfigSyncs")
				r.Run(ctx)
			})
		}},
	})
}
