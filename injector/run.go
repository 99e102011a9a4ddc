package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"stoker.io/stoker/injector/admission"
	"stoker.io/stoker/injector/certificate"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/injector/lookup"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/metrics"
	"stoker.io/stoker/internal/serve"
)

// Exit codes, the same as those of the stoker command.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

const (
	// certificateEvery is how often the certificate and the webhook configuration are looked at; certificateSettle is how
	// long a new authority is published before its certificate is served.
	certificateEvery, certificateSettle = time.Minute, time.Hour
	// mountedEvery is how often a mounted certificate is read. The kubelet itself needs up to a minute to bring a new one.
	mountedEvery = 10 * time.Second
)

// run is the whole program: what main and the tests call. It returns the exit code.
func run(ctx context.Context, args []string, env func(string) string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == commandCheck {
		return checkWebhook(ctx, args[1:], stdout, stderr)
	}
	s, err := parse(args, env, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitDone
	case err != nil:
		return exitUsage
	case s.Version:
		fmt.Fprintln(stdout, version)
		return exitDone
	}
	if err := work(ctx, s, newLog(stderr, s)); err != nil {
		fmt.Fprintf(stderr, "injector: %v\n", err)
		return exitFailed
	}
	return exitDone
}

func newLog(out io.Writer, s settings) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(s.LogLevel)) // validated
	o := &slog.HandlerOptions{Level: level}
	if s.LogFormat == "text" {
		return slog.New(slog.NewTextHandler(out, o))
	}
	return slog.New(slog.NewJSONHandler(out, o))
}

// keeper looks after a certificate.
type keeper interface {
	Run(ctx context.Context) error
	Ready() bool
	GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error)
}

// work builds the parts and runs them until ctx ends.
func work(ctx context.Context, s settings, log *slog.Logger) error {
	ctx = klog.NewContext(ctx, logr.FromSlogHandler(log.Handler()))
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	measured := metrics.NewInjector(reg, version)

	// Two ways to the API server: whatever upkeep does, a review does not wait for it.
	clients, err := kube.Connect(s.Kubeconfig, "stoker-injector/"+version)
	if err != nil {
		return err
	}
	scope := lookup.Scope{Own: s.Namespace, Watch: s.WatchNamespace, Selector: s.selector}
	term := &term{settings: s, scope: scope, metrics: measured, log: log}
	find, err := lookup.New(clients.Dynamic, scope, term.changed)
	if err != nil {
		return err
	}
	term.find = find
	cert := newKeeper(s, clients, measured, log)
	handler := admission.New(admission.Config{Find: find, Scope: scope, Defaults: defaults(s), Metrics: measured, Log: log})
	ready := func() bool { return cert.Ready() && find.HasSynced() }
	term.ready = ready

	group, inner := errgroup.WithContext(context.WithoutCancel(ctx))
	inner, stop := context.WithCancel(inner)
	context.AfterFunc(ctx, stop)
	defer stop()
	if err := servers(inner, group, s, []endpoint{
		{"webhook-addr", s.WebhookAddr, handler.Routes(), &tls.Config{GetCertificate: cert.GetCertificate, MinVersion: tls.VersionTLS12}},
		{"health-addr", s.HealthAddr, healthHandler(ready), nil},
		{"metrics-addr", s.MetricsAddr, metricsHandler(reg), nil},
	}, log); err != nil {
		stop()
		return errors.Join(err, group.Wait())
	}
	group.Go(func() error { return cert.Run(inner) })
	group.Go(func() error { return find.Run(inner) })
	group.Go(func() error { return term.run(inner) })
	return group.Wait()
}

func defaults(s settings) inject.Defaults {
	return inject.Defaults{Image: s.image, AllowedImages: s.AllowAgentImage, Resources: s.resources}
}

func newKeeper(s settings, clients kube.Clients, m *metrics.Injector, log *slog.Logger) keeper {
	if s.Certificates == certificatesMounted {
		return certificate.NewMounted(s.CertificateDir, mountedEvery, log, m.CertificateEnds)
	}
	service := "stoker-injector." + s.Namespace
	return certificate.NewOwn(certificate.Config{
		Client: clients.Core, Namespace: s.Namespace, Secret: s.CertificateSecret, Configuration: s.Configuration,
		Names: append([]string{service + ".svc", service + ".svc.cluster.local"}, s.CertificateHost...),
		Every: certificateEvery, Settle: certificateSettle, Log: log, Ends: m.CertificateEnds,
	})
}

// endpoint is one server.
type endpoint struct {
	flag, addr string
	handler    http.Handler
	tls        *tls.Config
}

func servers(ctx context.Context, group *errgroup.Group, s settings, list []endpoint, log *slog.Logger) error {
	for _, e := range list {
		listen := serve.Listen
		if e.tls != nil {
			listen = func(ctx context.Context, addr string, h http.Handler) (*serve.Server, error) {
				return serve.ListenTLS(ctx, addr, h, e.tls, admission.MaxBody+1) // the handler says it in words
			}
		}
		srv, err := listen(ctx, e.addr, e.handler)
		if err != nil {
			return fmt.Errorf("--%s: %w", e.flag, err)
		}
		log.Info("listening", "for", e.flag, "address", srv.Addr(), "namespace", s.Namespace)
		group.Go(func() error { return srv.Run(ctx) })
	}
	return nil
}

func healthHandler(ready func() bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !ready() {
			http.Error(w, "waiting for the certificate or for the list of GatewaySyncs", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}

func metricsHandler(reg *prometheus.Registry) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second}))
	return mux
}

// instance is who this replica is among the others.
func instance(s settings) string {
	if s.Pod != "" {
		return s.Pod
	}
	if host, err := os.Hostname(); err == nil {
		return host
	}
	return "injector"
}
