package drive

import (
	"context"
	"fmt"
	"strings"
	"time"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/pace"
)

// driftCheck is the agent's own look at the files that are ours.
type driftCheck struct {
	last    *disk.Drift
	due     time.Time
	ended   time.Time     // of the last look
	took    time.Duration // by it
	repairs int           // in a row: each doubles the pause, so that two writers never fight at full speed
	// failed is why the last look failed, failures how many did in a row.
	failed   error
	failures int
}

// unseen is from how many failed looks on nobody may be told any more that the files are what was written. One alone can be
// a directory that went away at that moment.
const unseen = 2

// maxRepairPause bounds how slow repairs become where somebody undoes them again and again.
const maxRepairPause = 10 * time.Minute

// checkDrift compares the files with the manifest when that is due, and repairs where the policy says so.
//
// A dry run has nothing of its own to look after, and to look takes the directory: its lock, and what a crash left in it.
func (l *Loop) checkDrift(ctx context.Context) {
	if l.DryRun {
		l.drift.due = time.Time{}
		return
	}
	if l.Once && l.settled && l.sync.report != nil && l.sync.report.Class() == v1alpha1.ClassDone {
		l.inspect(ctx)
		return
	}
	if l.drift.due.IsZero() || l.Now().Before(l.drift.due) || !l.compare(ctx) {
		return
	}
	if l.drift.last.Files == 0 {
		l.drift.repairs = 0
		return
	}
	if o := l.wish.Order; l.repairs(o) && (o != l.sync.of || !l.sync.repair) { // else it is tried again in its turn
		l.repair(ctx, o)
	}
}

// inspect compares the files with the manifest, repairs them if the policy says so, and compares again, so that the state is
// that of the files.
func (l *Loop) inspect(ctx context.Context) {
	for !l.compare(ctx) && ctx.Err() == nil && l.drift.failures < unseen {
	}
	if o := l.wish.Order; l.drift.failed == nil && l.repairs(o) {
		if l.repair(ctx, o); !l.sync.repair {
			l.compare(ctx)
		}
	}
}

// compare compares the files with the manifest, and reports whether that could be done.
func (l *Loop) compare(ctx context.Context) bool {
	if ctx.Err() != nil {
		return false
	}
	began := l.Now()
	d, err := l.Engine.Drift(ctx, false)
	l.drift.ended = l.Now()
	l.drift.took = l.drift.ended.Sub(began)
	if err != nil && ctx.Err() != nil { // we are asked to stop: that says nothing of the files
		return false
	}
	l.looked(err)
	if err != nil {
		return false
	}
	l.Metrics.Drift(d.Files)
	if n, err := l.Engine.LostAndFound(); err == nil {
		l.Metrics.LostAndFound(n)
	}
	if l.drift.last == nil || l.drift.last.Files != d.Files {
		if d.Files > 0 {
			l.Log.Warn("files were changed on the gateway since they were written", "files", d.Files, "first", driftText(d))
		} else if l.drift.last != nil && l.drift.last.Files > 0 {
			l.Log.Info("no file differs from what was written any more")
		}
	}
	l.drift.last = &d
	return true
}

// repairs reports whether what drifted is to be repaired.
func (l *Loop) repairs(o *Order) bool {
	return l.drift.last != nil && l.drift.last.Files > 0 && o != nil && !l.wish.Leave && !o.Commit.IsZero() &&
		o.Profile.DriftPolicy == v1alpha1.DriftRepair && !o.Profile.Paused && !o.Profile.DryRun
}

// repair writes again what was changed on the gateway. One that is held or fails is tried again as any sync is.
func (l *Loop) repair(ctx context.Context, o *Order) {
	l.run(ctx, o, true)
	if l.sync.repair {
		return
	}
	l.drift.repairs++
	l.drift.due = l.Now().Add(min(l.period()<<min(l.drift.repairs-1, 10), max(maxRepairPause, l.period())))
}

// looked takes note of whether a look at the files came to its end. One that did not is tried again soon.
func (l *Loop) looked(err error) {
	if l.drift.failed = err; err == nil {
		l.drift.failures, l.drift.due = 0, l.Now().Add(l.period())
		return
	}
	l.drift.failures++
	l.drift.due = l.Now().Add(min(pace.Retry(l.drift.failures, pace.MaxRetry), l.period()))
	l.Log.Warn("the files could not be compared with the manifest", "error", err)
}

// driftText names the first files that drifted, in a few words.
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
