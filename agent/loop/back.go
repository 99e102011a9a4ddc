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

// back is the part of the Loop that sends changes made on the gateway back to git, as proposals (spec.bidirectional). It has
// nothing to do with rollbacks.
type back struct {
	proposer *propose.Proposer
	shown    *v1alpha1.Proposal // the state of the proposal for the status; nil if there is none
	due      time.Time          // when to call propose again; zero means after the next comparison
	// wrote is when a sync last wrote files. It is zero once the proposer knows about that sync.
	wrote time.Time
	// added are the new files on the gateway that the last walk found. The walk is repeated after file events, and at every
	// tenth comparison.
	added  []string
	walked time.Time // when the comparison ended for which walk was last called
	since  int       // comparisons since the last walk
	dirty  bool      // a file event arrived after the last walk
	event  time.Time // when the last file event arrived
	// asked is when the sync of the order askedBy began to wait until a change is pushed.
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

// settings returns how the order in force proposes changes, or nil if it does not.
func (l *Loop) settings() *propose.Settings {
	if o := l.decision.Order; o != nil && !l.DryRun && !l.Once && !o.Profile.DryRun && o.Profile.Bidirectional != nil {
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

// propose moves the proposal of this gateway forward: it looks for changes and passes them to the proposer. It does nothing
// while another agent may have the gateway, and only shows the recorded state until the files have been compared.
func (l *Loop) propose(ctx context.Context) {
	b, s := &l.back, l.settings()
	if s == nil {
		b.shown, b.due = nil, time.Time{}
		return
	}
	if !l.settled || l.decision.HandsOff {
		return
	}
	standby := l.sync.report != nil && l.sync.report.Phase == sync.Standby
	if l.drift.last == nil { // not compared yet
		b.shown = b.proposer.Recall(l.Engine.Notes())
		return
	}
	o := l.decision.Order
	base := func() (propose.Base, error) { return l.Engine.Base(ctx, o.Connections.Remote, o.Task) }
	saved := b.event
	if !saved.After(b.walked) { // the comparison before this one has already seen that change
		saved = time.Time{}
	}
	if standby {
		b.added, b.dirty = nil, true
	} else if err := l.walk(ctx, base); err != nil && !failure.Is(err, v1alpha1.ReasonProgressing) {
		l.Log.Debug("new files not looked for", "error", err)
	}
	// Only a comparison that ended after the sync shows which changes the sync has replaced.
	overwrote := !b.wrote.IsZero() && !l.drift.ended.Before(b.wrote)
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

// walk looks for files that were added on the gateway. It does so at most once per comparison, and only after a file event
// or after walkEvery comparisons.
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

// rules returns how a sync of the order o treats changes on the gateway that are sent back to git; nil if o sends none back.
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

// replace returns nil if a sync may replace the changes at paths, and otherwise the error that holds the sync.
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
