// Command injector adds the agent to gateway pods. It is a mutating admission webhook. One replica at a time also runs the reconciler,
// which does what admission cannot do.
//
// docs/reference/injector.md is the reference of its flags, routes, rights and metrics.
package main

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/injector/admission"
	"stoker.io/stoker/injector/certificate"
	"stoker.io/stoker/injector/check"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/injector/lookup"
	"stoker.io/stoker/injector/reconcile"
	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/internal/keypair"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/lease"
	"stoker.io/stoker/internal/metrics"
	"stoker.io/stoker/internal/serve"
)

const (
	// mountedInterval is how often a mounted certificate is read. The kubelet takes up to a minute to update it. trustInterval is
	// how often the injector checks that the webhook configuration trusts it.
	mountedInterval, trustInterval = 10 * time.Second, 5 * time.Second
)

// run runs the program and returns its exit code.
func run(ctx context.Context, args []string, env func(string) string, stdout, stderr io.Writer) int {
	if len(args) > 0 {
		switch args[0] {
		case commandCheck:
			return daemon.Exit(checkWebhook(ctx, args[1:], stdout, stderr), "injector "+commandCheck, stderr)
		case commandRenew:
			return daemon.Exit(renew(ctx, args[1:], env, stderr), "injector "+commandRenew, stderr)
		}
	}
	s, err := parse(args, env, stderr)
	switch {
	case err != nil:
	case s.Version:
		fmt.Fprintln(stdout, version)
	default:
		err = serveUntilDone(ctx, s, daemon.Log(stderr, s.LogFormat, s.LogLevel), lookup.LookupTimeout)
	}
	return daemon.Exit(err, "injector", stderr)
}

// serveUntilDone creates the parts and runs them until ctx is done. A review waits at most lookupTimeout for a GatewaySync that is not in the
// cache.
func serveUntilDone(ctx context.Context, s settings, log *slog.Logger, lookupTimeout time.Duration) error {
	reg := daemon.Registry()
	measured := metrics.NewInjector(reg, version)

	// The reconciler has a connection of its own, so that it never delays a review.
	clients, err := kube.Connect(s.Kubeconfig, "stoker-injector/"+version)
	if err != nil {
		return err
	}
	scope := lookup.Scope{Own: s.Namespace, Watch: s.WatchNamespace, Selector: s.Selector}
	elected := &leadership{settings: s, scope: scope, metrics: measured, log: log}
	find, err := lookup.New(clients.Dynamic, scope, elected.changed, log)
	if err != nil {
		return err
	}
	find.Timeout = lookupTimeout
	elected.find = find
	cert := newCertificate(s, clients, measured, log)
	handler := admission.New(admission.Config{Find: find, Scope: scope, Defaults: defaults(s), Metrics: measured, Log: log})
	elected.ready = func() bool { return cert.Ready() && find.Listed() }

	return daemon.Run(ctx, daemon.Config{
		Settings: s.Settings, Namespace: s.Namespace, Metrics: reg, Log: log,
		Ready: elected.ready, Waits: "waiting for the certificate or for the list of GatewaySyncs",
		Endpoints: []daemon.Endpoint{{Flag: "webhook-addr", Listen: func(ctx context.Context) (*serve.Server, error) {
			config := &tls.Config{GetCertificate: cert.GetCertificate, MinVersion: tls.VersionTLS12}
			return serve.ListenTLS(ctx, s.WebhookAddr, handler.Routes(), config, admission.MaxBody+1) // one more, so that the handler reports it
		}}},
		Loops: []func(context.Context) error{cert.Run, find.Run, elected.run},
	})
}

func defaults(s settings) inject.Defaults {
	return inject.Defaults{Image: s.image, AllowedImages: s.AllowAgentImage, Resources: s.resources, Env: s.agentEnv, Args: s.AgentArg}
}

func newCertificate(s settings, clients kube.Clients, m *metrics.Injector, log *slog.Logger) *certificate.Trusted {
	return certificate.NewTrusted(keypair.NewMounted(s.CertificateDir, s.MountedInterval, log, m.SetCertificateExpiry),
		certificate.Config{Client: clients.Core, Configuration: admission.ConfigurationName, Interval: s.TrustInterval, Log: log, Now: clients.Now})
}

// instance returns the identity of this replica.
func instance(s settings) string {
	if s.Pod != "" {
		return s.Pod
	}
	if host, err := os.Hostname(); err == nil {
		return host
	}
	return "injector"
}

// checkTimeout is how long the command check waits for a new installation: images are pulled, the certificate is issued, and the
// Service gets its endpoints.
const (
	checkTimeout, checkInterval = 3 * time.Minute, 2 * time.Second
	commandCheck                = "check"
)

// checkWebhook is the command check: it lets the API server call the webhook.
func checkWebhook(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flag.NewFlagSet("injector "+commandCheck, flag.ContinueOnError)
	f.SetOutput(stderr)
	kubeconfig := f.String("kubeconfig", "", "how to reach the API server, a `file`; else the pod's own service account")
	namespace := f.String("dry-run-namespace", metav1.NamespaceDefault, "`namespace` in which the API server tries to create a pod that requires an agent, in a dry run")
	if err := daemon.Parse(f, args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		fmt.Fprintf(stderr, "injector %s: unexpected argument %q\n", commandCheck, f.Arg(0))
		return daemon.ErrUsage
	}
	clients, err := kube.Connect(*kubeconfig, "stoker-injector-check/"+version)
	if err != nil {
		return err
	}
	return check.Run(ctx, check.Config{
		Client: clients.Core, Configuration: admission.ConfigurationName, Namespace: *namespace, Out: stdout, Timeout: checkTimeout, Interval: checkInterval,
	})
}

