package loop

import (
	"context"
	"fmt"
	"slices"
	"time"

	"stoker.io/stoker/agent/decide"
	"stoker.io/stoker/agent/propose"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// proposals is the part of the Loop that proposes changes made on the gateway to git (spec.bidirectional).
type proposals struct {
	proposer *propose.Proposer
	status   *v1alpha1.Proposal // nil if there is none
	due      time.Time          // when to call propose again; zero means after the next comparison
	// lastWrite is when a sync last wrote files. It is zero once the proposer knows about that sync.
	lastWrite time.Time
	// added are the new files on the gateway that the last walk found.
	added             []string
	walkDue           bool      // no walk has followed the last file event
	comparisons       int       // since the last walk
	handledComparison time.Time // the end of the last comparison that findAdded has handled
	lastEvent         time.Time // when the last file event arrived
	// waiting is the order whose sync waits for changes to be proposed.
	waiting *Order
	wait    decide.Wait
	// unseen is set if a sync is held only because the proposer has not dealt with changes that the sync would replace.
	unseen bool
}

// walkEvery is the number of comparisons after which the agent looks for new files even without a file event.
const walkEvery = 10

// pushGrace is how much longer than the debounce a sync waits for a change to be pushed (conflictStrategy gitWins), or to be seen.
const pushGrace = time.Minute

func newProposals(c *Config) proposals {
	p := propose.New(c.Log, c.Now)
	p.Opened = func(provider, result string) { c.Metrics.ProposalCreated(provider, result) }
	return proposals{proposer: p, walkDue: true}
}

// reset forgets everything about a data directory that was replaced.
func (p *proposals) reset() {
	p.proposer.Reset()
	*p = proposals{proposer: p.proposer, walkDue: true}
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

// propose moves the proposal of this gateway forward: it looks for changes and passes them to the proposer. It does nothing
// if the decision is HandsOff, because another agent may control the gateway. Until the files have been compared, it only
// shows the recorded state.
func (l *Loop) propose(ctx context.Context) {
	p, s := &l.proposals, l.proposalSettings()
	p.due = time.Time{}
	if s == nil {
		p.status = nil
		return
	}
	if !l.dirOpen || l.decision.HandsOff {
		return
	}
	if l.drift.last == nil { // not compared yet
		p.status = p.proposer.Recall(l.Engine.Notes())
		return
	}
	o := l.decision.Order
	base := func() (propose.Base, error) { return l.Engine.Base(ctx, o.Connections.Remote, o.Task) }
	// saved is when the newest change was saved on the gateway, or zero if an earlier comparison has already found it.
	saved := p.lastEvent
	if !saved.After(p.handledComparison) {
		saved = time.Time{}
	}
	standby := l.attempt.report != nil && l.attempt.report.Phase == sync.Standby
	if standby {
		p.added, p.walkDue = nil, true
	} else if err := p.findAdded(ctx, l.Engine, l.drift.found, base); err != nil && !failure.Is(err, v1alpha1.ReasonProgressing) {
		l.Log.Debug("new files not looked for", "error", err)
	}
	// Only a comparison that succeeded after the sync shows which changes the sync has replaced.
	overwrote := !p.lastWrite.IsZero() && !l.drift.found.Before(p.lastWrite)
	changed := slices.Concat(l.drift.last.Watched, p.added)
	slices.Sort(changed)
	p.status, p.due = p.proposer.Step(ctx, s, propose.Input{
		Notes: l.Engine.Notes(), Changed: slices.Compact(changed), Saved: saved, Base: base, Overwrote: overwrote, Standby: standby, Renew: o.Propose,
	})
	if overwrote {
		p.lastWrite = time.Time{}
	}
	proposed, refused := countFiles(p.status)
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

// findAdded looks for files that were added on the gateway, if that is due after the comparison that ended at that time.
func (p *proposals) findAdded(ctx context.Context, e *sync.Engine, ended time.Time, base func() (propose.Base, error)) error {
	if p.handledComparison.Equal(ended) {
		return nil
	}
	p.handledComparison = ended
	if p.comparisons++; !p.walkDue && p.comparisons < walkEvery {
		return nil
	}
	b, err := base()
	if err != nil {
		return err
	}
	added, err := e.Added(ctx, b)
	if err != nil {
		return err
	}
	p.added, p.comparisons, p.walkDue = added, 0, false
	return nil
}

// proposalsOf returns how a sync of the order o treats changes that are proposed to git; nil if o proposes none. With Once the sync replaces
// no such change: this run does not propose it, and another run still can. A repair that only onClosed: revert asks for leaves all changes
// alone that are not proposed.
func (l *Loop) proposalsOf(ctx context.Context, o *Order, repair bool) *sync.Proposals {
	p, s := &l.proposals, o.ProposalSettings
	if s == nil || o.Profile.Bidirectional == nil || o.Profile.DryRun {
		return nil
	}
	describes := func(paths ...string) bool {
		d := l.Engine.Notes()
		return d != nil && p.proposer.Describes(d.Within(ctx), paths...)
	}
	policy := o.Profile.DriftPolicy
	if !repair { // the plan of a sync asks about watched files only
		policy = v1alpha1.DriftRepair
	}
	return &sync.Proposals{
		Watches: s.Watches,
		Pending: func(path string) bool {
			watched, proposal := s.Watches(path), p.proposer.Proposal()
			return !proposal.Repairs(policy, watched, watched && proposal.Settled() && describes(path))
		},
		Replace: func(paths []string) error {
			if l.Once {
				return conflictError(paths, "an agent with --once does not propose changes; run it without --once, or set %s to take git's version", v1alpha1.AnnotationForceSync)
			}
			return p.checkReplace(o, s.Debounce+pushGrace, paths, describes(paths...), l.Now())
		},
	}
}

// checkReplace returns nil if a sync may replace the changes at paths, and otherwise the error that holds the sync. seen reports that the
// state of the proposal is about these changes.
func (p *proposals) checkReplace(o *Order, limit time.Duration, paths []string, seen bool, now time.Time) error {
	if p.waiting != o {
		p.waiting, p.wait = o, decide.Wait{}
	}
	c := decide.Changes{Strategy: o.Profile.Bidirectional.ConflictStrategy, Proposal: p.proposer.Proposal(), Seen: seen, Limit: limit, Now: now}
	var why string
	if p.wait, why, p.unseen = p.wait.Replace(c); why == "" {
		return nil
	}
	return conflictError(paths, "%s", why)
}

// conflictError returns the error that holds a sync of paths that both the gateway and git changed. The format says what to do.
func conflictError(paths []string, format string, args ...any) error {
	return failure.New(v1alpha1.ReasonConflictDetected, "%s was changed on the gateway and in git (%d files): %s", paths[0], len(paths), fmt.Sprintf(format, args...))
}
