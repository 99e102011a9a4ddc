package decide

import (
	"fmt"
	"slices"

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
	From                       Origin
}

// Origin is what last ran everywhere, as the SyncTarget says. Name is the full name of Ref.
type Origin struct {
	Ref, Name string
	Commit    plan.ID
}

// passage is the result of a gate.
type passage struct {
	to       *Origin // what the gateway follows in place of the target; nil for the target
	dry      bool    // only a dry run
	rollback bool    // to goes back to what ran before
	held     *Hold   // why the gateway stays as it is; nil if it follows
	ask      string  // see Step.Ask
}

// gate decides which target a gateway may follow:
//
//	the ref moved before it was taken     leave
//	its step is open                      sync the target
//	its step is closed                    leave: the order in force stays, with its commit and its spec
//	… and nothing was ever synced here    sync what last ran everywhere, or else the target: no gate holds a first start
//	none is open, and dryRunBefore is on  make a dry run of the target, then leave
//	its step is open, and the rollout
//	went back                             sync what last ran everywhere
//	the rollout was aborted               leave, unless its step is open and the target is on the disk already
//	its stage needs an approval           sync the target only if the GatewaySync itself has the approval, whatever the SyncTarget says
//
// So a SyncTarget that another pod forged opens no stage that needs an approval. A closed gate does not hold a restore, and a forced sync
// verifies the commit on the disk.
func gate(s Situation) passage {
	gs, r := s.GatewaySync, s.Rollout
	switch {
	case s.Target.IsZero():
		return passage{}
	case s.Moved != "" && !s.Unsynced && s.Disk != s.Target:
		return hold(v1alpha1.ReasonRefMoved, "%s was not taken before its ref moved: %s", s.Target.Short(), s.Moved)
	case !gs.InSteps():
		return passage{}
	case schedule.TooLarge(gs) && !s.Unsynced: // a forged SyncTarget could open stages that need an approval
		return hold(v1alpha1.ReasonProfilesInvalid, "spec.deployment has too many names and patterns: the gateway stays as it is")
	}
	order := schedule.OrderOf(gs)
	step, steps := order.StepOf(s.Gateway, s.Pod), len(order.Steps())
	if r.On && !r.Done && r.Steps != steps {
		return hold(v1alpha1.ReasonWaitingForLead, "the SyncTarget has %d steps, but this agent counts %d: waiting for its lead", r.Steps, steps)
	}
	open, stage := !r.On || r.Done || step <= r.Open, order.Stage(step)
	switch {
	case s.Unsynced && open && !r.Failed:
		return passage{}
	case s.Unsynced && s.ranEverywhere(r.From):
		return passage{to: &r.From}
	case s.Unsynced:
		return passage{ask: r.From.question()}
	case open && r.Rollback && s.ranEverywhere(r.From):
		return passage{to: &r.From, rollback: true}
	case open && r.Rollback:
		p := hold(v1alpha1.ReasonWaitingForLead, "the rollout went back to a commit that the status does not list: the gateway stays as it is")
		p.ask = r.From.question()
		return p
	case r.Failed && !r.Done && s.Disk != s.Target:
		return hold(v1alpha1.ReasonGateClosed, "the rollout of %s was aborted before this gateway got it", s.Target.Short())
	case open:
		return s.openStep(stage)
	case r.Open == 0 && gs.DryRunBefore():
		return passage{dry: true}
	}
	return s.closedStep(order, step, stage)
}

// openStep is the gate of a gateway whose step is open. stage is that of the step; nil for none.
func (s Situation) openStep(stage *v1alpha1.Stage) passage {
	if stage == nil || !stage.RequireApproval || s.approved(stage.Name) {
		return passage{}
	}
	p := hold(v1alpha1.ReasonApprovalNeeded, "%s waits for an approval of stage %s: stoker approve %s %s",
		s.Target.Short(), stage.Name, s.GatewaySync.Name, stage.Name)
	p.ask = stage.Name + "@" + s.Target.String()
	return p
}

// closedStep says why a gateway waits for its step.
func (s Situation) closedStep(order schedule.Order, step int, stage *v1alpha1.Stage) passage {
	gs, next, steps := s.GatewaySync, s.Rollout.Open+1, len(order.Steps())
	if stage != nil && stage.RequireApproval && next <= steps && order.Stage(next) == stage && order.Opens(next) &&
		!annotation.Approved(gs, stage.Name, s.Target.String()) {
		return hold(v1alpha1.ReasonApprovalNeeded, "%s waits until stage %s is approved: stoker approve %s %s", s.Target.Short(), stage.Name, gs.Name, stage.Name)
	}
	return hold(v1alpha1.ReasonGateClosed, "%s waits: %d of %d steps are open, and this gateway is in step %d", s.Target.Short(), s.Rollout.Open, steps, step)
}

func hold(reason v1alpha1.Reason, format string, args ...any) passage {
	return passage{held: &Hold{reason, fmt.Sprintf(format, args...)}}
}

// question identifies what a newer GatewaySync could confirm; "" for the zero Origin.
func (o Origin) question() string {
	if o.Commit.IsZero() {
		return ""
	}
	return o.Ref + "@" + o.Commit.String()
}

// approved reports whether a stage that needs approvals may get the target: it was approved, ran everywhere before, or is on the disk.
func (s Situation) approved(stage string) bool {
	return s.Whole && s.Disk == s.Target || annotation.Approved(s.GatewaySync, stage, s.Target.String()) || s.GatewaySync.Status.RanEverywhere(s.Target.String())
}

// ranEverywhere reports whether the status of the GatewaySync confirms that a commit of a ref ran everywhere.
func (s Situation) ranEverywhere(o Origin) bool {
	st := &s.GatewaySync.Status
	equal := func(c v1alpha1.CommitRecord) bool { return c.Ref == o.Ref && c.Commit == o.Commit.String() }
	return !o.Commit.IsZero() && (st.LastGood != nil && equal(*st.LastGood) || slices.ContainsFunc(st.History, equal))
}
