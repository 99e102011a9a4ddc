package loop

import (
	"context"
	"time"

	"stoker.io/stoker/agent/propose"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/metrics"
)

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

// propose lets the proposer do what is due. It does nothing if the decision is to leave the gateway alone (DoNotTouch). Until the files have been
// compared, it only shows the recorded state.
func (l *Loop) propose(ctx context.Context) {
	l.followDir() // a sync that was stopped may have closed it
	defer func() { measureProposal(l.Metrics, l.proposal) }()
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
}

func measureProposal(m *metrics.Agent, p *v1alpha1.Proposal) {
	proposed, refused := countFiles(p)
	m.ProposalFiles("proposed", proposed)
	m.ProposalFiles("refused", refused)
}

// countFiles returns the number of files that a user can review or merge in git, and of those that are refused.
func countFiles(p *v1alpha1.Proposal) (proposed, refused int) {
	if p == nil {
		return 0, 0
	}
	switch p.State {
	case v1alpha1.ProposalOpen, v1alpha1.ProposalPushed, v1alpha1.ProposalMerged:
		proposed = int(p.Files)
	case v1alpha1.ProposalForeign:
		if p.Number > 0 { // otherwise the branch is another author's
			proposed = int(p.Files)
		}
	}
	return proposed, int(p.Refused)
}

// proposalsOf returns how a sync of the order o treats changes that are proposed to git; nil if o proposes none. With Once the sync replaces
// no such change, because this run proposes nothing and a later run can. A repair that only onClosed: repair asks for replaces only
// proposed changes.
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
