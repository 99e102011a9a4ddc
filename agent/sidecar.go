package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"stoker.io/stoker/agent/apikey"
	"stoker.io/stoker/agent/connect"
	"stoker.io/stoker/agent/follow"
	"stoker.io/stoker/agent/lead"
	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/metrics"
	"stoker.io/stoker/internal/serve"
)

const (
	// bootTimeout is the time limit of all boot steps together: those that bootStep runs before the loops. None waits for the API server, because
	// a gateway starts without it. If a step hangs, the agent exits and names the step, so that the kubelet restarts the agent and users see the
	// reason.
	bootTimeout = 2 * time.Minute
	// sidecarGrace is how long a sync that has written files may go on after SIGTERM. Together with the last report and the shutdown of the
	// servers, it must be less than 30 s, the default grace period of a pod.
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
// agent does. It ends earlier, with gatewaypod.ExitRestartGateway, if the gateway has to start once more.
func sidecar(ctx context.Context, s settings, screen *screen) (int, error) {
	log, env := screen.log, s.Env
	klog.SetSlogLogger(log) // client-go has no other way to set a logger
	boot, endBoot := context.WithTimeoutCause(ctx, bootTimeout, fmt.Errorf("it is not done after %s", bootTimeout))
	defer endBoot()

	var clients kube.Clients
	err := bootStep(boot, "find the API server", func() (err error) {
		clients, err = kube.Connect(s.Kubeconfig, "stoker-agent/"+version)
		return err
	})
	if err != nil {
		return daemon.ExitFailed, err
	}
	store, err := objectStore(s, log)
	if err != nil {
		return daemon.ExitFailed, err
	}
	defer func() { _ = store.Close() }() // a cache may lose writes
	engine, closeEngine := newEngine(s, store, screen)
	defer closeEngine()

	reg := daemon.Registry()
	agentMetrics := metrics.NewAgent(reg, version, env.PodNamespace, env.GatewaySync, env.Gateway)
	secrets := connect.Mounted{Dir: env.SecretsDir, Keys: env.Secrets}
	var key *apikey.Key
	if env.KeyDir != "" {
		key = apikey.New(env.KeyDir, time.Now)
	}
	leading, err := lead.New(lead.Config{
		Namespace: env.PodNamespace, GatewaySync: env.GatewaySync, Pod: env.PodName, Clients: clients, Store: store, Log: log,
		SecretFiles: secrets.FilesToWatch(),
		Metrics:     fleetMetrics{agentMetrics, metrics.NewFleet(reg, env.PodNamespace, env.GatewaySync)},
		Connect: func(gs *v1alpha1.GatewaySync) (*repo.Remote, error) {
			return connect.Git(gs.Spec.Git, secrets, remoteOptions(s, log))
		},
		Eligible: func(gs *v1alpha1.GatewaySync) error { return connect.Reachable(&gs.Spec, secrets) },
	})
	if err != nil {
		return daemon.ExitFailed, err
	}
	follower, err := follow.New(follow.Config{
		Identity: follow.Identity{
			Namespace: env.PodNamespace, Pod: env.PodName, PodUID: env.PodUID,
			GatewaySync: env.GatewaySync, Gateway: env.Gateway, Profile: env.Profile,
		},
		Version: version, PodInfo: env.PodInfoDir, Port: env.Port, TLS: env.TLS, Period: env.Period,
		StartupFile: filepath.Join(env.RepoPath, "startup.json"),
		API:         clients.Dynamic, Secrets: secrets, Key: key, SecretFiles: secrets.FilesToWatch(), Remote: remoteOptions(s, log), Engine: engine,
		Log: log, Metrics: agentMetrics, OnSyncTarget: leading.Saw, OnState: screen.state,
	})
	if err != nil {
		return daemon.ExitFailed, err
	}
	loops := []func(context.Context) error{follower.Run, leading.Run}
	var servers []*serve.Server
	err = bootStep(boot, "listen", func() error {
		if s.HealthAddr != "" {
			srv, err := listenFor(ctx, "health", s.HealthAddr, loop.Handler(follower.Routes()), log)
			if err != nil {
				return err // without this server, the kubelet cannot probe whether the gateway may start
			}
			servers = append(servers, srv)
		}
		if s.MetricsAddr == "" {
			return nil
		}
		srv, err := listenFor(ctx, "metrics", s.MetricsAddr, daemon.Metrics(reg), log)
		if err == nil {
			servers = append(servers, srv)
			return nil
		}
		log.Error("metrics are not served; trying again", "error", err)
		loops = append(loops, func(ctx context.Context) error { return serveMetricsLater(ctx, s.MetricsAddr, reg, log) })
		return nil
	})
	if err != nil {
		return daemon.ExitFailed, err
	}
	endBoot()
	code, err := serveAndRun(ctx, servers, loops...)
	if errors.Is(err, follow.ErrRestartGateway) {
		code = gatewaypod.ExitRestartGateway
	}
	return code, err
}

// bootStep runs do. If ctx ends first, it abandons the goroutine of do, because the process exits.
func bootStep(ctx context.Context, name string, do func() error) (err error) {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err = <-done:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// objectStore returns the cache of git objects. The first sync that needs the cache opens it, because a gateway whose volume is complete starts
// without it.
func objectStore(s settings, log *slog.Logger) (*repo.Store, error) {
	dir, err := s.repoDir()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(s.Env.RepoPath, 0o700); err != nil {
		log.Warn("cannot create the folder for git objects", "path", s.Env.RepoPath, "error", err)
	}
	return repo.New(dir, storeOptions(s, log)), nil
}

// metricsRetry is the interval at which the agent tries to listen on a metrics port that is in use.
const metricsRetry = 15 * time.Second

// serveMetricsLater serves metrics once their port is free. A port in use is not a reason to exit, because the gateway does not need metrics.
func serveMetricsLater(ctx context.Context, addr string, reg *prometheus.Registry, log *slog.Logger) error {
	for backoff.Wait(ctx, metricsRetry) {
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
