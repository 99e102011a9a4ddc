// Package drive runs syncs for as long as an agent lives: it delivers what a Source wants, tries again what failed,
// looks for drift, and keeps the state that others ask for. Where the wish comes from, a file or a SyncTarget, is the
// Source's business.
package drive

import (
	"context"
	"log/slog"
	"time"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/metrics"
)

// Source says what is wanted. Its methods are called by the goroutine that runs the Loop.
type Source interface {
	// Look is called at the start of every turn; poked says that Changed received since the last one. It must return when
	// ctx ends.
	Look(ctx context.Context, poked bool) Wish
	// Changed receives when Look would say something else.
	Changed() <-chan struct{}
}

// Wish is what is wanted at the moment.
type Wish struct {
	// Order is what to deliver; nil while nothing is known. A new pointer is delivered at once; the same one is tried again
	// with pauses until it is done.
	Order *Order
	// Leave leaves the gateway as it is, whatever Order says.
	Leave bool
	// Problems are what keeps the source from following, the gravest last. What is in force stays.
	Problems []Problem
	// Due is when the source wants to be asked again; zero: within a period, as always.
	Due time.Time
}

// Order is a commit for a gateway, with all that its sync needs. It is never changed.
type Order struct {
	GatewaySync string // its name
	Repo        string // without credentials
	Profile     v1alpha1.Effective
	Facts       plan.Facts
	Peers       sync.Peers
	Ref, Name   string                                // as for sync.Target
	Commit      plan.ID                               // zero: not known yet
	Admit       func(context.Context) (string, error) // as for sync.Target
	ForceID     string
	BeforeStart bool
	Start       string // as for sync.Target
	// Until ends a sync that has not moved files by then; zero for never.
	Until time.Time
	// Revision, Generation, RequestedAt and Term are of the one who gave the order, who wants to hear them again.
	Revision    int64
	Generation  int64
	RequestedAt string
	Term        int32
}

// Config is what a Loop works with.
type Config struct {
	Name    string // of the loop, in metrics
	Gateway string
	Version string // of the agent
	DryRun  bool
	// Once says that nothing looks again a period later: the turn that is done compares the files with what was written.
	Once bool
	// Period is how often files are looked at while no order says; default 30 s.
	Period  time.Duration
	Engine  *sync.Engine
	Log     *slog.Logger
	Metrics *metrics.Agent
	Now     func() time.Time
	// Tell is called whenever the state may have changed, Working when a sync has found something to do. They must not
	// block. nil for nobody.
	Tell, Working func(State)
}

// Loop drives one gateway. It is run by one goroutine; State and the routes may be asked by others.
type Loop struct {
	Config
	state board

	wish  Wish
	sync  attempt
	drift driftCheck
	// settled is whether the data directory is open, onDisk the commit that lay there when it was opened, and taken which
	// one of the Engine's directories sync and drift speak of.
	settled bool
	onDisk  plan.ID
	taken   int
	hints   *hints // nil outside of Run
}

// New makes a Loop.
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
	l.state.now = State{Version: c.Version, GatewayName: c.Gateway, Phase: sync.Pending, Reason: v1alpha1.ReasonProgressing, Message: "starting"}
	return l
}

// Run delivers what src wants until ctx ends. A sync that is under way then is finished or rolled back first.
func (l *Loop) Run(ctx context.Context, src Source) {
	l.hints = newHints(l.Engine.DataDir, l.Log)
	defer l.hints.Close()
	poked := false
	for {
		pause := l.Turn(ctx, src, poked)
		poked = false
		for wait := true; wait; {
			timer := time.NewTimer(pause)
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-src.Changed():
				poked, wait = true, false
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

// Turn does all that is due and returns how long nothing will be.
func (l *Loop) Turn(ctx context.Context, src Source, poked bool) time.Duration {
	started := l.Now()
	l.state.turn(started)
	defer l.state.turn(time.Time{})
	l.settle()
	l.wish = src.Look(ctx, poked)
	l.deliver(ctx)
	if !l.sync.due.IsZero() && !l.Now().Before(l.sync.due) {
		l.sync.due = l.Now().Add(l.period()) // it was due and may not be tried now: that is no reason to turn in haste
	}
	l.checkDrift(ctx)
	l.publish()
	l.Metrics.Turn(l.Name, string(l.State().Reason.Class()), l.Now().Sub(started))
	return l.next()
}

const minPause = 10 * time.Millisecond

// next is the time until something is due.
func (l *Loop) next() time.Duration {
	var due time.Time
	for _, t := range []time.Time{l.wish.Due, l.sync.due, l.drift.due} {
		if !t.IsZero() && (due.IsZero() || t.Before(due)) {
			due = t
		}
	}
	period := l.period()
	if due.IsZero() {
		return period
	}
	// The source is asked once a period even where no event comes: there are file systems that send none.
	return min(max(due.Sub(l.Now()), minPause), period)
}

// period is how often the agent looks at its source, its files and its gateway.
func (l *Loop) period() time.Duration {
	if l.wish.Order != nil && l.wish.Order.Profile.SyncPeriod > 0 {
		return l.wish.Order.Profile.SyncPeriod
	}
	return l.Period
}

// settle opens the data directory and finishes or takes back what a crash left, whatever git or the source say: the gateway
// may be reading it.
//
// A directory that is another than at the last turn (a backup was put back, .stoker was removed) is begun with anew: what
// was found out of the one before says nothing of it.
func (l *Loop) settle() {
	if l.DryRun {
		return
	}
	d, err := l.Engine.Open()
	l.settled = err == nil // why not is said by the sync that meets it
	if l.taken == l.Engine.Taken() {
		return
	}
	l.taken, l.onDisk = l.Engine.Taken(), plan.ID{}
	l.sync, l.drift = attempt{}, driftCheck{}
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
