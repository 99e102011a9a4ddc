package loop

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"stoker.io/stoker/agent/propose"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/metrics"
)

// attempt is the last sync that was tried.
type attempt struct {
	order    *Order
	report   *sync.Report // nil before the first sync
	plan     []string     // the lines of the plan's text; nil if there was no plan
	due      time.Time    // when to try again; zero means not again
	failures int          // in a row, of one class
	// repair reports that the attempt was an unfinished repair of drift. The retry is a repair again; an ordinary sync
	// would hide its outcome.
	repair bool
	// working reports whether the sync has found something to do, interrupted is its report if the agent stopped it.
	working     bool
	interrupted *sync.Report
}

func (a *attempt) notDue(now time.Time) bool { return a.due.IsZero() || now.Before(a.due) }

// deliver syncs to a new order, or retries the last attempt if it is unfinished and due.
func (l *Loop) deliver(ctx context.Context) {
	o := l.decision.Order
	if o == nil || l.decision.DoNotTouch || ctx.Err() != nil {
		return
	}
	if o.Commit.IsZero() {
		l.resume(ctx, o)
		return
	}
	if o == l.attempt.order && l.attempt.notDue(l.Now()) {
		return
	}
	if o == l.attempt.order && l.attempt.repair {
		l.repair(ctx, o)
		return
	}
	// A one-time dry run also shows what the repair after the sync would write.
	l.run(ctx, o, l.Once && o.Profile.DryRun && o.Profile.DriftPolicy == v1alpha1.DriftRepair)
}

// resume makes the gateway load the commit on the disk while the desired commit is not known yet.
func (l *Loop) resume(ctx context.Context, o *Order) {
	if !l.dirOpen || l.attempt.report != nil && l.attempt.notDue(l.Now()) {
		return
	}
	r := l.Engine.Resume(ctx, o.Connections, sync.Task{
		Profile: o.Profile, Facts: o.Facts, Start: o.Start, Stop: o.Stop, OnWorking: func() { l.working(o) },
	})
	if r != nil && (ctx.Err() == nil || r.Err == nil) {
		l.recordOutcome(o, r)
	}
}

// run does one sync and records its outcome.
func (l *Loop) run(ctx context.Context, o *Order, repair bool) {
	l.attempt.working = false
	syncCtx := ctx
	if !o.Until.IsZero() {
		var cancel context.CancelFunc
		syncCtx, cancel = context.WithDeadlineCause(ctx, o.Until, failure.New(v1alpha1.ReasonProgressing, "the gateway starts first; the sync continues then"))
		defer cancel()
	}
	task := o.Task
	task.Repair, task.OnWorking, task.Proposals = repair, func() { l.working(o) }, l.proposalsOf(syncCtx, o, repair)
	l.proposer.Starts(o != l.attempt.order)
	r := l.Engine.Sync(syncCtx, o.Connections, task)
	// If a change was saved after the last comparison, let the proposer see it, and ask again.
	if _, unseen := errors.AsType[propose.UnseenError](r.Err); unseen && !r.Wrote() && l.compare(ctx) {
		l.propose(ctx)
		r = l.Engine.Sync(syncCtx, o.Connections, task)
	}
	if ctx.Err() != nil && r.Err != nil { // the agent is stopping, which is not an outcome
		if l.attempt.working {
			l.attempt.interrupted = r
		}
		return
	}
	moved := l.attempt.report == nil || l.attempt.report.Commit != r.Commit
	l.recordOutcome(o, r)
	l.attempt.repair = repair && r.Class() != v1alpha1.ClassDone
	if r.Class() == v1alpha1.ClassDone && (r.Wrote() || moved) && l.drift.last != nil && l.drift.last.Files > 0 {
		l.compare(ctx) // drift may have ended, also without a write: the commit may be the merge of a gateway's changes
	}
}

