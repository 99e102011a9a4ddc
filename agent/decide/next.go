package decide

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
)

// Situation is what the next step of a gateway depends on.
type Situation struct {
	// Obstacle is why the gateway has no usable instructions: an object is missing, cannot be read, or does not match the other. nil if it
	// has.
	Obstacle *Obstacle
	// GatewaySync is the newest copy.
	GatewaySync *v1alpha1.GatewaySync
	// Gateway and Pod are the names of the gateway and of its pod.
	Gateway, Pod string
	// Ref and Target are the ref and the commit of the SyncTarget; Target is zero if it has none.
	Ref    string
	Target plan.ID
	// Moved says why the ref of the target has another commit by now; "" if it does not.
	Moved string
	// Unresolved is why the lead has no commit for the spec, if only an operator can help; otherwise nil.
	Unresolved *Hold
	Rollout    Rollout
	// Paused reports that an operator has paused syncing.
	Paused bool
	// Invalid is why the settings or the credentials cannot be used; nil if they can, or if they were not looked at yet.
	Invalid *Hold

	// InForce is the order in force.
	InForce InForce
	// Planned is the outcome of a dry run of the target with the current settings; nil if there is none.
	Planned *Hold

	// Disk is the commit on the disk, Whole whether all of it is there, and Unsynced whether no sync was ever completed on this gateway.
	Disk            plan.ID
	Whole, Unsynced bool
	// Delivered is the last commit that was recorded as delivered outside the volume. NewVolume reports that the volume is new, or that the
	// gateway has not started yet, Incomplete that the volume lacks files of Delivered, and GaveUp that the sync that was to write them
	// failed in a way that no retry fixes.
	Delivered                     Origin
	NewVolume, Incomplete, GaveUp bool
}

// InForce is an order in force.
type InForce struct {
	Exists bool
	Commit plan.ID // zero if it has none
}

// Obstacle is why a gateway cannot follow its target.
type Obstacle struct {
	Hold
	// DoNotTouch reports that the gateway must be left alone.
	DoNotTouch bool
	// Short reports that the obstacle will probably be over soon.
	Short bool
}

// Hold is why a gateway stays as it is.
type Hold struct {
	Reason  v1alpha1.Reason
	Message string
}

// Action is what happens to the order in force.
type Action string

const (
	// Leave leaves the order in force.
	Leave Action = "leave"
	// KeepOnDisk allows only what a closed gate lets pass: see ClosedGate.
	KeepOnDisk Action = "keep"
	// DryRun makes a dry run of the target.
	DryRun Action = "dry run"
	// Follow puts an order in force.
	Follow Action = "follow"
)

// Step is what the agent of one gateway does next.
type Step struct {
	Do         Action
	DoNotTouch bool
	// To is what to follow in place of the target; nil for the target.
	To *Origin
	// Refill reports that To is what a new volume lacks, Rollback that it goes back to what ran before the rollout.
	Refill, Rollback bool
	// Planned reports that Held is due to the dry run of the target, which was made.
	Planned bool
	// Held is why the gateway stays as it is; nil if it does not, or if the last state is still true.
	Held *Hold
	// ReportTarget reports that the report is about the target, whatever order is in force.
	ReportTarget bool
	// ApplyPause reports that the order in force is paused or continued now.
	ApplyPause bool
	// Ask names what a newer GatewaySync could confirm; "" if no other copy changes the step.
	Ask string
}

// Next says what the agent of one gateway does next:
//
//	SyncTarget and GatewaySync do not agree, or cannot be read   leave the order in force
//	… because one of them is gone, or needs a newer agent        and do not touch the gateway
//	a new volume lacks files that the gateway had                follow these first
//	the gate is closed                                           keep what it allows
//	the gate allows a dry run, which was not made yet            make it
//	the settings are not valid                                   leave the order in force
//	there is no commit yet                                       leave an order that has one
//	otherwise                                                    follow what the gate lets pass
//
// A pause is applied at once, even to an order that stays in force: an operator may be about to repair the gateway by hand.
func Next(s Situation) Step {
	if o := s.Obstacle; o != nil {
		n := Step{Do: Leave, DoNotTouch: o.DoNotTouch, Held: &o.Hold, ApplyPause: s.Paused}
		if o.Short && s.InForce.Exists && !o.DoNotTouch {
			n.Held = nil
		}
		return n
	}
	if refill := s.refill(); refill != nil {
		return s.follow(Step{Do: Follow, To: refill, Refill: true, ReportTarget: true})
	}
	p := gate(s)
	held := p.held
	if p.dryRunOnly {
		held = s.Planned
	}
	switch {
	case held != nil:
		if s.Paused {
			held = &Hold{v1alpha1.ReasonPaused, "syncing is paused; the files on the disk stay"}
		}
		return Step{Do: KeepOnDisk, Held: held, Planned: p.dryRunOnly, ReportTarget: true, ApplyPause: true, Ask: p.ask}
	case p.dryRunOnly:
		return s.follow(Step{Do: DryRun})
	}
	return s.follow(Step{Do: Follow, To: p.to, Rollback: p.rollback, Ask: p.ask})
}

