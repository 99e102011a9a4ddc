// Package decide says what the agent of one gateway does next, as functions from values to values:
//
//	Next                    whether the sync that the agent was told to make (the order) stays, changes or ends
//	ClosedGate, Pause       what is allowed before a rollout opens the gateway's step (a closed gate), and when a pause begins and ends
//	RolloutRollback         what a rollback of a rollout reports
//	Delivery                whether a sync waits for a maintenance window, or for the validation webhook
//	Restore                 whether a snapshot replaces the target
//	Failures                when a gateway that cannot load the target rolls back automatically
//	Wait, Proposal, Drift   when a sync replaces or repairs changes that were made on the gateway
//	Schedule                what happens next to a proposal of these changes, and when
//
// Its callers read the objects, the disk and the clock, and obey. If only a newer GatewaySync could change a step, the step says so (Step.Ask),
// and the caller reads the object and asks again.
package decide

import (
	"fmt"
	"time"

	"stoker.io/stoker/api/v1alpha1"
)

// Proposal is how far a proposal to git of the changes on a gateway is.
type Proposal struct {
	State v1alpha1.ProposalState
	// RepairClosed reports that spec.bidirectional.onClosed is repair.
	RepairClosed bool
}

// Ended reports whether the pull request of the changes was merged or closed.
func (p Proposal) Ended() bool {
	return p.State == v1alpha1.ProposalClosed || p.State == v1alpha1.ProposalMerged
}

// RepairsClosed reports whether git's version replaces the changes because their pull request was closed.
func (p Proposal) RepairsClosed() bool { return p.RepairClosed && p.State == v1alpha1.ProposalClosed }

// Settled reports whether a repair of drift may undo the changes: they were refused, or RepairsClosed.
func (p Proposal) Settled() bool { return p.State == v1alpha1.ProposalRefused || p.RepairsClosed() }

// Safe reports whether a sync may replace the changes without waiting for their push: git has them, or the agent will not push them.
func (p Proposal) Safe() bool {
	switch p.State {
	case v1alpha1.ProposalOpen, v1alpha1.ProposalPushed, v1alpha1.ProposalRefused, v1alpha1.ProposalClosed, v1alpha1.ProposalForeign, v1alpha1.ProposalMerged:
		return true
	}
	return false
}

// Changes are changes on the gateway that a sync would replace, although they are proposed to git.
type Changes struct {
	Strategy v1alpha1.ConflictStrategy
	Proposal Proposal
	// Seen reports that the state of the proposal is about these changes, and not about others or older ones.
	Seen bool
	// Limit is how long the sync waits for the push, and for the proposer to see the changes. Without a limit the sync could wait forever,
	// because the proposer may not see them before the sync ends.
	Limit time.Duration
	Now   time.Time
}

// Wait has the times at which a sync began to wait: Since for the changes to be proposed, and Unseen only for the proposer to see them. The zero
// Wait is that of a sync that has not waited yet.
type Wait struct{ Since, Unseen time.Time }

// Blocks returns why a sync must not replace the changes now, as the end of a message that begins with the names of the files; "" if it may.
// unseen reports that the proposer only has to see them.
//
//	strategy      when the sync may replace the changes
//	manual        never: a user merges them, or forces the sync
//	gatewayWins   when their pull request is merged or closed
//	gitWins       when git has them, when they cannot be proposed, or when the sync has waited for Limit
func (w Wait) Blocks(c Changes) (next Wait, why string, unseen bool) {
	if w.Since.IsZero() {
		w = Wait{Since: c.Now}
	}
	done := c.Proposal.Ended()
	switch c.Strategy {
	case v1alpha1.StrategyManual:
		return w, fmt.Sprintf("merge the pull request, or set %s to take git's version", v1alpha1.AnnotationForceSync), false
	case v1alpha1.StrategyGatewayWins:
		why = fmt.Sprintf("the sync waits until the pull request is merged or closed; set %s to take git's version", v1alpha1.AnnotationForceSync)
	default: // StrategyGitWins waits until the change is pushed, but not forever.
		done = c.Proposal.Safe()
		why = fmt.Sprintf("the sync waits until the change is pushed, at most %s", c.Limit)
		if !done && c.Now.Sub(w.Since) >= c.Limit {
			return w, "", false
		}
	}
	switch {
	case !done:
		w.Unseen = time.Time{}
		return w, why, false
	case c.Seen: // later changes get the whole wait, even if something else holds this sync
		return Wait{}, "", false
	case w.Unseen.IsZero():
		w.Unseen = c.Now
	case c.Now.Sub(w.Unseen) >= c.Limit:
		return w, "", false
	}
	return w, why, true
}

// Drift is what the last comparison of the files found, and what decides whether a sync repairs it.
type Drift struct {
	// Files are those that differ, Watched those of them that are proposed to git.
	Files, Watched int
	Policy         v1alpha1.DriftPolicy
	// RepairsClosed is Proposal.RepairsClosed of the watched files; false if none are proposed.
	RepairsClosed bool
	// Desired reports that the desired commit is known, DoNotTouch that the gateway is left alone.
	Desired, DoNotTouch, Paused, DryRun bool
}

// Repair reports whether a sync repairs the drift now: if driftPolicy is repair, or if files differ whose pull request was closed and onClosed
// is repair. It never does while the desired commit is not known, the gateway is left alone, syncing is paused, or dryRun is set.
func (d Drift) Repair() bool {
	if d.Files == 0 || !d.Desired || d.DoNotTouch || d.Paused || d.DryRun {
		return false
	}
	return d.Policy == v1alpha1.DriftRepair || d.RepairsClosed && d.Watched > 0
}

// Repairs reports whether a repair under a policy undoes the change of one file. watched reports that the file is proposed to git, and seen
// that the state of the proposal is about the change. A repair that only onClosed: repair asks for leaves the other files alone.
func (p Proposal) Repairs(policy v1alpha1.DriftPolicy, watched, seen bool) bool {
	if watched {
		return p.Settled() && seen
	}
	return policy == v1alpha1.DriftRepair
}
