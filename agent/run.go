package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"stoker.io/stoker/agent/apikey"
	"stoker.io/stoker/agent/connect"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/standalone"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/internal/metrics"
	"stoker.io/stoker/internal/serve"
)

// Exit codes, shared with the stoker command, beside those of package daemon.
const (
	exitTimeout = 3
	exitHeld    = 6
)

// run is the whole program, called by main and by tests. It returns the exit code.
func run(ctx context.Context, args, env []string, stdout, stderr io.Writer) int {
	for _, i := range []inspection{lostAndFound(), proposal(), snapshots(ctx), textDiff(ctx)} {
		if len(args) > 0 && args[0] == i.name {
			return i.execute(args[1:], env, stdout, stderr)
		}
	}
	s, err := parse(args, env, stderr)
	switch {
	case err != nil:
		return daemon.Exit(err, "agent", stderr)
	case s.Version:
		fmt.Fprintln(stdout, version)
		return daemon.ExitDone
	}
	// The agent shares a small pod with a gateway, so memory matters more than garbage collection time, which is small
	// compared with the file system (measured in a first sync of 100,000 files).
	if !slices.ContainsFunc(env, func(v string) bool { return strings.HasPrefix(v, "GOGC=") }) {
		debug.SetGCPercent(20)
	}
	mode := standAlone
	if s.Sidecar {
		mode = sidecar
	}
	code, err := mode(ctx, s, newScreen(stdout, stderr, s, terminal))
	if err != nil {
		fmt.Fprintf(stderr, "agent: %v\n", err)
	}
	return code
}

// standAlone follows the GatewaySync in a file until ctx is done, or syncs once.
func standAlone(ctx context.Context, s settings, screen *screen) (int, error) {
	log := screen.log
	name, namespace := gatewaySyncName(s)
	reg := daemon.Registry()
	if err := checkPaths(s); err != nil {
		return daemon.ExitUsage, err
	}
	store, closeStore, err := openStore(s, log)
	if err != nil {
		return daemon.ExitFailed, err
	}
	defer closeStore()
	engine, closeEngine := newEngine(s, store, screen)
	defer closeEngine()
	if !s.DryRun {
		// If another agent has the data directory, this one exits. Other problems with the directory may pass.
		if _, err := engine.Open(); errors.Is(err, disk.ErrLocked) {
			return daemon.ExitFailed, err
		}
	}
	var key *apikey.Key
	if dir, err := s.repoDir(); err == nil && !s.DryRun {
		key = apikey.New(dir, time.Now)
	}
	runner := standalone.New(standalone.Config{
		File:    s.File,
		Version: version,
		Gateway: standalone.Identity{Name: s.GatewayName, Profile: s.Profile, Labels: s.Labels, Annotations: s.Annotations},
		Secrets: connect.LocalSecrets{Files: s.Secrets, Dir: filepath.Join(filepath.Dir(s.File), "secrets")},
		Key:     key,

		GatewayURL: s.GatewayURL, DryRun: s.DryRun, Engine: engine, Log: log, OnState: screen.state,
		Remote:  remoteOptions(s, log),
		Metrics: metrics.NewAgent(reg, version, namespace, name, s.GatewayName),
	})
	if s.Once {
		return onceResult(runner.Once(ctx))
	}
	servers, err := listen(ctx, s, loop.Handler(runner.Routes()), reg, log)
	if err != nil {
		return daemon.ExitFailed, err
	}
	return serveAndRun(ctx, servers, func(ctx context.Context) error { runner.Run(ctx); return nil })
}

func remoteOptions(s settings, log *slog.Logger) repo.RemoteOptions {
	return repo.RemoteOptions{Log: log, MaxBytes: int64(s.MaxRepository), MaxBlob: largestBlob(s)}
}

// largestBlob returns the size in bytes of the largest file that the agent reads from a delta or from an artifact.
func largestBlob(s settings) int64 { return max(512<<20, int64(s.MaxBlob)) }

// newEngine returns the engine for the data directory and a function that closes it.
func newEngine(s settings, store *repo.Store, screen *screen) (*sync.Engine, func()) {
	engine := sync.New(sync.Config{
		DataDir: s.DataDir, Mounts: s.Env.Mounts, Store: store, Log: screen.log, Progress: screen.progress, Grace: s.grace(), Once: s.Once,
		Disk:    disk.Options{Log: screen.log, AllowUnseeded: s.AllowUnseeded, LostFoundMax: int64(s.MaxLostFound), LostFoundAge: s.LostFoundAge},
		Limits:  plan.Limits{Files: s.MaxFiles},
		MaxBlob: int64(s.MaxBlob),
	})
	return engine, func() {
		if err := engine.Close(); err != nil {
			screen.log.Warn("the data directory was not closed cleanly", "error", err)
		}
	}
}