// follow returns n, or what happens in place of n if there is nothing to follow.
func (s Situation) follow(n Step) Step {
	switch {
	case s.Invalid != nil:
		return Step{Do: Leave, To: n.To, Refill: n.Refill, Held: s.Invalid, ReportTarget: true, ApplyPause: true, Ask: n.Ask}
	case !s.Target.IsZero() || n.To != nil:
		return n
	}
	n.Held = s.Unresolved
	if n.Held == nil {
		n.Held = &Hold{v1alpha1.ReasonWaitingForLead, fmt.Sprintf("no commit is known yet for the ref %q", s.Ref)}
	}
	if !s.InForce.Commit.IsZero() { // a new order has nothing that the one in force lacks
		n.Do, n.ApplyPause = Leave, true
	}
	return n
}

// refill returns what a new volume gets first: the commit that the gateway had on the lost one. Without it the gateway would wait for the gates
// of another commit without any files. It returns nil if the volume has lost nothing.
func (s Situation) refill() *Origin {
	o := s.Delivered
	if o.Commit.IsZero() || s.Target.IsZero() || o.Commit == s.Target || !s.NewVolume || !s.Incomplete || s.GaveUp {
		return nil
	}
	if o.Ref == "" {
		o.Ref = s.Ref
	}
	return &o
}

// ClosedGate is what a gateway has while a gate holds it.
type ClosedGate struct {
	// Order is the commit of the order in force; zero if it has none. Requested reports that an operator requested to go back to it, and
	// Restores that a snapshot replaces it.
	Order               plan.ID
	Requested, Restores bool
	Disk                plan.ID // the commit on the disk
	Unsynced            bool    // no sync was ever completed on this gateway
}

// StopsOrder reports whether a closed gate stops the order in force, because the order would bring a commit that the gateway does not have. A
// rollback, a restore and a first start go on.
func (c ClosedGate) StopsOrder() bool {
	return !c.Order.IsZero() && c.Order != c.Disk && !c.Requested && !c.Restores && !c.Unsynced
}

// Force reports whether a closed gate lets a force-sync request pass: to verify the commit on the disk.
func (c ClosedGate) Force() bool { return c.Order == c.Disk && !c.Restores }

// RestoreOnly reports whether the order in force may only restore its snapshot. Programs of the gateway can remove the note about the restore
// before the sync reads it.
func (c ClosedGate) RestoreOnly() bool { return c.Restores && c.Order != c.Disk && !c.Requested }

// Pause is the last target that paused the order in force although it could not be followed; zero if none did.
type Pause struct {
	Owner      types.UID // of the GatewaySync
	Generation int64
	on         bool
}

// Apply reports whether an order is paused or continued now because of a target that cannot be followed. A pause is applied at once. When a
// pause ends, syncing resumes at once only if the spec is still the one that was in force during the pause. If the spec has changed, syncing
// resumes together with the new spec, because the new spec may be the fix for which syncing was paused.
func (p Pause) Apply(target Pause, paused bool) (next Pause, apply bool) {
	target.on = true
	if paused {
		return target, true
	}
	return p, p == target
}

// RolloutRollback is what to report of a rollout that went back to what ran before.
type RolloutRollback struct {
	// Synced reports that the gateway runs To, what ran before, Failed that the last sync to To failed.
	Synced, Failed bool
	To, Aborted    plan.ID
}

// Report returns why the gateway does not run the target; nil while it goes back. ofTarget reports that the report is about the target:
// otherwise the outcome of the sync would be attributed to the earlier one.
func (w RolloutRollback) Report() (held *Hold, ofTarget bool) {
	if w.Synced {
		return &Hold{v1alpha1.ReasonRolledBack, fmt.Sprintf("the rollout of %s failed, and the gateway went back to %s", w.Aborted.Short(), w.To.Short())}, true
	}
	return nil, w.Failed
}
