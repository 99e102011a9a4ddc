// Package loop runs syncs during an agent's life: it delivers what a Source decides, retries failures, looks for drift,
// and publishes the state. A Source decides by a file or by a SyncTarget.
package loop

import (
	"context"
	"log/slog"
	"time"

	"stoker.io/stoker/agent/archive"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/propose"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/metrics"
)

// Source decides what a Loop delivers. The goroutine of the Loop calls its methods.
type Source interface {
	// Decide is called at the start of every iteration. changed reports that Changed has received since the last call.
	// Decide must return when ctx is done.
	Decide(ctx context.Context, changed bool) Decision
	// Changed receives when Decide may return something else.
	Changed() <-chan struct{}
}

// Decision is what a Source wants to have delivered now.
type Decision struct {
	// Order is what to deliver, or nil if that is not known yet. The Loop delivers a new pointer at once, and retries
	// the same pointer with pauses until it is done.
	Order *Order
	// HandsOff makes the Loop leave the gateway alone, whatever Order is.
	HandsOff bool
	// Problems are the errors of the source, the most severe last. Order stays in force.
	Problems []Problem
	// Due is when to call Decide again. Zero means after a period, which is the longest pause in any case.
	Due time.Time
}

// Order is the task of a gateway, with its connections. It is immutable. The Loop sets Repair and Working of the task.
type Order struct {
	sync.Task
	GatewaySync string // name of the GatewaySync
	Repo        string // without credentials
	Connections sync.Connections
	// Proposals says how changes on the gateway are sent back to git; nil if they are not.
	Proposals *propose.Settings
	// Until is the deadline for a sync to start moving files: if it has not moved any by then, it stops. Zero means no deadline.
	Until time.Time
}

// Config configures a Loop.
type Config struct {
	Name    string // label of the loop in metrics
	Gateway string
	Version string // of the agent
	DryRun  bool
	// Once reports that there is no next period: the iteration that finishes also compares the files with the manifest.
	Once bool
	// Period is the interval of comparisons while no order sets one; default 30 s.
	Period  time.Duration
	Engine  *sync.Engine
	Log     *slog.Logger
	Metrics *metrics.Agent
	Now     func() time.Time
	// Tell is called when the state may have changed, Working when a sync has found something to do. They must not
	// block, and may be nil.
	Tell, Working func(State)
}

// Loop drives one gateway. One goroutine runs it; State and the routes may be called from others.
type Loop struct {
	Config
	state board

	decision Decision
	sync     attempt
	drift    driftCheck
	back     back
	// uploads copies snapshots to object storage.
	uploads  *archive.Uploader
	uploaded *sync.Report // the last one that the uploader heard of
	// settled reports whether the data directory is open. onDisk is its commit at that time. taken is the Engine's
	// number of the directory that sync and drift describe.
	settled bool
	onDisk  plan.ID
	taken   int
	hints   *hints // nil outside Run
}

// New returns a Loop.
func New(c Config) *Loop {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Period <= 0 {
		c.Period = v1alpha1.DefaultSyncPeriod
	}
	for _, f := range []*func(State){&c.Tell, &c.Working} {
		if *f == nil {
			*f = func(State) {}
		}
	}
	l := &Loop{Config: c}
	l.back.init(l)
	l.uploads = archive.NewUploader(c.Log)
	l.uploads.OnUpload, l.uploads.OnPending = c.Metrics.Uploaded, c.Metrics.NotUploaded
	l.state.now = State{Version: c.Version, GatewayName: c.Gateway, Phase: sync.Pending, Reason: v1alpha1.ReasonProgressing, Message: "starting"}
	return l
}

// Run delivers what src wants until ctx is done. It finishes or rolls back a running sync first.
func (l *Loop) Run(ctx context.Context, src Source) {
	l.hints = newHints(l.Engine.DataDir, l.Log)
	defer l.hints.Close()
	defer l.back.proposer.Close()
	defer l.uploads.Close()
	changed := false
	for {
		pause := l.Iterate(ctx, src, changed)
		changed = false
		for wait := true; wait; {
			timer := time.NewTimer(pause)
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-src.Changed():
				changed, wait = true, false
			case <-l.back.proposer.Done():
				wait = false
			case <-l.uploads.Done():
				wait = false
			case <-l.hints.moved:
				l.hinted()
				pause = l.next()
			case <-timer.C:
				wait = false
			}
			timer.Stop()
		}
	}
}

// Iterate does everything that is due, and returns the time until something is due again.
func (l *Loop) Iterate(ctx context.Context, src Source, changed bool) time.Duration {
	started := l.Now()
	l.state.iterating(started)
	defer l.state.iterating(time.Time{})
	l.settle()
	l.decision = src.Decide(ctx, changed)
	l.watch()
	l.deliver(ctx)
	if !l.sync.due.IsZero() && !l.Now().Before(l.sync.due) {
		l.sync.due = l.Now().Add(l.period()) // it was due but must not run now; avoid a busy loop
	}
	l.checkDrift(ctx)
	l.propose(ctx)
	l.upload(ctx)
	l.publish()
	l.measure(started)
	return l.next()
}

func (l *Loop) measure(started time.Time) {
	s := l.State()
	l.Metrics.Iterated(l.Name, string(s.Reason.Class()), l.Now().Sub(started))
	l.Metrics.Profile(s.Profile)
	if s.Phase == sync.Held {
		l.Metrics.Held(s.Reason)
	} else {
		l.Metrics.Held("")
	}
}

const minPause = 10 * time.Millisecond

// next returns the time until something is due.
func (l *Loop) next() time.Duration {
	var due time.Time
	for _, t := range []time.Time{l.decision.Due, l.sync.due, l.drift.due, l.back.due} {
		if !t.IsZero() && (due.IsZero() || t.Before(due)) {
			due = t
		}
	}
	period := l.period()
	if due.IsZero() {
		return period
	}
	// Poll the source once a period even without events: some file systems send none.
	return min(max(due.Sub(l.Now()), minPause), period)
}

// period returns the interval at which the agent checks its source, files and gateway.
func (l *Loop) period() time.Duration {
	if l.decision.Order != nil && l.decision.Order.Profile.SyncPeriod > 0 {
		return l.decision.Order.Profile.SyncPeriod
	}
	return l.Period
}

// settle opens the data directory, and finishes or rolls back what a crash left, even if git or the source fails: the
// gateway may be reading the files.
//
// If the directory differs from that of the last iteration, because a backup was restored or .stoker was removed, the
// state of the old one is dropped.
func (l *Loop) settle() {
	if l.DryRun {
		return
	}
	d, err := l.Engine.Open()
	l.settled = err == nil // the sync reports the error
	if l.taken == l.Engine.Taken() {
		return
	}
	l.taken, l.onDisk = l.Engine.Taken(), plan.ID{}
	l.sync, l.drift = attempt{}, driftCheck{}
	l.back.reset()
	if l.hints != nil {
		l.hints.forget()
	}
	if err == nil {
		l.onDisk = d.Manifest().Header().Commit
	}
	if !l.onDisk.IsZero() {
		l.drift.due = l.Now().Add(l.period())
	}
}
