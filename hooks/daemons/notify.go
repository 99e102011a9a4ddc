package daemons

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/dynamic"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/exit"
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

// NewNotify returns the command that sends notifications.
func NewNotify(env *Env) *cobra.Command {
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
	settings := addFlags(command, "GatewaySyncs and ConfigSyncs")
	page := command.Flags().String("page-url", "", "`address` of a page about a GatewaySync for the messages; {namespace} and {name} in it are replaced")
	clusterName := command.Flags().String("cluster", "", "`name` of the cluster in the messages")
	settle := command.Flags().Duration("settle", time.Minute, "how long a state must last before it is sent, and be over before its end is sent")
	command.RunE = func(command *cobra.Command, _ []string) error {
		s, err := settings()
		if err != nil {
			return err
		}
		if *settle < 0 {
			return exit.Errorf(exit.Usage, "--settle must not be negative")
		}
		if err := (notify.Config{Page: *page, Cluster: *clusterName}).Validate(); err != nil {
			return exit.Errorf(exit.Usage, "%w", err)
		}
		cluster, err := env.Connect()
		if err != nil {
			return err
		}
		proxy, err := httpclient.ProxyFromEnvironment()
		if err != nil {
			return exit.Errorf(exit.Usage, "%w", err)
		}
		log := daemon.Log(env.Stderr, s.LogFormat, s.LogLevel)
		return Notify(command.Context(), cluster, notify.Config{Client: httpclient.Client{Proxy: proxy}, Settle: *settle, Page: *page, Cluster: *clusterName, Log: log}, s)
	}
	return command
}

// Notify sends notifications while this replica holds the Lease, until ctx is done. It sets the fields of config that read and write the cluster.
func Notify(ctx context.Context, cluster Cluster, config notify.Config, s daemon.Settings) error {
	reg := daemon.Registry()
	counters := metrics.NewNotifier(reg, cluster.Version)
	changed := make(chan struct{}, 1)
	wake := func(string, string) {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	watch, err := kube.Watch(cluster.Dynamic, kube.GatewaySyncs, s.WatchNamespace, s.Selector, wake, kube.LogFailures(config.Log, "watching GatewaySyncs failed"))
	if err != nil {
		return err
	}
	configSyncs, err := watchConfigSyncs(cluster, s, wake, config.Log)
	if err != nil {
		return err
	}
	notifierLease := lease.Lease{Client: cluster.Core, Namespace: cluster.Namespace, Name: notifyLease, Holder: lease.Identity(replica())}
	newNotifier := func() *notify.Notifier {
		c := config
		c.Core, c.Now, c.Changed, c.ConfigSyncs, c.Sent = cluster.Core, cluster.Now, changed, configSyncs, counters.Notification
		c.List = func() ([]*v1alpha1.GatewaySync, bool) {
			complete := watch.HasSynced() && len(watch.Undecodable()) == 0 // read before the list: later, the list may have been incomplete
			return watch.List(), complete
		}
		c.Load = func(ctx context.Context) (string, error) { return notifierLease.Read(ctx, annotationSent) }
		c.Save = func(ctx context.Context, text string) error {
			return notifierLease.Write(ctx, annotationSent, text, notifyLease)
		}
		return notify.New(c)
	}
	return daemon.Run(ctx, daemon.Config{
		Settings: s, Namespace: cluster.Namespace, Metrics: reg, Log: config.Log, Ready: watch.Listed, Waits: "waiting for the list of GatewaySyncs",
		Loops: []func(context.Context) error{watch.Run, configSyncs.Run, func(ctx context.Context) error {
			return notifierLease.Elect(ctx, func(ctx context.Context) error {
				runUntilDone(ctx, newNotifier, config.Log)
				return nil
			})
		}},
	})
}

// watchConfigSyncs returns the ConfigSyncs for the messages about them. If their kind is not installed, or the notifier may not read them, it
// sends no messages about them, and logs that once.
func watchConfigSyncs(cluster Cluster, s daemon.Settings, changed func(namespace, name string), log *slog.Logger) (*kube.Watched[v1alpha1.ConfigSync], error) {
	trimmed := func(c dynamic.Interface, namespace string) *kube.Objects[v1alpha1.ConfigSync] {
		return kube.ConfigSyncs(c, namespace).Trimmed(func(cs *v1alpha1.ConfigSync) {
			cs.Status.Targets, cs.Status.Inventory, cs.Status.History = nil, nil, nil
		})
	}
	var once sync.Once
	failed := kube.LogFailures(log, "watching ConfigSyncs failed")
	return kube.Watch(cluster.Dynamic, trimmed, s.WatchNamespace, s.Selector, changed, func(err error) {
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			once.Do(func() { log.Warn("no messages about ConfigSyncs", "error", err) })
			return
		}
		failed(err)
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
