package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"stoker.io/stoker/agent/connect"
	"stoker.io/stoker/agent/follow"
	"stoker.io/stoker/agent/lead"
	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/metrics"
	"stoker.io/stoker/internal/serve"
)

const (
	// bootWithin bounds everything before the loops run. It does not include the API server: a gateway starts without
	// it.
	bootWithin = 2 * time.Minute
	// sidecarGrace is how long a sync that has written files may go on after SIGTERM. Together with the last report and
	// the shutdown of the servers it stays below a pod's default of 30 s.
	sidecarGrace = 15 * time.Second
)

// grace returns how long the engine may go on after it is asked to stop; 0 means its default.
func (s *settings) grace() time.Duration {
	if s.Sidecar {
		return sidecarGrace
	}
	return 0
}

// sidecar runs in a gateway's pod until ctx is done: it follows the SyncTarget of a GatewaySync, and leads if no other
// agent does.
func sidecar(ctx context.Context, s settings, screen *screen) (int, error) {
	log, env := screen.log, s.Env
	klog.SetSlogLogger(log) // client-go has no other way to set a logger
	boot, booted := newBoot(ctx, bootWithin)
	defer booted()

	var clients kube.Clients
	err := boot.step("find the API server", func() (err error) {
		clients, err = kube.Connect(s.Kubeconfig, "stoker-agent/"+version)
		return err
	})
	if err != nil {
		return exitFailed, err
	}
	store, err := cache(s, log)
	if err != nil {
		return exitFailed, err
	}
	defer func() { _ = store.Close() }() // a cache may lose writes
	engine, closeEngine := newEngine(s, store, screen)
	defer closeEngine()

	reg := daemon.Registry()
	measured := metrics.NewAgent(reg, version, env.PodNamespace, env.GatewaySync, env.Gateway)
	secrets := connect.Mounted{Dir: env.SecretsDir, Keys: env.Secrets, Files: env.Files}
	leading, err := lead.New(lead.Config{
		Namespace: env.PodNamespace, GatewaySync: env.GatewaySync, Pod: env.PodName, Clients: clients, Store: store, Log: log,
		SecretFiles: secrets.Changing(),
		Metrics:     fleetMetrics{measured, metrics.NewFleet(reg, env.PodNamespace, env.GatewaySync)},
		Connect: func(gs *v1alpha1.GatewaySync) (*repo.Remote, error) {
			return connect.Git(gs.Spec.Git, secrets, remoteOptions(s, log))
		},
		Eligible: func(gs *v1alpha1.GatewaySync) error { return connect.Reachable(&gs.Spec, secrets) },
	})
	if err != nil {
		return exitFailed, err
	}
	follower, err := follow.New(follow.Config{
		Identity: follow.Identity{
			Namespace: env.PodNamespace, Pod: env.PodName, PodUID: env.PodUID,
			GatewaySync: env.GatewaySync, Gateway: env.Gateway, Profile: env.Profile,
		},
		Version: version, PodInfo: env.PodInfoDir, Port: env.Port, TLS: env.TLS, Period: env.Period,
		StartupFile: filepath.Join(env.RepoPath, "startup.json"),
		API:         clients.Dynamic, Secrets: secrets, SecretFiles: secrets.Changing(), Remote: remoteOptions(s, log), Engine: engine,
		Log: log, Metrics: measured, OnSyncTarget: leading.Saw, Tell: screen.state,
	})
	if err != nil {
		return exitFailed, err
	}
	loops := []func(context.Context) error{follower.Run, leading.Run}
	var servers []*serve.Server
	err = boot.step("listen", func() error {
		if s.HealthAddr != "" {
			srv, err := listenFor(ctx, "health", s.HealthAddr, loop.Handler(follower.Routes()), log)
			if err != nil {
				return err // without it the kubelet could not probe whether the gateway may start
			}
			servers = append(servers, srv)
		}
		if s.MetricsAddr == "" {
			return nil
		}
		srv, missed := listenFor(ctx, "metrics", s.MetricsAddr, daemon.Metrics(reg), log)
		if missed == nil {
			servers = append(servers, srv)
		} else {
			loops = append(loops, func(ctx context.Context) error { return measureLater(ctx, s.MetricsAddr, reg, log, missed) })
		}
		return nil
	})
	if err != nil {
		return exitFailed, err
	}
	booted()
	return exitDone, serveAndRun(ctx, servers, loops...)
}

// cache returns the store of git objects. The first sync that needs it opens it: a gateway whose volume is complete
// starts without git, and without a place for its objects.
func cache(s settings, log *slog.Logger) (*repo.Store, error) {
	dir, err := s.repoDir()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(s.Env.RepoPath, 0o700); err != nil {
		log.Warn("there is no place for git objects; what lies on the volume is not touched by that", "path", s.Env.RepoPath, "error", err)
	}
	return repo.New(dir, storeOptions(s, log)), nil
}

// measureEvery is the interval at which a metrics port in use is tried again.
const measureEvery = 15 * time.Second

// measureLater serves metrics as soon as their port is free, because the gateway does not depend on them.
func measureLater(ctx context.Context, addr string, reg *prometheus.Registry, log *slog.Logger, why error) error {
	log.Error("metrics are not served; it is tried again", "error", why)
	for backoff.Wait(ctx, measureEvery) {
		if srv, err := listenFor(ctx, "metrics", addr, daemon.Metrics(reg), log); err == nil {
			return srv.Run(ctx)
		}
	}
	return nil
}

// fleetMetrics are the metrics of a lead.
type fleetMetrics struct {
	*metrics.Agent
	*metrics.Fleet
}