const (
	commandRenew = "renew"
	// renewTimeout is how long the command waits for a new installation. After that it fails, and the kubelet starts it again.
	renewTimeout = 5 * time.Minute
	// publishTime is how long a new authority is published before its certificate is served.
	publishTime = time.Hour
)

// renew is the command renew: it issues or renews the certificate of the webhook, if it is time, and ends.
func renew(ctx context.Context, args []string, env func(string) string, stderr io.Writer) error {
	f := flag.NewFlagSet("injector "+commandRenew, flag.ContinueOnError)
	f.SetOutput(stderr)
	kubeconfig := f.String("kubeconfig", "", "how to reach the API server, a `file`; else the pod's own service account")
	namespace := f.String("namespace", env("POD_NAMESPACE"), "`namespace` of the injector")
	var hosts daemon.Texts
	f.Var(&hosts, "host", "an additional `name` or address of the certificate (repeatable)")
	if err := daemon.Parse(f, args); err != nil {
		return err
	}
	switch {
	case f.NArg() > 0:
		fmt.Fprintf(stderr, "injector %s: unexpected argument %q\n", commandRenew, f.Arg(0))
		return daemon.ErrUsage
	case *namespace == "":
		fmt.Fprintf(stderr, "injector %s: set --namespace or POD_NAMESPACE\n", commandRenew)
		return daemon.ErrUsage
	}
	clients, err := kube.Connect(*kubeconfig, "stoker-certificate/"+version)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	service := "stoker-injector." + *namespace
	return certificate.Renew(ctx, certificate.Config{
		Client: clients.Core, Namespace: *namespace, Configuration: admission.ConfigurationName, PublishTime: publishTime, Now: clients.Now,
		Names: append([]string{service + ".svc", service + ".svc.cluster.local"}, hosts...),
		Log:   daemon.Log(stderr, "json", "info"),
	})
}

// leaseName is the name of the Lease that elects the replica that runs the reconciler. Two replicas may run it at the same time for a
// moment. That does no harm, because both write the same. Only the holder of the Lease can evict pods, because it must record evictions
// in the Lease first.
const leaseName = "stoker-injector"

// leadership runs the reconciler while this replica holds the lease.
type leadership struct {
	settings settings
	scope    lookup.Scope
	find     *lookup.Lookup
	ready    func() bool
	metrics  *metrics.Injector
	log      *slog.Logger

	current atomic.Pointer[reconcile.Reconciler]
}

// changed forwards a change to the reconciler if it runs in this replica.
func (l *leadership) changed(namespace, _ string) {
	if reconciler := l.current.Load(); reconciler != nil {
		reconciler.Changed(namespace)
	}
}

// run takes part in the election until ctx is done.
func (l *leadership) run(ctx context.Context) error {
	clients, err := kube.Connect(l.settings.Kubeconfig, "stoker-injector-reconciler/"+version)
	if err != nil {
		return err
	}
	electing, err := kube.Connect(l.settings.Kubeconfig, "stoker-injector-lease/"+version)
	if err != nil {
		return err
	}
	own := lease.Lease{Client: electing.Core, Namespace: l.settings.Namespace, Name: leaseName, Holder: lease.Identity(instance(l.settings))}
	return own.Elect(ctx, func(ctx context.Context) error { return l.runReconciler(ctx, clients, own) })
}

func (l *leadership) runReconciler(ctx context.Context, clients kube.Clients, own lease.Lease) error {
	own.Client = clients.Core
	reconciler, err := reconcile.New(reconcile.Config{
		Core: clients.Core, Dynamic: clients.Dynamic, Find: l.find, Scope: l.scope, Defaults: defaults(l.settings),
		RequireLabel: l.settings.RequireNamespaceLabel, AutoBind: l.settings.AutoBindAgent, Repair: reconcile.Repair(l.settings.Repair),
		Lease:        own,
		WebhookReady: readyFor(l.ready, l.settings.RepairDelay, time.Now), Instance: instance(l.settings), Metrics: l.metrics, Log: l.log, Now: clients.Now,
	})
	if err != nil {
		return err
	}
	l.current.Store(reconciler)
	defer l.current.Store(nil)
	return reconciler.Run(ctx)
}

// repairDelay is how long it takes until Services lead to a replica that became ready, with a margin for the kubelet's probe,
// the EndpointSlice and the proxy of every node. If a pod were evicted earlier, its successor would get no agent.
const repairDelay = 10 * time.Second

// readyFor returns a function that reports whether ready was true in all of its calls for at least d. It does not notice that ready is false
// between two calls.
func readyFor(ready func() bool, d time.Duration, now func() time.Time) func() bool {
	var mu sync.Mutex
	var since time.Time
	return func() bool {
		mu.Lock()
		defer mu.Unlock()
		if !ready() {
			since = time.Time{}
			return false
		}
		if since.IsZero() {
			since = now()
		}
		return now().Sub(since) >= d
	}
}

// version is set by the build.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}
