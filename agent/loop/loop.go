// Package loop runs the syncs of an agent: it delivers what a Source decides, retries failures, checks drift, and publishes
// the state. A Source decides by a file (agent/standalone) or by a SyncTarget (agent/follow).
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
	// Decide is called at the start of every iteration. changed reports that the channel of Changed delivered a value since the
	// last call. Decide must return when ctx is done.
	Decide(ctx context.Context, changed bool) Decision
	// Changed returns a channel that delivers a value when Decide may return something else.
	Changed() <-chan struct{}
}

// Decision is what a Source wants to have delivered now.
type Decision struct {
	// Order is what to deliver, or nil if that is not known yet. The Loop delivers a new pointer at once, and retries
	// the same pointer with pauses until it is done.
	Order *Order
	// DoNotTouch makes the Loop leave the gateway alone, whatever Order is.
	DoNotTouch bool
	// Problems are the errors of the source, the most severe last. Order stays in force.
	Problems []Problem
	// Due is when to call Decide again. Zero means no deadline. The Loop calls Decide at least once per period anyway.
	Due time.Time
}

// Order is the task of a gateway, with its connections. It is immutable. The Loop sets Repair, OnWorking and Proposals in a copy.
type Order struct {
	sync.Task
	GatewaySync string // name of the GatewaySync
	Repo        string // without credentials
	Connections sync.Connections
	// ProposalSettings says how changes on the gateway are proposed to git; nil if they are not.
	ProposalSettings *propose.Settings
	// Until is when a sync stops if it has not begun to move files. Zero means no deadline.
	Until time.Time
}

// Config configures a Loop.
type Config struct {
	Name    string // label of the loop in metrics
	Gateway string
	Version string // of the agent
	DryRun  bool
	// Once reports that the caller stops after the iteration that finishes an order. That iteration also checks drift.
	Once bool
	// Period is the sync period while no order sets one. Default v1alpha1.DefaultSyncPeriod.
	Period  time.Duration
	Engine  *sync.Engine
	Log     *slog.Logger
	Metrics *metrics.Agent
	Now     func() time.Time
	// OnState is called when the state may have changed, OnWorking when a sync begins to work. They must not block; nil is valid.
	OnState, OnWorking func(State)
}

// Loop drives one gateway. One goroutine calls Run or Iterate. State and the handlers of Routes may be called from others.
type Loop struct {
	Config
	state publishedState

	decision Decision
	attempt  attempt
	drift    driftCheck
	proposer *propose.Proposer
	// proposal is the proposal for the status, or nil.
	proposal *v1alpha1.Proposal
	// proposalDue is when a proposal is due for its next step; zero means after the next comparison.
	proposalDue time.Time
	uploads     uploads
	// dirOpen reports whether the data directory is open. onDisk is the commit that it had when it was opened. attempt,
	// drift and proposer describe the directory of dirGeneration (see sync.Engine).
	dirOpen       bool
	onDisk        plan.ID
	dirGeneration int
	events        *fileEvents // nil outside Run
}

// New returns a Loop.
func New(c Config) *Loop {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Period <= 0 {
		c.Period = v1alpha1.DefaultSyncPeriod
	}
	if c.OnState == nil {
		c.OnState = func(State) {}
	}
	if c.OnWorking == nil {
		c.OnWorking = func(State) {}
	}
	l := &Loop{Config: c, proposer: propose.New(c.Log, c.Now)}
	l.proposer.Opened = func(provider, result string) { c.Metrics.ProposalCreated(provider, result) }
	l.uploads.Uploader = archive.NewUploader(c.Log)
	l.uploads.Now = c.Now
	l.uploads.OnUpload, l.uploads.OnPending = c.Metrics.Uploaded, c.Metrics.NotUploaded
	l.state.current = l.nextState(nil)
	return l
}

// Run delivers what src decides until ctx is done. Before it returns, it finishes or rolls back the running sync.
func (l *Loop) Run(ctx context.Context, src Source) {
	l.events = newFileEvents(l.Engine.DataDir, l.Log)
	defer l.events.Close()
	defer l.proposer.Close()
	defer l.uploads.Close()
	changed := false
	for {
		pause := l.Iterate(ctx, src, changed)
		if changed = l.wait(ctx, src, pause); ctx.Err() != nil {
			return
		}
	}
}

