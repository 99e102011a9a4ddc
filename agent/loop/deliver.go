package loop

import (
	"context"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
)

// attempt is the last sync that was tried.
type attempt struct {
	of       *Order
	report   *sync.Report
	plan     []string // for display; nil if there was no plan
	due      time.Time
	failures int
	// repair reports that the attempt was an unfinished repair of drift. The retry is a repair again; an ordinary sync
	// would hide its outcome.
	repair bool
	// working reports whether the running sync has found something to do. stopped is the report of such a sync that was
	// interrupted by the end of the process.
	working bool
	stopped *sync.Report
}

// deliver syncs to a new order, or retries the last attempt if it is unfinished and due.
func (l *Loop) deliver(ctx context.Context) {
	o := l.decision.Order
	if o == nil || l.decision.HandsOff || ctx.Err() != nil {
		return
	}
	if o.Commit.IsZero() {
		l.resume(ctx, o)
		return
	}
	if o == l.sync.of && (l.sync.due.IsZero() || l.Now().Before(l.sync.due)) {
		return
	}
	if o == l.sync.of && l.sync.repair {
		l.repair(ctx, o)
		return
	}
	// A one-time dry run also shows what the repair after the sync would write.
	l.run(ctx, o, l.Once && o.Profile.DryRun && o.Profile.DriftPolicy == v1alpha1.DriftRepair)
}

// resume does what is possible before the desired commit is known.
func (l *Loop) resume(ctx context.Context, o *Order) {
	if !l.settled || l.sync.report != nil && (l.sync.due.IsZero() || l.Now().Before(l.sync.due)) {
		return
	}
	r := l.Engine.Resume(ctx, o.Connections, sync.Task{
		Profile: o.Profile, Facts: o.Facts, Start: o.Start, Working: func() { l.working(o) },
	})
	if r != nil && (ctx.Err() == nil || r.Err == nil) {
		l.note(o, r)
	}
}

// run does one sync and records its outcome.
func (l *Loop) run(ctx context.Context, o *Order, repair bool) {
	l.sync.working = false
	within := ctx
	if !o.Until.IsZero() {
		var cancel context.CancelFunc
		within, cancel = context.WithDeadline(ctx, o.Until)
		defer cancel()
	}
	task := o.Task
	task.Repair, task.Working, task.Back = repair, func() { l.working(o) }, l.back.rules(l, o)
	r := l.Engine.Sync(within, o.Connections, task)
	if ctx.Err() != nil && r.Err != nil { // the agent is stopping, which is not an outcome
		if l.sync.working {
			l.sync.stopped = r
		}
		return
	}
	l.note(o, r)
	l.sync.repair = repair && r.Class() != v1alpha1.ClassDone
	if r.Class() == v1alpha1.ClassDone && r.Wrote() && l.drift.last != nil && l.drift.last.Files > 0 {
		l.compare(ctx) // the sync may have removed drift, which would otherwise be reported for another period
	}
}

// note records the outcome of a sync.
func (l *Loop) note(o *Order, r *sync.Report) {
	l.record(r)
	l.taken = l.Engine.Taken()
	if r.Wrote() {
		l.back.wrote = l.Now()
	}
	previous, class := l.sync.report, r.Class()
	asked := o == l.sync.of && previous != nil && previous.Class() == v1alpha1.ClassDone && !r.Wrote() // nothing changed since the last success
	if o != l.sync.of || previous != nil && previous.Class() != class {
		l.sync.failures = 0 // failures count per class: many polls of a starting gateway do not delay the retry of a later error
	}
	l.sync.of, l.sync.report = o, r
	l.keepText(r)
	if class == v1alpha1.ClassDone {
		l.sync.failures, l.sync.due = 0, time.Time{}
		if !asked || l.drift.due.IsZero() {
			l.drift.due = l.Now().Add(l.period())
		}
		if l.hints != nil && (r.Wrote() || len(l.hints.dirs) == 0) {
			l.Engine.Owned(l.hints.follow)
		}
		if r.Paired { // the active node of a pair may change at any time
			l.sync.due = l.Now().Add(l.period())
		}
	} else {
		l.sync.failures++
		l.sync.due = l.Now().Add(backoff.After(class, l.sync.failures, l.period()))
		if at := r.Again; !at.IsZero() && at.Before(l.sync.due) {
			l.sync.due = at
		}
	}
	l.announce(previous, r)
}

// large is the number of changes from which the memory of a plan is returned at once. A first sync has a hundred
// thousand changes, and the gateway beside the agent can use the memory.
const large = 5000

// keepText keeps the text of a plan and drops the plan.
func (l *Loop) keepText(r *sync.Report) {
	l.sync.plan = nil
	if r.Changes == nil {
		return
	}
	l.sync.plan = strings.Split(strings.TrimSuffix(r.Changes.String(), "\n"), "\n")
	n := len(r.Changes.List)
	r.Changes = nil
	if n >= large {
		debug.FreeOSMemory()
	}
}

// announce logs an outcome if it differs from the previous one or files were written.
func (l *Loop) announce(previous, r *sync.Report) {
	if previous != nil && previous.Phase == r.Phase && previous.Reason == r.Reason && previous.Message == r.Message && !r.Wrote() {
		return
	}
	level := slog.LevelInfo
	if c := r.Class(); c == v1alpha1.ClassRetry || c == v1alpha1.ClassStalled {
		level = slog.LevelError
	} else if c == v1alpha1.ClassHeld {
		level = slog.LevelWarn
	}
	l.Log.Log(context.Background(), level, "sync", "phase", r.Phase, "reason", r.Reason, "message", r.Message, "ref", r.Ref,
		"commit", r.Commit.String(), "target", r.Target.String(), "duration", r.Duration.String(),
		"added", r.Files.Added, "modified", r.Files.Modified, "deleted", r.Files.Deleted, "saved", r.Files.Saved,
		"requestedAt", l.sync.of.RequestedAt, "restore", l.sync.of.Restore, "retry", l.sync.of.Retry)
	for _, n := range r.Notes {
		l.Log.Warn("sync note", "note", n)
	}
}

func (l *Loop) record(r *sync.Report) {
	l.Metrics.Synced(string(r.Reason), r.Duration, r.Phase == sync.Synced || r.Phase == sync.Standby, l.Now())
	switch {
	case !r.Wrote():
	case r.AutoRollback != nil:
		l.Metrics.RolledBack("auto")
	case r.Reason == v1alpha1.ReasonRolledBack:
		l.Metrics.RolledBack("snapshot")
	}
	if r.Fetch.Kind != "" {
		l.Metrics.Fetched(r.Fetch.Kind, r.Steps["fetch"])
	}
	for kind, n := range map[string]int{"added": r.Files.Added, "modified": r.Files.Modified, "deleted": r.Files.Deleted, "kept": r.Files.Kept} {
		l.Metrics.Changed(kind, n)
	}
	for _, s := range r.Scans {
		result := s.Reason
		if result == "" {
			result = "ok"
		}
		l.Metrics.Scanned(s.Kind, result, s.Duration)
	}
}
