package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"stoker.io/stoker/agent/connect"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/propose"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/standalone"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/test/gateway/simulator"
)

// agentWithGateway is a resident agent beside a simulated gateway, in which a Designer saves views.
type agentWithGateway struct {
	*agentResident
	gateway *simulator.Gateway
}

const (
	debounce = time.Second
	branch   = "gateway-changes/standalone/plant-1"

	// withForge proposes all changes to a forge.
	withForge = `    provider: gitea
    apiBaseURL: %s
`
	// withoutForge pushes a branch.
	withoutForge = "    provider: none\n"
)

const gatewaySyncFormat = `apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata:
  name: bench
spec:
  git:
    repo: %s
    ref: main
    auth: {token: {secretRef: {name: git, key: token}}}
  polling: {interval: 1h}
  gateway: {api: {secretName: gateway}}
%s  sync:
    defaults: {syncPeriod: %d}
    profiles:
      default:
        mappings:
          - {source: services/ignition/projects, destination: projects}
          - {source: services/ignition/config, destination: config}
`

// syncPeriod is the time between two comparisons of the files. The shortest one that the spec allows lets many of them fit into
// a run.
const syncPeriod = 5 * time.Second

// newAgentWithGateway starts a gateway, and returns its agent, which does not run yet.
func newAgentWithGateway(b *bench, name, bidirectional string) (*agentWithGateway, error) {
	dir := filepath.Join(b.work, name)
	once, err := newAgent(b.agent, dir, b.remote.URL())
	if err != nil {
		return nil, err
	}
	a := &agentWithGateway{agentResident: &agentResident{agentOnce: once, remote: b.remote}}
	if err := os.MkdirAll(once.data(), 0o755); err != nil {
		return nil, err
	}
	if a.gateway, err = simulator.Start(simulator.Options{Data: once.data(), NoBlobs: true, ProjectsTimer: -1}); err != nil {
		return nil, err
	}
	once.more = []string{"--gateway-url", a.gateway.URL()}
	for name, value := range map[string]string{"gateway/apiKey": a.gateway.Token(), "git/token": "bench"} {
		file := filepath.Join(dir, "secrets", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(value), 0o600)); err != nil {
			return nil, errors.Join(err, a.gateway.Close())
		}
	}
	return a, a.setBidirectional(bidirectional)
}

// setBidirectional sets the lines of spec.bidirectional; "" switches the feature off. A running agent notices the change.
func (a *agentWithGateway) setBidirectional(bidirectional string) error {
	if bidirectional != "" {
		bidirectional = fmt.Sprintf("  bidirectional:\n    enabled: true\n    debounce: %s\n    watchPaths: [\"projects/**\"]\n%s", debounce, bidirectional)
	}
	fresh := filepath.Join(a.dir, "fresh")
	if err := os.WriteFile(fresh, fmt.Appendf(nil, gatewaySyncFormat, a.remote.URL(), bidirectional, int(syncPeriod.Seconds())), 0o644); err != nil {
		return err
	}
	return os.Rename(fresh, a.file())
}

// restartWithoutGateway restarts the agent without access to its gateway.
func (a *agentWithGateway) restartWithoutGateway(ctx context.Context) error {
	if err := a.agentResident.close(); err != nil {
		return err
	}
	a.more = nil
	return a.ready(ctx)
}

func (a *agentWithGateway) close() error {
	return errors.Join(a.agentResident.close(), a.gateway.Close())
}

// view is a view of a project, as a Designer names it.
type view struct{ project, path string }

// save saves a view in a Designer.
func (a *agentWithGateway) save(ctx context.Context, v view, files map[string][]byte) error {
	id, err := a.gateway.Designers.Open("maria", v.project)
	if err != nil {
		return err
	}
	err = errors.Join(a.gateway.Designers.OpenResource(id, v.path), a.gateway.Designers.SaveResource(ctx, id, v.path, files, true), a.gateway.Designers.Close(id))
	if err != nil {
		return fmt.Errorf("save %s in %s: %w", v.path, v.project, err)
	}
	return nil
}

