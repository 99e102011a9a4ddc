package decide

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/schedule"
)

// Rollout is the rollout of a SyncTarget: whether there is one, how it goes, how many of its steps are open, and what ran before. Each agent
// finds its own step in the spec.
type Rollout struct {
	On, Done, Rollback, Failed bool
	Steps, Open                int
	From                       Origin // what last ran everywhere, as the SyncTarget says
}

// Origin is a commit and its ref. Name is the full name of Ref; "" if it is not known.
type Origin struct {
	Ref, Name string
	Commit    plan.ID
}

// gateResult is what a gate allows.
type gateResult struct {
	to         *Origin // what the gateway follows in place of the target; nil for the target
	dryRunOnly bool    // only a dry run
	rollback   bool    // to goes back to what ran before
	held       *Hold   // why the gateway stays as it is; nil if it follows
	ask        string  // see Step.Ask
}

// gate decides which target a gateway may follow:
//
//	the ref moved before the target ran      hold, unless nothing was ever synced here
//	there are no steps                       sync the target
//	spec.deployment is too large             hold, unless nothing was ever synced here
//	the SyncTarget counts other steps        hold while the rollout goes on
//	nothing was ever synced here             sync the target if the step is open and the rollout has not failed, else what last ran everywhere, or the target
//	the rollout went back                    if the step is open, or the target on the disk: sync what last ran everywhere
//	the rollout was aborted                  hold, unless the target is on the disk
//	the step is open, or a new volume had the target
//	                                         sync the target; if the stage needs an approval, only if the GatewaySync itself has it
//	none is open, and dryRunBefore is on     make a dry run of the target, then hold
//	the step is closed                       hold: the order in force stays, with commit and spec
//
// So a forged SyncTarget opens no stage that needs an approval. Nor does a forged status: a commit that ran everywhere needs an approval unless
// it ran here, too. A closed gate does not hold a restore, and a forced sync verifies the commit on the disk.
func gate(s Situation) gateResult {
	gs, r := s.GatewaySync, s.Rollout
	switch {
	case s.Target.IsZero():
		return gateResult{}
	case s.Moved != "" && !s.Unsynced && s.Disk != s.Target:
		return hold(v1alpha1.ReasonRefMoved, "%s was not taken before its ref moved: %s", s.Target.Short(), s.Moved)
	case !gs.InSteps():
		return gateResult{}
	case schedule.TooLarge(gs) && !s.Unsynced: // no stage would be known, and so no approval would be checked
		return hold(v1alpha1.ReasonProfilesInvalid, "spec.deployment has too many names and patterns: the gateway stays as it is")
	}
	order := schedule.OrderOf(gs)
	step, steps := order.StepOf(s.Gateway, s.Pod), len(order.Steps())
	if r.On && !r.Done && r.Steps != steps {
		return hold(v1alpha1.ReasonWaitingForLead, "the SyncTarget has %d steps, but this agent counts %d: waiting for its lead", r.Steps, steps)
	}
	open, stage := !r.On || r.Done || step <= r.Open, order.Stage(step)
	reached := open || s.Disk == s.Target // a change of the stages can move a gateway to a step that is closed
	switch {
	case s.Unsynced && open && !r.Failed:
		return gateResult{}
	case s.Unsynced && s.ranEverywhere(r.From):
		return gateResult{to: &r.From}
	case s.Unsynced:
		return gateResult{ask: r.From.askFor()}
	case reached && r.Rollback:
		return s.goBack(r.From, stage)
	case r.Failed && !r.Done && s.Disk != s.Target:
		return hold(v1alpha1.ReasonGateClosed, "the rollout of %s was aborted, and this gateway does not have it", s.Target.Short())
	case open, s.lacksTarget():
		return s.openStep(stage)
	case r.Open == 0 && gs.DryRunBefore():
		return gateResult{dryRunOnly: true}
	}
	return s.closedStep(order, step, stage)
}

// goBack is the gate of a gateway whose rollout went back to a commit. stage is that of its step; nil for none.
func (s Situation) goBack(to Origin, stage *v1alpha1.Stage) gateResult {
	if s.ranEverywhere(to) && (stage == nil || !stage.RequireApproval || s.MayGoBack(to.Commit) || annotation.Approved(s.GatewaySync, stage.Name, to.Commit.String())) {
		return gateResult{to: &to, rollback: true}
	}
	p := hold(v1alpha1.ReasonWaitingForLead, "the rollout went back to a commit that the status does not list: the gateway stays as it is")
	if s.ranEverywhere(to) {
		p = hold(v1alpha1.ReasonApprovalNeeded, "the rollout went back to %s, which never ran here and was not approved for stage %s: roll out a commit and approve it", to.Commit.Short(), stage.Name)
	}
	p.ask = to.askFor()
	return p
}

