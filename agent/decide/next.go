package decide

import (
	"fmt"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
)

// Situation is what the next step of a gateway depends on.
type Situation struct {
	// Obstacle is why the gateway has no usable instructions: the SyncTarget or the GatewaySync is missing, cannot be read, or does not match
	// the other. Otherwise it is nil.
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
	// Earlier are the last commits that were completely on the disk before, by the manifest, and Empty is whether it lists no file.
	Earlier []plan.ID
	Empty   bool
	// Delivered is the last commit that was recorded as delivered outside the volume. NewVolume reports that the volume is new, or that the
	// gateway has not started yet. Incomplete reports that the volume lacks files of Delivered, and GaveUp that a sync failed to write them
	// in a way that no retry fixes.
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
	// Held is why the gateway stays as it is; nil if nothing holds it, or if the obstacle will probably be over soon.
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
//	the gate is closed                                           do only what ClosedGate allows
//	the gate allows a dry run, which was not made yet            make it
//	the settings are not valid                                   leave the order in force
//	there is no commit yet                                       leave an order that has one
//	otherwise                                                    follow the target, or what the gate puts in its place
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
	if !s.InForce.Commit.IsZero() { // a new order without a commit would replace one that has a commit
		n.Do, n.ApplyPause = Leave, true
	}
	return n
}

// refill returns what a new volume gets first: the commit that the gateway had on the lost volume. Otherwise the gateway would have no files
// while a gate for another commit is closed. refill returns nil if the volume lacks nothing.
func (s Situation) refill() *Origin {
	o := s.Delivered
	if !s.lacksDelivered() || s.Target.IsZero() || o.Commit == s.Target || s.GaveUp {
		return nil
	}
	if o.Ref == "" {
		o.Ref = s.Ref
	}
	return &o
}

// lacksDelivered reports whether the volume is new and lacks files of the last delivery.
func (s Situation) lacksDelivered() bool {
	return !s.Delivered.Commit.IsZero() && s.NewVolume && s.Incomplete
}

// lacksTarget reports whether the volume is new and lacks files of the target, which the gateway had on the lost one.
func (s Situation) lacksTarget() bool { return s.lacksDelivered() && s.Delivered.Commit == s.Target }
