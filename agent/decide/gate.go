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

// Situation is what the gate of a gateway depends on.
type Situation struct {
	// GatewaySync is the newest copy.
	GatewaySync *v1alpha1.GatewaySync
	// Gateway and Pod are the names of the gateway and of its pod.
	Gateway, Pod string
	// Target is the commit of the SyncTarget; zero if it has none.
	Target plan.ID
	// Moved says why the ref of the target has another commit by now; "" if it does not.
	Moved   string
	Rollout Rollout
	// Disk is the commit on the disk, Whole whether all of it is there, and Unsynced whether no sync was ever completed on this gateway.
	Disk            plan.ID
	Whole, Unsynced bool
}

// Passage is the result of a gate.
type Passage struct {
	// To is what the gateway follows in place of the target; nil for the target.
	To *Origin
	// Dry allows only a dry run.
	Dry bool
	// Rollback reports that To goes back to what ran before.
	Rollback bool
	// Held is why the gateway stays as it is; nil if it follows.
	Held *Hold
	// Ask names what a newer GatewaySync could confirm; "" if no other copy changes the answer.
	Ask string
}

// Hold is why a gateway stays as it is.
type Hold struct {
	Reason  v1alpha1.Reason
	Message string
}

// Gate decides which target a gateway may follow:
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
func Gate(s Situation) Passage {
	gs, r := s.GatewaySync, s.Rollout
	if s.Moved != "" && !s.Target.IsZero() && !s.Unsynced && s.Disk != s.Target {
		return hold(v1alpha1.ReasonRefMoved, "%s was not taken before its ref moved: %s", s.Target.Short(), s.Moved)
	}
	if s.Target.IsZero() || !gs.InSteps() {
		return Passage{}
	}
	if schedule.TooLarge(gs) && !s.Unsynced { // a forged SyncTarget could open stages that need an approval
		return hold(v1alpha1.ReasonProfilesInvalid, "spec.deployment has too many names and patterns: the gateway stays as it is")
	}
	order := schedule.OrderOf(gs)
	step, steps := order.StepOf(s.Gateway, s.Pod), len(order.Steps())
	if r.On && !r.Done && r.Steps != steps {
		return hold(v1alpha1.ReasonWaitingForLead, "the SyncTarget has %d steps, but this agent counts %d: waiting for its lead", r.Steps, steps)
	}
	open, back := !r.On || r.Done || step <= r.Open, s.ranEverywhere(r.From)
	stage := order.Stage(step)
	approval := stage != nil && stage.RequireApproval
	switch {
	case s.Unsynced && !open || s.Unsynced && r.Failed:
		if back {
			return Passage{To: &r.From}
		}
		return Passage{Ask: r.From.question()}
	case s.Unsynced:
		return Passage{}
	case open && r.Rollback && back:
		return Passage{To: &r.From, Rollback: true}
	case open && r.Rollback:
		p := hold(v1alpha1.ReasonWaitingForLead, "the rollout went back to a commit that the status does not list: the gateway stays as it is")
		p.Ask = r.From.question()
		return p
	case r.Failed && !r.Done && s.Disk != s.Target:
		return hold(v1alpha1.ReasonGateClosed, "the rollout of %s was aborted before this gateway got it", s.Target.Short())
	case open && approval && !s.approved(stage.Name):
		p := hold(v1alpha1.ReasonApprovalNeeded, "%s waits for an approval of stage %s: stoker approve %s %s", s.Target.Short(), stage.Name, gs.Name, stage.Name)
		p.Ask = stage.Name + "@" + s.Target.String()
		return p
	case open:
		return Passage{}
	case r.Open == 0 && gs.DryRunBefore():
		return Passage{Dry: true}
	case approval && r.Open < steps && order.Stage(r.Open+1) == stage && order.Opens(r.Open+1) && !annotation.Approved(gs, stage.Name, s.Target.String()):
		return hold(v1alpha1.ReasonApprovalNeeded, "%s waits until stage %s is approved: stoker approve %s %s", s.Target.Short(), stage.Name, gs.Name, stage.Name)
	}
	return hold(v1alpha1.ReasonGateClosed, "%s waits: %d of %d steps are open, and this gateway is in step %d", s.Target.Short(), r.Open, steps, step)
}

func hold(reason v1alpha1.Reason, format string, args ...any) Passage {
	return Passage{Held: &Hold{reason, fmt.Sprintf(format, args...)}}
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
