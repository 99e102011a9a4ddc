package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/internal/httpclient"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/lease"
	"stoker.io/stoker/internal/metrics"
	"stoker.io/stoker/internal/notify"
)

const (
	// notifyLease is the Lease that elects the replica that sends.
	notifyLease = "stoker-notifier"
	// annotationSent is the annotation of that Lease with the record of what was sent.
	annotationSent = "stoker.io/sent"
	// restartPause is the pause after the notifier failed.
	restartPause = 5 * time.Second
)

func newNotifyCommand(c *cli) *cobra.Command {
	command := &cobra.Command{
		Use:   "notify",
		Short: "Send notifications about gateways to Slack, PagerDuty and others",
		Long: `Send notifications about gateways to Slack, PagerDuty and others, and set the status of commits at the forge.

The command runs until it is stopped. It watches GatewaySyncs and sends what their spec.alerting asks for. The chart runs it in the
cluster (notifier.enabled). Of several replicas, one sends: the Lease stoker-notifier in the namespace of the command elects it and
records what was sent, so that nothing is sent twice. Messages go through the proxy that HTTPS_PROXY names, except to hosts of
NO_PROXY.`,
		Example: `  stoker notify
  stoker notify --watch-namespace plant --settle 5m`,
		Args: cobra.NoArgs,
	}
	settings := daemonFlags(command, "GatewaySyncs")
	page := command.Flags().String("page-url", "", "`address` of a page about a GatewaySync for the messages; {namespace} and {name} in it are replaced")
	cluster := command.Flags().String("cluster", "", "`name` of the cluster in the messages")
	settle := command.Flags().Duration("settle", time.Minute, "how long a state must last before it is sent, and be over before its end is sent")
	command.RunE = func(command *cobra.Command, _ []string) error {
		s, err := settings()
		if err != nil {
			return err
		}
		if *settle < 0 {
			return exitErrorf(exitUsage, "--settle must not be negative")
		}
		if err := (notify.Config{Page: *page, Cluster: *cluster}).Validate(); err != nil {
			return exitErrorf(exitUsage, "%w", err)
		}
		p, err := c.connect()
		if err != nil {
			return err
		}
		proxy, err := httpclient.ProxyFromEnvironment()
		if err != nil {
			return exitErrorf(exitUsage, "%w", err)
		}
		log := daemon.Log(c.stderr, s.LogFormat, s.LogLevel)
		return runNotifier(command.Context(), p, notify.Config{Client: httpclient.Client{Proxy: proxy}, Settle: *settle, Page: *page, Cluster: *cluster, Log: log}, s)
	}
	return command
}

// daemonFlags adds the flags of a command that runs until it is stopped and watches a kind. The returned function validates and
// returns their values.
func daemonFlags(command *cobra.Command, kind string) func() (daemon.Settings, error) {
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
			return s, exitErrorf(exitUsage, "%w", err)
		}
		return s, nil
	}
}

// runNotifier sends notifications while this replica holds the Lease, until ctx is done. It adds to config what it connects to.
func runNotifier(ctx context.Context, p target, config notify.Config, s daemon.Settings) error {
	reg := daemon.Registry()
	counters := metrics.NewNotifier(reg, version)
	changed := make(chan struct{}, 1)
	watch, err := kube.Watch(p.Dynamic, s.WatchNamespace, s.Selector, func(string, string) {
		select {
		case changed <- struct{}{}:
		default:
		}
	}, kube.LogFailures(config.Log, "watching GatewaySyncs failed"))
	if err != nil {
		return err
	}
	notifierLease := lease.Lease{Client: p.Core, Namespace: p.namespace, Name: notifyLease, Holder: lease.Identity(replica())}
	newNotifier := func() *notify.Notifier {
		c := config
		c.Core, c.Changed, c.Sent = p.Core, changed, counters.Sent
		c.List = func() ([]*v1alpha1.GatewaySync, bool) { return watch.List(), watch.HasSynced() }
		c.Load = func(ctx context.Context) (string, error) { return notifierLease.Read(ctx, annotationSent) }
		c.Save = func(ctx context.Context, text string) error {
			return notifierLease.Write(ctx, annotationSent, text, notifyLease)
		}
		return notify.New(c)
	}
	return daemon.Run(ctx, daemon.Config{
		Settings: s, Namespace: p.namespace, Metrics: reg, Log: config.Log, Ready: watch.Served, Waits: "waiting for the list of GatewaySyncs",
		Loops: []func(context.Context) error{watch.Run, func(ctx context.Context) error {
			return notifierLease.Elect(ctx, func(ctx context.Context) error {
				runUntilDone(ctx, newNotifier, config.Log)
				return nil
			})
		}},
	})
}

// runUntilDone runs notifiers until ctx is done. After a failure, a new notifier begins with the record of the Lease.
func runUntilDone(ctx context.Context, newNotifier func() *notify.Notifier, log *slog.Logger) {
	log.Info("this replica sends notifications")
	for ctx.Err() == nil {
		if err := newNotifier().Run(ctx); err != nil && ctx.Err() == nil {
			log.Error("notifier failed; starting again", "error", err)
			backoff.Wait(ctx, restartPause)
		}
	}
}

// replica returns a name of this process for people who read the Lease.
func replica() string {
	if host, err := os.Hostname(); err == nil {
		return host
	}
	return fmt.Sprint(os.Getpid())
}
