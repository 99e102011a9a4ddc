package loop

import (
	"context"
	"fmt"
	"slices"
	"time"

	"stoker.io/stoker/agent/propose"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// back sends changes of the gateway back to git.
type back struct {
	proposer *propose.Proposer
	shown    *v1alpha1.Proposal
	due      time.Time
	// wrote is when a sync last wrote files that the proposer has not been told about; zero if there was none.
	wrote time.Time
	// added are the files that the last walk found; it is repeated after file events, and at every tenth comparison.
	added  []string
	walked time.Time // the comparison that the walk belongs to
	since  int       // comparisons since the walk
	dirty  bool      // there were file events since
	event  time.Time // the last file event
	// asked is since when a sync waits for a change to be pushed, by the order that waits.
	asked   time.Time
	askedBy *Order
}

// walkEvery is the number of comparisons after which the agent looks for new files even without a file event.
const walkEvery = 10

// pushGrace is how much longer than the debounce a sync waits for a change to be pushed (conflictStrategy gitWins).
const pushGrace = time.Minute

func (b *back) init(l *Loop) {
	b.proposer = propose.New(l.Log, l.Now)
	b.proposer.Opened = func(provider, result string) { l.Metrics.ProposalCreated(provider, result) }
	b.dirty = true
}

func (b *back) reset() {
	b.proposer.Reset()
	*b = back{proposer: b.proposer, dirty: true}
}

// settings returns how the order in force proposes changes, or nil.
func (l *Loop) settings() *propose.Settings {
	if o := l.wish.Order; o != nil && !l.DryRun && !l.Once && !o.Profile.DryRun && o.Profile.Bidirectional != nil {
		return o.Proposals
	}
	return nil
}

// watch tells the engine which changes to list.
func (l *Loop) watch() {
	s := l.settings()
	if s == nil {
		l.Engine.Watch(nil)
		return
	}
	l.Engine.Watch(s.Watches)
}

// propose does what is due for the proposal of this gateway.
func (l *Loop) propose(ctx context.Context) {
	b, s := &l.back, l.settings()
	if s == nil {
		b.shown, b.due = nil, time.Time{}
		return
	}
	if !l.settled || l.wish.Leave {
		return // another agent may have the gateway
	}
	standby := l.sync.report != nil && l.sync.report.Phase == sync.Standby
	if l.drift.last == nil { // the files have not been compared yet
		b.shown = b.proposer.Recall(l.Engine.Notes())
		return
	}
	o := l.wish.Order
	base := func() (propose.Base, error) { return l.Engine.Base(ctx, o.Connections.Remote, o.Task) }
	saved := b.event
	if !saved.After(b.walked) { // an older change
		saved = time.Time{}
	}
	if standby {
		b.added, b.dirty = nil, true
	} else if err := l.walk(ctx, base); err != nil && !failure.Is(err, v1alpha1.ReasonProgressing) {
		l.Log.Debug("new files not looked for", "error", err)
	}
	overwrote := !b.wrote.IsZero() && !l.drift.ended.Before(b.wrote) // an older comparison does not tell which changes are gone
	b.shown, b.due = b.proposer.Step(ctx, s, propose.Input{
		Notes: l.Engine.Notes(), Changed: l.changes(), Saved: saved, Base: base, Overwrote: overwrote, Standby: standby, Renew: o.Propose,
	})
	if overwrote {
		b.wrote = time.Time{}
	}
	l.Metrics.ProposalFiles("proposed", files(b.shown, false))
	l.Metrics.ProposalFiles("refused", files(b.shown, true))
}

// files returns the number of files that are proposed, or refused.
func files(p *v1alpha1.Proposal, refused bool) int {
	switch {
	case p == nil:
		return 0
	case refused:
		return int(p.Refused)
	case p.State == v1alpha1.ProposalRefused:
		return 0
	}
	return int(p.Files)
}

// walk looks for files that the gateway added, if a file event or enough comparisons have passed.
func (l *Loop) walk(ctx context.Context, base func() (propose.Base, error)) error {
	b := &l.back
	if b.walked.Equal(l.drift.ended) {
		return nil
	}
	b.walked = l.drift.ended
	if b.since++; !b.dirty && b.since < walkEvery {
		return nil
	}
	at, err := base()
	if err != nil {
		return err
	}
	list, err := l.Engine.Added(ctx, at)
	if err != nil {
		return err
	}
	b.added, b.since, b.dirty = list, 0, false
	return nil
}

// changes returns the watched paths that differ from git.
func (l *Loop) changes() []string {
	list := slices.Concat(l.drift.last.Watched, l.back.added)
	slices.Sort(list)
	return slices.Compact(list)
}

// rules returns how a sync to o treats changes that are sent back; nil if none are.
func (b *back) rules(l *Loop, o *Order) *sync.Back {
	s := o.Proposals
	if s == nil || o.Profile.Bidirectional == nil || o.Profile.DryRun {
		return nil
	}
	return &sync.Back{
		Watches: s.Watches,
		Proposed: func(path string) bool {
			return s.Watches(path) && !b.proposer.Settled()
		},
		Replace: func(paths []string) error { return b.replace(l, o, s, paths) },
	}
}

// replace decides whether a sync may replace changes of the gateway.
func (b *back) replace(l *Loop, o *Order, s *propose.Settings, paths []string) error {
	held := func(format string, args ...any) error {
		return failure.New(v1alpha1.ReasonConflictDetected, "%s was changed on the gateway and in git (%d files): %s", paths[0], len(paths), fmt.Sprintf(format, args...))
	}
	switch o.Profile.Bidirectional.ConflictStrategy {
	case v1alpha1.StrategyManual:
		return held("merge the pull request, or set %s to take git's version", v1alpha1.AnnotationForceSync)
	case v1alpha1.StrategyGatewayWins:
		if b.proposer.Ended() {
			return nil
		}
		return held("the sync waits until the pull request is merged or closed; set %s to take git's version", v1alpha1.AnnotationForceSync)
	}
	if b.proposer.Safe() {
		return nil
	}
	if b.askedBy != o {
		b.asked, b.askedBy = l.Now(), o
	}
	if wait := s.Debounce + pushGrace; l.Now().Sub(b.asked) < wait {
		return held("the sync waits until the change is pushed, at most %s", wait)
	}
	return nil
}