// wait returns when something is due: after the pause, which file events can shorten, or after an event of src, the
// proposer or the uploader, or when ctx is done. changed reports an event of src.
func (l *Loop) wait(ctx context.Context, src Source, pause time.Duration) (changed bool) {
	timer, end := time.NewTimer(pause), time.Now().Add(pause)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-src.Changed():
			return true
		case <-l.proposer.Done():
			return false
		case <-l.uploads.RemoteChanged():
			return false
		case <-l.events.changed:
			l.onFileEvent()
			// Never later, or a gateway that always writes would delay everything.
			if sooner := time.Now().Add(l.next()); sooner.Before(end) {
				end = sooner
				timer.Reset(time.Until(end))
			}
		case <-timer.C:
			return false
		}
	}
}

// Iterate does everything that is due, and returns the time until something is due again.
func (l *Loop) Iterate(ctx context.Context, src Source, changed bool) time.Duration {
	started := l.Now()
	l.state.setIterationStart(started)
	defer l.state.setIterationStart(time.Time{})
	l.openDir()
	if l.Once && !l.DryRun {
		l.Engine.StartCompare(ctx)
	}
	l.decision = src.Decide(ctx, changed)
	if l.dirGeneration != l.Engine.DirGeneration() { // the source opened it, or distrusts the manifest
		l.openDir()
	}
	if due := l.Now().Add(l.period()); l.drift.repairs == 0 && l.drift.due.After(due) { // the period was not known, or is shorter now
		l.drift.due = due
	}
	l.watch()
	l.deliver(ctx)
	if !l.attempt.due.IsZero() && !l.Now().Before(l.attempt.due) {
		l.attempt.due = l.Now().Add(l.period()) // deliver did nothing (DoNotTouch), or stopped at a deadline: avoid a busy loop
	}
	l.checkDrift(ctx)
	l.propose(ctx)
	l.uploads.update(ctx, l.uploadJob(), l.Once)
	l.publish()
	l.measureIteration(started)
	return l.next()
}

func (l *Loop) measureIteration(started time.Time) {
	s := l.State()
	l.Metrics.Iterated(l.Name, string(s.Reason.Class()), l.Now().Sub(started))
	l.Metrics.Profile(s.Profile)
	var behind v1alpha1.Reason
	if !s.Phase.Synced() {
		behind = s.Reason
	}
	l.Metrics.Behind(behind)
}

const minPause = 10 * time.Millisecond

// next returns the time until something is due.
func (l *Loop) next() time.Duration {
	var due time.Time
	for _, t := range []time.Time{l.decision.Due, l.attempt.due, l.drift.due, l.proposalDue} {
		if !t.IsZero() && (due.IsZero() || t.Before(due)) {
			due = t
		}
	}
	period := l.period()
	if due.IsZero() {
		return period
	}
	// Call Decide once a period even without events: some file systems send none.
	return min(max(due.Sub(l.Now()), minPause), period)
}

// period returns the interval at which the agent checks its source, files and gateway.
func (l *Loop) period() time.Duration {
	if l.decision.Order != nil && l.decision.Order.Profile.SyncPeriod > 0 {
		return l.decision.Order.Profile.SyncPeriod
	}
	return l.Period
}

// openDir opens the data directory, and finishes or rolls back what a crash left. It does so even if git or the source
// fails, because the gateway may be reading the files.
func (l *Loop) openDir() {
	if l.DryRun {
		return
	}
	_, _ = l.Engine.Open() // the sync reports the error
	l.followDir()
}

// followDir drops the state of the data directory if the engine has opened another one since, because a backup was restored or .stoker was
// removed, or could not open it again.
func (l *Loop) followDir() {
	d := l.Engine.Dir()
	l.dirOpen = d != nil
	if l.dirGeneration == l.Engine.DirGeneration() {
		return
	}
	l.dirGeneration, l.onDisk = l.Engine.DirGeneration(), plan.ID{}
	l.attempt, l.drift = attempt{}, driftCheck{}
	l.proposal, l.proposalDue = nil, time.Time{}
	l.proposer.Reset()
	if l.events != nil {
		l.events.unwatchAll()
	}
	if d != nil {
		l.onDisk = d.Manifest().Header().Commit
	}
	if !l.onDisk.IsZero() {
		l.drift.due = l.Now().Add(l.period())
	}
}
