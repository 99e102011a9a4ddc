package loop

import (
	"context"
	"fmt"
	"strings"
	"time"

	"stoker.io/stoker/agent/decide"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
)

// driftCheck is the state of the agent's comparisons of the owned files.
type driftCheck struct {
	last     *disk.Drift   // of the last comparison that succeeded; nil before
	found    time.Time     // when that comparison ended
	due      time.Time     // of the next comparison
	forEvent bool          // due is early because of a file event
	ended    time.Time     // when the last comparison for a file event ended
	duration time.Duration // of that comparison
	repairs  int           // in a row; each doubles the pause, so that two writers do not fight at full speed
	// err is the error of the last comparison, failures the number of errors in a row.
	err      error
	failures int
}

// maxFailedComparisons is the number of failed comparisons in a row after which the state no longer claims that the files
// are unchanged. A single failure can be a directory that was removed during the comparison.
const maxFailedComparisons = 2

// maxRepairPause bounds the pause between repairs that are undone repeatedly.
const maxRepairPause = 10 * time.Minute

// checkDrift compares the files with the manifest when due, and repairs them if the policy says so.
//
// It does nothing in a dry run, which owns no files: a comparison would lock the data directory and recover from a crash.
func (l *Loop) checkDrift(ctx context.Context) {
	if l.DryRun {
		l.drift.due = time.Time{}
		return
	}
	if l.Once && l.dirOpen && l.attempt.report != nil && l.attempt.report.Class() == v1alpha1.ClassDone {
		l.checkDriftOnce(ctx)
		return
	}
	if l.drift.due.IsZero() || l.Now().Before(l.drift.due) || !l.compare(ctx) {
		return
	}
	if l.drift.last.Files == 0 {
		l.drift.repairs = 0
		return
	}
	if o := l.decision.Order; l.needsRepair(o) && (o != l.attempt.order || !l.attempt.repair) { // deliver retries an unfinished repair
		l.repair(ctx, o)
	}
}

// checkDriftOnce is checkDrift for Once. It compares again after a repair, so that the state describes the current files.
func (l *Loop) checkDriftOnce(ctx context.Context) {
	if d, ok := l.Engine.Unchanged(); ok {
		l.recordDrift(d)
		return
	}
	for !l.compare(ctx) && ctx.Err() == nil && l.drift.failures < maxFailedComparisons {
	}
	if o := l.decision.Order; l.drift.err == nil && l.needsRepair(o) {
		if l.repair(ctx, o); !l.attempt.repair {
			l.compare(ctx)
		}
	}
}

// compare compares the files with the manifest, and reports whether it succeeded.
func (l *Loop) compare(ctx context.Context) bool {
	if ctx.Err() != nil {
		return false
	}
	started := l.Now()
	d, err := l.Engine.Drift(ctx, false)
	l.followDir()
	if l.drift.forEvent {
		l.drift.forEvent, l.drift.ended = false, l.Now()
		l.drift.duration = l.drift.ended.Sub(started)
	}
	if err != nil && ctx.Err() != nil { // the agent is stopping, which says nothing about the files
		return false
	}
	if err != nil {
		l.recordComparison(err)
		return false
	}
	l.recordDrift(d)
	return true
}

// recordDrift records the result of a comparison.
func (l *Loop) recordDrift(d disk.Drift) {
	l.recordComparison(nil)
	l.Metrics.Drift(d.Files)
	if n, limit, err := l.Engine.LostAndFound(); err == nil {
		l.Metrics.LostAndFound(n, limit)
	}
	if l.drift.last == nil || l.drift.last.Files != d.Files {
		if d.Files > 0 {
			l.Log.Warn("files changed on the gateway", "files", d.Files, "first", driftText(d))
		} else if l.drift.last != nil && l.drift.last.Files > 0 {
			l.Log.Info("all files are as written again")
		}
	}
	l.drift.last, l.drift.found = &d, l.Now()
}

// needsRepair reports whether a sync should repair drift now.
func (l *Loop) needsRepair(o *Order) bool {
	if o == nil || l.drift.last == nil {
		return false
	}
	return decide.Drift{
		Files: l.drift.last.Files, Watched: len(l.drift.last.Watched), Policy: o.Profile.DriftPolicy,
		RepairsClosed: o.ProposalSettings != nil && l.proposer.Proposal().RepairsClosed(),
		Desired:       !o.Commit.IsZero(), DoNotTouch: l.decision.DoNotTouch, Paused: o.Profile.Paused, DryRun: o.Profile.DryRun,
	}.Repair()
}

// repair writes drifted files again. If the sync is held or fails, deliver retries it like any sync.
func (l *Loop) repair(ctx context.Context, o *Order) {
	l.run(ctx, o, true)
	if l.attempt.repair {
		return
	}
	l.drift.repairs++
	l.drift.due = l.Now().Add(min(l.period()<<min(l.drift.repairs-1, 10), max(maxRepairPause, l.period())))
}

// recordComparison records whether a comparison succeeded. The next one follows soon after a failure.
func (l *Loop) recordComparison(err error) {
	if l.drift.err = err; err == nil {
		l.drift.failures, l.drift.due = 0, l.Now().Add(l.period())
		return
	}
	l.drift.failures++
	l.drift.due = l.Now().Add(min(backoff.Retry(l.drift.failures, backoff.MaxRetry), l.period()))
	l.Log.Warn("the drift check failed", "error", err)
}

// driftText names the first files that drifted.
func driftText(d disk.Drift) string {
	const shown = 3
	var parts []string
	for _, p := range d.Paths[:min(len(d.Paths), shown)] {
		parts = append(parts, string(p.What)+" "+p.Path)
	}
	if d.Files > len(parts) {
		parts = append(parts, fmt.Sprintf("%d more", d.Files-len(parts)))
	}
	return strings.Join(parts, ", ")
}