// checkPaths returns an error if the GatewaySync's file or the data directory does not exist, or if the latter is not a directory. The agent does
// not wait for them, because a mistyped path never appears.
func checkPaths(s settings) error {
	if _, err := os.Stat(s.File); err != nil {
		return fmt.Errorf("--file: %w", err)
	}
	fi, err := os.Stat(s.DataDir)
	if err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	if !fi.IsDir() {
		return fmt.Errorf("--data-dir: %s is not a directory", s.DataDir)
	}
	return nil
}

// openStore opens the cache of git objects. A dry run uses a temporary one, because another agent may use the cache of the data directory.
func openStore(s settings, log *slog.Logger) (store *repo.Store, closeStore func(), err error) {
	o := storeOptions(s, log)
	if s.DryRun {
		return temporaryStore(o)
	}
	dir, err := s.repoDir()
	if err != nil {
		return nil, nil, err
	}
	store, err = repo.Open(dir, o)
	if err == nil {
		return store, func() { _ = store.Close() }, nil // a cache may lose writes
	}
	if locked := checkLock(s); locked != nil {
		return nil, nil, locked
	}
	return nil, nil, fmt.Errorf("the cache of git objects: %w; --repo-dir sets another directory", err)
}

// temporaryStore returns a store in a temporary directory, and a function that closes and removes it.
func temporaryStore(o repo.StoreOptions) (*repo.Store, func(), error) {
	tmp, err := os.MkdirTemp("", "stoker-dry-run-")
	if err != nil {
		return nil, nil, fmt.Errorf("a cache of git objects for the dry run: %w; set TMPDIR to a directory that can be written", err)
	}
	store, err := repo.Open(tmp, o)
	if err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(tmp))
	}
	return store, func() {
		_ = store.Close()
		_ = os.RemoveAll(tmp)
	}, nil
}

func storeOptions(s settings, log *slog.Logger) repo.StoreOptions {
	return repo.StoreOptions{Log: log, Limits: repo.Limits{PackBytes: int64(s.MaxRepository), DeltaBytes: largestBlob(s)}}
}

// checkLock returns disk.ErrLocked if another agent has locked the data directory, and so uses the cache, too.
func checkLock(s settings) error {
	d, err := disk.Open(s.DataDir, disk.Options{AllowUnseeded: s.AllowUnseeded})
	if err == nil {
		err = d.Close()
	}
	if errors.Is(err, disk.ErrLocked) {
		return err
	}
	return nil
}

// listen opens the HTTP servers.
func listen(ctx context.Context, s settings, health http.Handler, reg *prometheus.Registry, log *slog.Logger) ([]*serve.Server, error) {
	var servers []*serve.Server
	for _, e := range []struct {
		name, addr string
		handler    http.Handler
	}{
		{"health", s.HealthAddr, health},
		{"metrics", s.MetricsAddr, daemon.Metrics(reg)},
	} {
		if e.addr == "" {
			continue
		}
		srv, err := listenFor(ctx, e.name, e.addr, e.handler, log)
		if err != nil {
			return nil, err // the process exits and closes the other listeners
		}
		servers = append(servers, srv)
	}
	return servers, nil
}

func listenFor(ctx context.Context, name, addr string, h http.Handler, log *slog.Logger) (*serve.Server, error) {
	srv, err := serve.Listen(ctx, addr, h)
	if err != nil {
		return nil, fmt.Errorf("--%s-addr: %w", name, err)
	}
	log.Info("listening", "for", name, "address", srv.Addr())
	return srv, nil
}

// serveAndRun runs loops and HTTP servers until ctx is done or one of them fails. The servers end after the loops, so that they still serve
// the state while a loop finishes or rolls back the last sync. It returns the exit code.
func serveAndRun(ctx context.Context, servers []*serve.Server, loops ...func(context.Context) error) (int, error) {
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, serving := errgroup.WithContext(serving)
	for _, srv := range servers {
		group.Go(func() error { return srv.Run(serving) })
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(serving, cancel) // a failing server stops the agent
	running, ctx := errgroup.WithContext(ctx)
	for _, loop := range loops {
		running.Go(func() error { return loop(ctx) })
	}
	err := running.Wait()
	stop()
	if err = errors.Join(err, group.Wait()); err != nil {
		return daemon.ExitFailed, err
	}
	return daemon.ExitDone, nil
}

// gatewaySyncName returns the name and the namespace for metrics; both are empty if the file cannot be read.
func gatewaySyncName(s settings) (name, namespace string) {
	gs, _, err := standalone.Load(s.File)
	if err != nil {
		return "", ""
	}
	return gs.Name, gs.Namespace
}

// onceResult returns the exit code of --once, and an error that says why it is not daemon.ExitDone.
func onceResult(s loop.State, timedOut bool) (int, error) {
	code := exitCode(s, timedOut)
	if code == daemon.ExitDone {
		return code, nil
	}
	return code, fmt.Errorf("%s: %s", s.Reason, s.Message)
}

func exitCode(s loop.State, timedOut bool) int {
	switch {
	case timedOut:
		return exitTimeout
	case s.Phase.Synced(), s.DryRun():
		return daemon.ExitDone
	case s.Phase == v1alpha1.GatewayHeld:
		return exitHeld
	default:
		return daemon.ExitFailed
	}
}