// openStep is the gate of a gateway whose step is open. stage is that of the step; nil for none.
func (s Situation) openStep(stage *v1alpha1.Stage) gateResult {
	if stage == nil || !stage.RequireApproval || s.approved(stage.Name) {
		return gateResult{}
	}
	p := hold(v1alpha1.ReasonApprovalNeeded, "%[1]s waits for an approval of stage %[2]s: stoker approve %[3]s %[2]s --commit %[1]s",
		s.Target.Short(), stage.Name, s.GatewaySync.Name)
	p.ask = stage.Name + "@" + s.Target.String()
	return p
}

// closedStep says why a gateway waits for its step.
func (s Situation) closedStep(order schedule.Order, step int, stage *v1alpha1.Stage) gateResult {
	gs, next, steps := s.GatewaySync, s.Rollout.Open+1, len(order.Steps())
	if stage != nil && stage.RequireApproval && next <= steps && order.Stage(next) == stage && order.Opens(next) &&
		!annotation.Approved(gs, stage.Name, s.Target.String()) {
		return hold(v1alpha1.ReasonApprovalNeeded, "%[1]s waits until stage %[2]s is approved: stoker approve %[3]s %[2]s --commit %[1]s",
			s.Target.Short(), stage.Name, gs.Name)
	}
	return hold(v1alpha1.ReasonGateClosed, "%s waits: %d of %d steps are open, and this gateway is in step %d", s.Target.Short(), s.Rollout.Open, steps, step)
}

func hold(reason v1alpha1.Reason, format string, args ...any) gateResult {
	return gateResult{held: &Hold{reason, fmt.Sprintf(format, args...)}}
}

// askFor identifies what a newer GatewaySync could confirm; "" for the zero Origin.
func (o Origin) askFor() string {
	if o.Commit.IsZero() {
		return ""
	}
	return o.Ref + "@" + o.Commit.String()
}

// approved reports whether a stage that needs approvals may get the target: it was approved, is on the disk, ran here and everywhere before,
// or is what a new volume lacks.
func (s Situation) approved(stage string) bool {
	target := s.Target.String()
	return s.Whole && s.Disk == s.Target || annotation.Approved(s.GatewaySync, stage, target) || s.lacksTarget() ||
		slices.Contains(s.Earlier, s.Target) && s.GatewaySync.Status.RanEverywhere(target)
}

// MayGoBack reports whether this gateway may go back to a commit past windows and approvals: it ran the commit, or is on a new volume, which has
// no evidence. The status of the GatewaySync does not suffice, because it can be forged.
func (s Situation) MayGoBack(to plan.ID) bool {
	return s.Whole && s.Disk == to || slices.Contains(s.Earlier, to) || s.NewVolume && s.Empty
}

// ranEverywhere reports whether the status of the GatewaySync confirms that a commit of a ref ran everywhere.
func (s Situation) ranEverywhere(o Origin) bool {
	st := &s.GatewaySync.Status
	equal := func(c v1alpha1.CommitRecord) bool { return c.Ref == o.Ref && c.Commit == o.Commit.String() }
	return !o.Commit.IsZero() && (st.LastGood != nil && equal(*st.LastGood) || slices.ContainsFunc(st.History, equal))
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

// Pause is the last target that asked for a pause and could not be followed, so that only its pause was applied; zero if there was none.
type Pause struct {
	Owner      types.UID // of the GatewaySync
	Generation int64
	on         bool
}

// Apply reports whether an order is paused or continued now because of a target that cannot be followed. When a pause
// ends, syncing resumes at once only if the spec is still the one that was in force during the pause. If the spec has changed, syncing
// resumes together with the new spec, which may be the fix for which syncing was paused.
func (p Pause) Apply(target Pause, paused bool) (next Pause, apply bool) {
	target.on = true
	if paused {
		return target, true
	}
	return p, p == target
}

// RolloutRollback is a rollout that went back to what ran before.
type RolloutRollback struct {
	// Synced reports that the gateway runs To, what ran before, Failed that the last sync to To failed.
	Synced, Failed bool
	To, Aborted    plan.ID
}

// Report returns why the gateway does not run the target; nil while it goes back. ofTarget reports that the agent's report must name the
// target, although the sync was to To.
func (w RolloutRollback) Report() (held *Hold, ofTarget bool) {
	if w.Synced {
		return &Hold{v1alpha1.ReasonRolledBack, fmt.Sprintf("the rollout of %s failed, and the gateway went back to %s", w.Aborted.Short(), w.To.Short())}, true
	}
	return nil, w.Failed
}
