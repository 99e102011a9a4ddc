package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"stoker.io/stoker/injector/admission"
	"stoker.io/stoker/injector/certificate"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/injector/lookup"
	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/internal/keypair"
	"stoker.io/stoker/internal/kube"
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
