package standalone

import (
	"context"
	"log/slog"
	"time"

	"stoker.io/stoker/agent/drive"
	"stoker.io/stoker/agent/peers"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/file"
	"stoker.io/stoker/internal/metrics"
	"stoker.io/stoker/internal/pace"
)

// Config is what a Loop works with.
type Config struct {
	File       string
	Version    string // of the agent
	Gateway    Identity
	GatewayURL string // "" for files only
	Secrets    peers.Beside
	DryRun     bool
	Engine     *sync.Engine
	Remote     repo.RemoteOptions
	Log        *slog.Logger
	Metrics    *metrics.Agent
	Now        func() time.Time
	// Tell is called whenever the state changed; it must not block.
	Tell func(drive.State)
}

// Identity is what a pod would say of its gateway.
type Identity struct {
	Name        string
	Profile     string
	Labels      map[string]string
	Annotations map[string]string
}

// Loop follows a GatewaySync in a file. It is driven by one goroutine; State may be asked for by others.
type Loop struct {
	Config
	loop    *drive.Loop
	spec    spec
	target  target
	order   *drive.Order
	watcher *file.Watcher // nil for Once
}

// New makes a Loop.
func New(c Config) *Loop {
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Loop{Config: c, loop: drive.New(drive.Config{
		Name: "standalone", Gateway: c.Gateway.Name, Version: c.Version, DryRun: c.DryRun,
		Engine: c.Engine, Log: c.Log, Metrics: c.Metrics, Now: c.Now, Tell: c.Tell,
	})}
}

// Run follows the file until ctx ends. A sync that is under way then is finished or rolled back first.
func (l *Loop) Run(ctx context.Context) error {
	l.watcher = file.Watch(l.Log, l.File)
	defer l.watcher.Close()
	l.loop.Run(ctx, l)
	return nil
}

// State returns the current state.
func (l *Loop) State() drive.State { return l.loop.State() }

// Routes are what the agent answers over HTTP.
func (l *Loop) Routes() []drive.Route { return l.loop.Routes() }

// Changed implements drive.Source.
func (l *Loop) Changed() <-chan struct{} { return l.watcher.Changed() }

// Look implements drive.Source: the file, and where git says that its ref stands.
func (l *Loop) Look(ctx context.Context, poked bool) drive.Wish {
	if poked {
		l.spec.raw = nil // also where the content is the same: somebody touched it to be looked at
	}
	l.reload()
	if l.spec.gs == nil {
		return drive.Wish{Problems: l.problems()}
	}
	l.rotated()
	l.resolve(ctx)
	return drive.Wish{Order: l.ordered(), Problems: l.problems(), Due: l.target.due}
}

// ordered is the order that follows from file and git: another one only where one of them is another. While the desired
// ref is not resolved the last one stays in force, as in a pod: its commit is none of the new ref's, and a new spec may say
// what to do with another repository. What counts at once is a pause, and a request to force a sync.
func (l *Loop) ordered() *drive.Order {
	gs, t, o := l.spec.gs, l.target, l.order
	switch {
	case o != nil && !o.Commit.IsZero() && t.err != nil:
		if paused, force := l.spec.effective.Paused, gs.ForceSync(); o.Profile.Paused != paused || o.ForceID != force {
			next := *o
			next.Profile.Paused, next.ForceID = paused, force
			l.order = &next
		}
	case o == nil || l.spec.fresh || o.Commit != t.commit || o.Ref != t.ref:
		l.order = &drive.Order{
			GatewaySync: gs.Name, Repo: peers.Name(gs.Spec.Git), Profile: l.spec.effective, Facts: l.facts(), Peers: l.spec.peers,
			Ref: t.ref, Name: t.name, Commit: t.commit, ForceID: gs.ForceSync(),
		}
		l.spec.fresh = false
	}
	return l.order
}

func (l *Loop) problems() []drive.Problem {
	var list []drive.Problem
	if l.target.err != nil {
		list = append(list, drive.NewProblem(l.target.err, v1alpha1.ReasonGitUnreachable))
	}
	if l.spec.err != nil {
		list = append(list, drive.NewProblem(l.spec.err, v1alpha1.ReasonProfilesInvalid))
	}
	return list
}

// Once runs turns until the gateway is synced, compared with what was written and repaired if the policy says so, or it is
// clear that waiting does not help, and returns the last state.
// What is only a matter of time (a gateway that starts) is waited for, at most for spec.progressDeadline; then timedOut
// is true.
func (l *Loop) Once(ctx context.Context) (s drive.State, timedOut bool) {
	l.loop.Once = true
	deadline := time.Time{}
	for {
		pause := l.loop.Turn(ctx, l, false)
		s := l.State()
		// Without a gateway there is nobody who would start, or seed the directory, while we wait.
		if ctx.Err() != nil || s.Reason.Class() != v1alpha1.ClassWorking || l.GatewayURL == "" {
			return s, false
		}
		if deadline.IsZero() {
			deadline = l.Now().Add(l.deadline())
		}
		if l.Now().Add(pause).After(deadline) {
			return s, true
		}
		pace.Wait(ctx, pause)
	}
}

// deadline is how long Once waits for what comes about by itself.
func (l *Loop) deadline() time.Duration {
	if l.spec.gs == nil {
		return v1alpha1.DefaultProgressDeadline
	}
	d, err := l.spec.gs.Spec.Deadline()
	if err != nil {
		return v1alpha1.DefaultProgressDeadline
	}
	return d
}
