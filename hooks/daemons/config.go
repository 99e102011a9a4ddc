// Package daemons has the commands of stoker that run until they are stopped: they watch objects, and of several replicas one acts.
package daemons

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/internal/configsync/reconcile"
	"stoker.io/stoker/internal/configsync/source"
	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/internal/httpclient"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/lease"
	"stoker.io/stoker/internal/metrics"
)

// configLease is the name of the Lease that elects the replica that applies.
const configLease = "stoker-configsync"

const (
	// volumeParts are the parts of the volume for git objects: one for each of eight runs, one for what is kept between runs, and one that
	// stays free.
	volumeParts = 10
	// fetchTimeout bounds a fetch, so that slow git hosts do not keep the places of runs.
	fetchTimeout = 5 * time.Minute
)

// NewConfigRun returns the command that applies ConfigSyncs.
func NewConfigRun(env *Env) *cobra.Command {
	command := &cobra.Command{
		Use:   "run",
		Short: "Keep the objects of ConfigSyncs in step with git",
		Long: `Keep the objects of ConfigSyncs in step with git.

The command runs until it is stopped. It does what the command apply does for every ConfigSync: after a change of its spec or its
annotations, when a GatewaySync that it follows or an object that it depends on is ready, and at its refreshInterval. The chart
runs it in the cluster (configSync.enabled). Of several that run, one applies; the Lease stoker-configsync in the namespace of the
command elects it.

Each run has the rights of the ServiceAccount that the ConfigSync names, of its own namespace and of no other. The caller needs the
verb impersonate on that account, and for the status, the finalizer, Events and the election the rights that the chart grants to
stoker-configsync.`,
		Example: `  stoker config run --watch-namespace plant`,
		Args:    cobra.NoArgs,
	}
	settings := addFlags(command, "ConfigSyncs")
	volume := sizeFlag(1 << 30)
	command.Flags().Var(&volume, "volume-size", "`size` of the volume of TMPDIR; a run fetches at most a tenth of it")
	command.RunE = func(command *cobra.Command, _ []string) error {
		s, err := settings()
		if err != nil {
			return err
		}
		cluster, err := env.Connect()
		if err != nil {
			return err
		}
		return runConfigSyncs(command.Context(), cluster, s, int64(volume), daemon.Log(env.Stderr, s.LogFormat, s.LogLevel))
	}
	return command
}

// sizeFlag is a number of bytes, such as 1Gi.
type sizeFlag int64

func (f *sizeFlag) String() string {
	return resource.NewQuantity(int64(*f), resource.BinarySI).String()
}

func (f *sizeFlag) Type() string { return "size" }

// Set implements pflag.Value.
func (f *sizeFlag) Set(text string) error {
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Value() < 64<<20 {
		return errors.New("must be a size of at least 64Mi")
	}
	*f = sizeFlag(q.Value())
	return nil
}

// runConfigSyncs applies ConfigSyncs while this replica holds the Lease, until ctx is done.
func runConfigSyncs(ctx context.Context, cluster Cluster, s daemon.Settings, volume int64, log *slog.Logger) error {
	accounts, err := cluster.Accounts()
	if err != nil {
		return err
	}
	var r *reconcile.Reconciler
	configSyncs, err := kube.Watch(cluster.Dynamic, kube.ConfigSyncs, s.WatchNamespace, s.Selector, func(namespace, name string) { r.Changed(namespace, name) },
		kube.LogFailures(log, "watching ConfigSyncs failed"))
	if err != nil {
		return err
	}
	gatewaySyncs, err := kube.Watch(cluster.Dynamic, kube.GatewaySyncs, s.WatchNamespace, nil, func(namespace, name string) { r.GatewaySyncChanged(namespace, name) },
		kube.LogFailures(log, "watching GatewaySyncs failed"))
	if err != nil {
		return err
	}
	cache, err := source.NewCache(volume/volumeParts, volume/volumeParts)
	if err != nil {
		return fmt.Errorf("create the cache of git objects: %w", err)
	}
	defer func() {
		if err := cache.Close(); err != nil {
			log.Warn("the cache of git objects cannot be removed", "error", err)
		}
	}()
	reg := daemon.Registry()
	counters := metrics.NewConfigSync(reg, cluster.Version, configSyncs.List)
	r = reconcile.New(reconcile.Config{
		ProgramClients: cluster.Clients, AccountClients: accounts, ConfigSync: configSyncs.Get, ConfigSyncs: configSyncs.List, GatewaySync: gatewaySyncs.Get,
		OnRun: counters.Ran, OnPrune: counters.Pruned, Cache: cache, Log: log,
		Remote: repo.RemoteOptions{Guard: httpclient.NewGuard(), Total: fetchTimeout},
	})
	configSyncLease := lease.Lease{Client: cluster.Core, Namespace: cluster.Namespace, Name: configLease, Holder: lease.Identity(replica())}
	return daemon.Run(ctx, daemon.Config{
		Settings: s, Namespace: cluster.Namespace, Metrics: reg, Log: log, Ready: configSyncs.Listed, Waits: "waiting for the list of ConfigSyncs",
		Loops: []func(context.Context) error{configSyncs.Run, gatewaySyncs.Run, func(ctx context.Context) error {
			return configSyncLease.Elect(ctx, func(ctx context.Context) error {
				log.Info("this replica applies ConfigSyncs")
				r.Run(ctx)
				return nil
			})
		}},
	})
}

// Env is what the commands need of the program.
type Env struct {
	Stderr  io.Writer
	Connect func() (Cluster, error)
}

// Cluster is the cluster of a command, and the namespace that it runs in.
type Cluster struct {
	kube.Clients
	Namespace string
	Version   string // of the program
}

// addFlags adds the flags of a command that runs until it is stopped and watches a kind. The returned function validates and
// returns their values.
func addFlags(command *cobra.Command, kind string) func() (daemon.Settings, error) {
	var s daemon.Settings
	var watch []string
	f := command.Flags()
	f.StringArrayVar(&watch, "watch-namespace", nil, "a `namespace` to serve (repeatable); default: all")
	f.StringVar(&s.WatchLabelSelector, "watch-label-selector", "", "serve only "+kind+" that this label `selector` admits")
	f.StringVar(&s.HealthAddr, "health-addr", "127.0.0.1:8082", "`address` of /healthz and /readyz")
	f.StringVar(&s.MetricsAddr, "metrics-addr", "127.0.0.1:8083", "`address` of /metrics")
	f.StringVar(&s.LogFormat, "log-format", "text", "json or text")
	f.StringVar(&s.LogLevel, "log-level", "info", "debug, info, warn or error")
	return func() (daemon.Settings, error) {
		s.WatchNamespace = watch
		if err := errors.Join(s.Problems()...); err != nil {
			return s, exit.Errorf(exit.Usage, "%w", err)
		}
		return s, nil
	}
}

// replica returns a name of this process for people who read the Lease.
func replica() string {
	if host, err := os.Hostname(); err == nil {
		return host
	}
	return fmt.Sprint(os.Getpid())
}
