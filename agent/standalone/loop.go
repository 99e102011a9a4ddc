// Package standalone drives syncs from a GatewaySync in a file, without Kubernetes: for a gateway on bare metal, for
// development and for experiments. The file is the desired state, like the object in a cluster.
package standalone

import (
	"context"
	"errors"
	"log/slog"
	"syscall"
	"time"

	"stoker.io/stoker/agent/apikey"
	"stoker.io/stoker/agent/connect"
	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/propose"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/file"
	"stoker.io/stoker/internal/metrics"
)

// Config configures a Loop.
type Config struct {
	File       string
	Version    string // of the agent
	Gateway    Identity
	GatewayURL string // "" for files only
	Secrets    connect.LocalSecrets
	Key        *apikey.Key // for spec.gateway.api.managed; nil if this run manages none
	DryRun     bool
	Engine     *sync.Engine
	Remote     repo.RemoteOptions
	Log        *slog.Logger
	Metrics    *metrics.Agent
	Now        func() time.Time // nil means time.Now
	// OnState is called when the state has changed. It must not block.
	OnState func(loop.State)
}

// Identity describes the gateway, as the metadata of its pod does in a cluster.
type Identity struct {
	Name        string
	Profile     string
	Labels      map[string]string
	Annotations map[string]string
}

// Loop follows a GatewaySync in a file. One goroutine drives it; State may be called from others.
type Loop struct {
	Config
	loop      *loop.Loop
	spec      spec
	target    target
	order     *loop.Order
	proposals connect.ProposalSettingsCache
	watcher   *file.Watcher // nil in Once
	// keyRemoved reports that this process has removed the API key that the spec asks for no more.
	keyRemoved bool
}

// New returns a Loop.
func New(c Config) *Loop {
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Loop{Config: c, loop: loop.New(loop.Config{
		Name: "standalone", Gateway: c.Gateway.Name, Version: c.Version, DryRun: c.DryRun,
		Engine: c.Engine, Log: c.Log, Metrics: c.Metrics, Now: c.Now, OnState: c.OnState,
	})}
}

// Run follows the file until ctx is done, and then finishes or rolls back the running sync.
func (l *Loop) Run(ctx context.Context) {
	l.watcher = file.Watch(l.Log, l.File)
	defer l.watcher.Close()
	l.loop.Run(ctx, l)
}

// State returns the current state.
func (l *Loop) State() loop.State { return l.loop.State() }

// Routes returns the agent's HTTP routes.
func (l *Loop) Routes() []loop.Route { return l.loop.Routes() }

// Changed implements loop.Source.
func (l *Loop) Changed() <-chan struct{} { return l.watcher.Changed() }

// Decide implements loop.Source. It reads the file and resolves the ref.
func (l *Loop) Decide(ctx context.Context, changed bool) loop.Decision {
	if changed {
		l.spec.raw = nil // evaluate a touched file even if its content is the same
	}
	l.reload()
	if l.spec.gs == nil {
		return loop.Decision{Problems: l.problems()}
	}
	l.checkSecrets()
	l.updateKey(ctx)
	l.resolve(ctx)
	return loop.Decision{Order: l.currentOrder(), Problems: l.problems(), Due: l.target.due}
}

// updateKey installs the API key of the agent if that is due, or removes it if the spec asks for none any more.
func (l *Loop) updateKey(ctx context.Context) {
	if l.Key == nil || l.GatewayURL == "" {
		return
	}
	if l.spec.gs.Spec.Gateway.ManagedKey() {
		l.keyRemoved = false
		gatewayMayRun := func() bool {
			_, err := l.spec.connections.Gateway.Ping(ctx)
			return !errors.Is(err, syscall.ECONNREFUSED)
		}
		l.Key.Update(l.Engine.Open, gatewayMayRun, l.Log)
		return
	}
	if l.keyRemoved || !l.Key.Exists() && !l.Key.Forgotten() { // a forgotten key may be back, with a backup of the data directory
		return
	}
	d, err := l.Engine.Open()
	if err != nil {
		return // the sync reports why, and the next iteration tries again
	}
	err = l.Key.Forget(d)
	if l.keyRemoved = err == nil; err != nil {
		l.Log.Warn("API key not removed", "error", err)
	}
}

// currentOrder returns the order for the current file and commit: a new one only if the file, a secret, the ref or the commit has
// changed. While the desired ref does not resolve, the last order stays in force, as in a pod: its commit does not belong to the new
// ref, and a new spec may name another repository. Only a pause and the annotations of annotation.Requests take effect at once.
func (l *Loop) currentOrder() *loop.Order {
	gs, t, o := l.spec.gs, l.target, l.order
	switch {
	case o != nil && !o.Commit.IsZero() && t.err != nil:
		next := *o
		next.Profile.Paused, next.Requests = l.spec.effective.Paused, annotation.RequestsFor(gs, l.Gateway.Name, o.Commit.String())
		if o.Profile.Paused != next.Profile.Paused || o.Target != next.Target {
			l.order = &next
		}
	case o == nil || l.spec.fresh || o.Commit != t.commit || o.Ref != t.ref:
		target := sync.Target{Ref: t.ref, Name: t.name, Commit: t.commit, Requests: annotation.RequestsFor(gs, l.Gateway.Name, t.commit.String())}
		l.order = &loop.Order{
			Task:        sync.Task{Target: target, Profile: l.spec.effective, Facts: l.facts(), File: l.File, Stop: l.checkPaused},
			GatewaySync: gs.Name, Repo: connect.RepoName(gs.Spec.Git), Connections: l.spec.connections,
			ProposalSettings: l.proposals.Settings(gs, l.spec.effective, propose.Identity{Namespace: gs.Namespace, Gateway: l.Gateway.Name}, l.Secrets, l.Remote),
		}
		l.spec.fresh = false
	}
	return l.order
}

func (l *Loop) problems() []loop.Problem {
	var list []loop.Problem
	if l.target.err != nil {
		list = append(list, loop.NewProblem(l.target.err, v1alpha1.ReasonGitUnreachable))
	}
	if l.spec.err != nil {
		list = append(list, loop.NewProblem(l.spec.err, v1alpha1.ReasonProfilesInvalid))
	}
	return list
}

// Once runs iterations until the gateway is synced, compared and, if the policy says so, repaired, until waiting cannot help, or
// until ctx is done. It returns the last state. It waits at most spec.progressDeadline for conditions that resolve themselves,
// such as a starting gateway; then timedOut is true.
func (l *Loop) Once(ctx context.Context) (s loop.State, timedOut bool) {
	l.loop.Once = true
	deadline := time.Time{}
	for {
		pause := l.loop.Iterate(ctx, l, false)
		s := l.State()
		// Without a gateway, waiting cannot help: no gateway starts, or seeds the directory.
		if ctx.Err() != nil || s.Reason.Class() != v1alpha1.ClassWorking || l.GatewayURL == "" {
			return s, false
		}
		if deadline.IsZero() {
			deadline = l.Now().Add(l.waitLimit())
		}
		if l.Now().Add(pause).After(deadline) {
			return s, true
		}
		backoff.Wait(ctx, pause)
	}
}

// waitLimit returns how long Once waits for conditions that resolve themselves.
func (l *Loop) waitLimit() time.Duration {
	if l.spec.gs != nil {
		return effective.ProgressDeadline(&l.spec.gs.Spec)
	}
	return v1alpha1.DefaultProgressDeadline
}