// recordOutcome records the outcome of a sync, and when to try again.
func (l *Loop) recordOutcome(o *Order, r *sync.Report) {
	measureSync(l.Metrics, r, l.Now())
	l.followDir()
	if r.Wrote() {
		l.proposer.Wrote()
		l.uploads.written = append(l.uploads.written, r)
	}
	a, previous, class := &l.attempt, l.attempt.report, r.Class()
	// confirmed reports that nothing has changed since the last success. Such syncs do not delay the next comparison.
	confirmed := o == a.order && previous != nil && previous.Class() == v1alpha1.ClassDone && !r.Wrote()
	if o != a.order || previous != nil && previous.Class() != class {
		a.failures = 0 // failures count per class: many polls of a starting gateway do not delay the retry of a later error
	}
	a.order, a.report = o, r
	a.keepPlanText(r)
	if a.plan != nil || r.Err != nil {
		l.state.addHistory(r)
	}
	if class == v1alpha1.ClassDone {
		a.failures, a.due = 0, time.Time{}
		if !confirmed || l.drift.due.IsZero() {
			l.drift.due = l.Now().Add(l.period())
		}
		if r.Paired { // the active node of a pair may change at any time
			a.due = l.Now().Add(l.period())
		}
	} else {
		a.failures++
		a.due = l.Now().Add(backoff.After(class, a.failures, l.period()))
		if retryAt := r.RetryAt; !retryAt.IsZero() && retryAt.Before(a.due) {
			a.due = retryAt
		}
	}
	if l.events != nil && (class == v1alpha1.ClassDone && r.Wrote() || len(l.events.dirs) == 0) { // also after a restart during a hold
		l.events.watch(l.Engine.Owned())
	}
	logOutcome(l.Log, o, previous, r)
}

// largePlan is the number of changes from which the memory of a plan is returned to the system at once. A first sync has a
// hundred thousand changes, and the gateway beside the agent can use the memory.
const largePlan = 5000

// keepPlanText keeps the text of a report's plan and drops the plan.
func (a *attempt) keepPlanText(r *sync.Report) {
	a.plan = nil
	if r.Changes == nil {
		return
	}
	a.plan = strings.Split(strings.TrimSuffix(r.Changes.String(), "\n"), "\n")
	n := len(r.Changes.List)
	r.Changes = nil
	if n >= largePlan {
		debug.FreeOSMemory()
	}
}

// logOutcome logs the outcome of a sync to o if it differs from the previous one or files were written.
func logOutcome(log *slog.Logger, o *Order, previous, r *sync.Report) {
	if previous != nil && previous.Phase == r.Phase && previous.Reason == r.Reason && previous.Message == r.Message && !r.Wrote() {
		return
	}
	level := slog.LevelInfo
	if c := r.Class(); c == v1alpha1.ClassRetry || c == v1alpha1.ClassStalled {
		level = slog.LevelError
	} else if c == v1alpha1.ClassHeld {
		level = slog.LevelWarn
	}
	log.Log(context.Background(), level, "sync", "phase", r.Phase, "reason", r.Reason, "message", r.Message, "ref", r.Ref,
		"commit", r.Commit.String(), "target", r.Target.String(), "duration", r.Duration.String(),
		"added", r.Files.Added, "modified", r.Files.Modified, "deleted", r.Files.Deleted, "saved", r.Files.Saved,
		"requestedAt", o.RequestedAt, "restore", o.Restore, "retry", o.Retry)
	for _, n := range r.Notes {
		log.Warn("sync note", "note", n)
	}
}

func measureSync(m *metrics.Agent, r *sync.Report, now time.Time) {
	m.Synced(string(r.Reason), r.Duration, r.Phase.Synced(), now)
	switch {
	case !r.Wrote():
	case r.AutoRollback != nil:
		m.RolledBack("auto")
	case r.Reason == v1alpha1.ReasonRestored:
		m.RolledBack("snapshot")
	}
	if r.Fetch.Kind != "" {
		m.Fetched(r.Fetch.Kind, r.Steps["fetch"])
	}
	for kind, n := range map[string]int{"added": r.Files.Added, "modified": r.Files.Modified, "deleted": r.Files.Deleted, "kept": r.Files.Kept} {
		m.Changed(kind, n)
	}
	for _, s := range r.Scans {
		result := s.Reason
		if result == "" {
			result = "ok"
		}
		m.Scanned(s.Kind, result, s.Duration)
	}
}
