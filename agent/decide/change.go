// Package decide says what the agent of one gateway does next, as functions from values to values:
//
//	Next                    whether the sync that the agent was told to make (the order) stays, changes or ends
//	ClosedGate, Pause       what a closed gate allows, and when a pause begins and ends
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
	// Limit is how long the sync waits for the push, and for the proposer to see changes: it may be unable to look at them before the sync has
	// ended.
	Limit time.Duration
	Now   time.Time
}

// Wait has the times at which a sync began to wait: Since for the changes to be proposed, and Unseen only for the proposer to see them. The zero
// Wait is that of a sync that has not waited yet.
type Wait struct{ Since, Unseen time.Time }

// Blocks says why a sync must not replace the changes now, in words that follow the names of the files; "" if it may. unseen reports that the
// proposer only has to see them.
//
//	strategy      the sync may replace the changes
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
	case c.Seen: // if something else holds this sync, changes that are saved meanwhile get the whole wait
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

// Delivery is what is known about a sync before it changes the gateway. Package record knows the earlier deliveries.
type Delivery struct {
	// First reports that no sync was ever completed on this gateway.
	First bool
	// DryRun reports that nothing will be written.
	DryRun bool
	// Repair reports that the sync only restores what was delivered.
	Repair bool
	// Rollback reports that an operator requested to go back to the target, which ran here before.
	Rollback bool
	// Approved reports that a user approved the target for delivery outside the maintenance windows.
	Approved bool
	// Forced reports a force-sync request that is new.
	Forced bool
	// AccessChanged reports that a node of a redundant pair got or lost the access to its configuration.
	AccessChanged bool
	// SameCommit and SameRules report that the target, and the rules of the spec, are those of the last delivery.
	SameCommit, SameRules bool
	// LacksFiles reports a volume that may lack files of the last delivery: before the gateway's start, or because the volume is new.
	LacksFiles bool
	// Recorded reports that the target is the commit that package record has as delivered last. Without a record (standalone) it is true.
	Recorded bool
}

// WaitsForWindow reports whether the delivery waits while the maintenance windows are closed. It does not wait if it
//
//	is the first one of this gateway, or only a dry run
//	repairs what was delivered, or delivers it again to a new volume
//	goes back on request, has a commit that a user approved for it, or is forced by a user
//	follows a change of the access of a redundant pair's node
func (d Delivery) WaitsForWindow() bool {
	switch {
	case d.First, d.DryRun, d.Repair, d.Rollback, d.Approved, d.Forced, d.AccessChanged:
		return false
	case d.LacksFiles && d.Recorded:
		return false
	}
	return true
}

// NeedsReview reports whether the validation webhook must allow the delivery. It need not allow
//
//	the first one of this gateway
//	a rollback that an operator requested
//	the commit that was delivered last: under the same rules, or to a volume that lacks files of it
func (d Delivery) NeedsReview() bool {
	switch {
	case d.First, d.Rollback:
		return false
	case d.SameCommit && (d.SameRules || d.LacksFiles):
		return false
	}
	return true
}