// scans returns the number of scan requests to the gateway.
func (a *agentWithGateway) scans() (n int) {
	for _, r := range a.gateway.Requests.List() {
		if r.Method == http.MethodPost {
			n++
		}
	}
	return n
}

// forge counts the requests to the API of a forge. It answers 503, so that a client that needs the forge repeats them.
type forge struct {
	http     *http.Server
	url      string
	requests atomic.Int64
}

func newForge() (*forge, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f := &forge{url: "http://" + listener.Addr().String()}
	f.http = &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		f.requests.Add(1)
		http.Error(w, "down", http.StatusServiceUnavailable)
	})}
	go func() { _ = f.http.Serve(listener) }() // until close
	return f, nil
}

func (f *forge) close() error { return f.http.Close() }

// compareRounds is how often compare compares all files with the feature and without.
const compareRounds = 7

// compare measures the comparison of all files with the feature and without, in turns, and the walk for new files. The agent's
// engine runs in the bench itself meanwhile, so that nothing else is measured.
func (x *proposalBench) compare(ctx context.Context) (err error) {
	// Both end here, and measureIdle starts them again, so that neither has memory from its first sync.
	if err := errors.Join(x.on.agentResident.close(), x.off.agentResident.close()); err != nil {
		return err
	}
	gs, _, err := standalone.Load(x.on.file())
	if err != nil {
		return err
	}
	profile, err := effective.Of(gs, "", nil)
	if err != nil {
		return err
	}
	facts := plan.Facts{GatewayName: "plant-1", PodName: "plant-1", Namespace: gs.Namespace, CRName: gs.Name}
	silent := slog.New(slog.DiscardHandler)
	settings := connect.ProposalSettings(gs, profile, propose.Identity{Namespace: facts.Namespace, Gateway: facts.GatewayName}, connect.LocalSecrets{Dir: filepath.Join(x.on.dir, "secrets")}, repo.RemoteOptions{Log: silent})
	if settings.Problem != nil {
		return settings.Problem
	}
	defer func() { err = errors.Join(err, settings.Remote.Close()) }()
	store, err := repo.Open(x.on.repo(), repo.StoreOptions{Log: silent})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	engine := sync.New(sync.Config{DataDir: x.on.data(), Store: store, Log: silent, Limits: plan.Limits{Files: 2_000_000}})
	defer func() { err = errors.Join(err, engine.Close()) }()
	check := func() error {
		drift, err := engine.Drift(ctx, false)
		if err == nil && (drift.Checked != x.size.Files || drift.Files != 0) {
			err = fmt.Errorf("%d of %d files were compared, and %d have changed", drift.Checked, x.size.Files, drift.Files)
		}
		return err
	}
	if err := check(); err != nil { // opens the directory
		return err
	}
	for range compareRounds {
		var with, without sample
		engine.Watch(nil)
		if without, err = timed(check); err != nil {
			return err
		}
		x.addSample("compare", withoutFeature, without)
		engine.Watch(settings.Watches)
		if with, err = timed(check); err != nil {
			return err
		}
		x.addSample("compare", withFeature, with)
		x.figures.ratios = append(x.figures.ratios, float64(with.cpu)/float64(without.cpu))
	}
	for range compareRounds {
		var base propose.Base
		load, err := timed(func() (err error) {
			base, err = engine.Base(ctx, settings.Remote, sync.Task{Profile: profile, Facts: facts})
			return err
		})
		if err != nil {
			return err
		}
		x.addSample("base", withFeature, load)
		walk, err := timed(func() error {
			added, err := engine.Added(ctx, base)
			if err == nil && len(added) > 0 {
				err = fmt.Errorf("%d new files were found, such as %s", len(added), added[0])
			}
			return err
		})
		if err != nil {
			return err
		}
		x.addSample("walk", withFeature, walk)
	}
	return nil
}

// timed measures a function of this process.
func timed(f func() error) (s sample, err error) {
	var before, after syscall.Rusage
	s.load = loadAverage()
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &before); err != nil {
		return s, err
	}
	began := time.Now()
	err = f()
	s.wall = time.Since(began)
	if err == nil {
		err = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
	}
	s.cpu = time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
	return s, err
}
