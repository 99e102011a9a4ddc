package loop

import (
	"context"
	"fmt"
	"strings"
	"time"

	"stoker.io/stoker/agent/decide"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/propose"
	"stoker.io/stoker/agent/sync"
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

// proposalSettings returns how the order in force proposes changes, or nil if it does not.
func (l *Loop) proposalSettings() *propose.Settings {
	if o := l.decision.Order; o != nil && !l.DryRun && !l.Once && !o.Profile.DryRun && o.Profile.Bidirectional != nil {
		return o.ProposalSettings
	}
	return nil
}

// watch tells the engine which changes to list.
func (l *Loop) watch() {
	var watched func(path string) bool
	if s := l.proposalSettings(); s != nil {
		watched = s.Watches
	}
	l.Engine.Watch(watched)
}

// propose lets the proposer do what is due. It does nothing if the decision is DoNotTouch, because another agent may control the gateway. Until
// the files have been compared, it only shows the recorded state.
func (l *Loop) propose(ctx context.Context) {
	l.followDir() // a sync that was stopped may have closed it
	s, o := l.proposalSettings(), l.decision.Order
	l.proposalDue = time.Time{}
	switch {
	case s == nil:
		l.proposal = nil
		return
	case !l.dirOpen || l.decision.DoNotTouch:
		return
	case l.drift.last == nil: // not compared yet
		l.proposal = l.proposer.Recall(l.Engine.Dir())
		return
	}
	l.proposal, l.proposalDue = l.proposer.Step(ctx, s, propose.Input{
		Notes: l.Engine.Dir(), Changed: l.drift.last.Watched, Compared: l.drift.found, Renew: o.Propose,
		Added:   func(b propose.Base) ([]string, error) { return l.Engine.Added(ctx, b) },
		Base:    func() (propose.Base, error) { return l.Engine.Base(ctx, o.Connections.Remote, o.Task) },
		Standby: l.attempt.report != nil && l.attempt.report.Phase == v1alpha1.GatewayStandby,
	})
	proposed, refused := countFiles(l.proposal)
	l.Metrics.ProposalFiles("proposed", proposed)
	l.Metrics.ProposalFiles("refused", refused)
}

// countFiles returns the number of files that are proposed, and that are refused.
func countFiles(p *v1alpha1.Proposal) (proposed, refused int) {
	switch {
	case p == nil:
		return 0, 0
	case p.State == v1alpha1.ProposalRefused:
		return 0, int(p.Refused)
	}
	return int(p.Files), int(p.Refused)
}

// proposalsOf returns how a sync of the order o treats changes that are proposed to git; nil if o proposes none. With Once the sync replaces
// no such change: this run does not propose it, and another run still can. A repair that only onClosed: repair asks for leaves all changes
// alone that are not proposed.
func (l *Loop) proposalsOf(ctx context.Context, o *Order, repair bool) *sync.Proposals {
	p, s := l.proposer, o.ProposalSettings
	if s == nil || o.Profile.Bidirectional == nil || o.Profile.DryRun {
		return nil
	}
	describes := func(paths ...string) bool {
		d := l.Engine.Dir()
		return d != nil && p.Describes(d.Within(ctx), paths...)
	}
	policy := o.Profile.DriftPolicy
	if !repair { // the plan of a sync asks about watched files only
		policy = v1alpha1.DriftRepair
	}
	return &sync.Proposals{
		Watches: s.Watches,
		Pending: func(path string) bool {
			watched, proposal := s.Watches(path), p.Proposal()
			return !proposal.Repairs(policy, watched, watched && proposal.Settled() && describes(path))
		},
		Replace: func(paths []string) error {
			if l.Once {
				return propose.ConflictError(paths, "an agent with --once does not propose changes; run it without --once, or set %s to take git's version", v1alpha1.AnnotationForceSync)
			}
			return p.Replace(s, o.Profile.Bidirectional.ConflictStrategy, paths, describes(paths...))
		},
	}
}
