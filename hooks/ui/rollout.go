package ui

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/schedule"
	"stoker.io/stoker/api/v1alpha1/syntax"
)

// rollout is the progress of the rollout of a commit.
type rollout struct {
	State        chip
	Advice       Advice // why it does not progress; zero while it does
	Message      string
	Step, Steps  int
	Since        moment
	Commit, From string
	Stages       []stage
	// Todo lists what the user can do.
	Todo []todo
}

// stage is a stage of a rollout. Its name is "" for the gateways in no stage.
type stage struct {
	Name, Path    string
	State         chip
	Conditions    string // what must be fulfilled before and after it
	Synced, Total int

	first, last int // steps, from 1
}

// todo is a command that the user can type.
type todo struct{ Text, Command string }

// newRollout returns the rollout of f, or nil if its status has no rollout. link returns the address of the list of gateways of
// a stage.
func (s *Server) newRollout(f fleet, now moment, link func(stage string) string) *rollout {
	gs := f.gs
	status := gs.Status.Rollout
	if status == nil {
		return nil
	}
	r := &rollout{State: chip{toneBusy, clean(string(status.Phase), 32)}, Message: clean(status.Message, maxMessage), Step: int(status.Step), Steps: int(status.Steps),
		Commit: clean(syntax.ShortCommit(status.Commit), 7), From: clean(syntax.ShortCommit(status.From), 7)}
	command := func(verb string) string { return "stoker " + verb + " " + gs.Name + f.flags }
	switch status.Phase {
	case v1alpha1.RolloutDone:
		r.State.Tone = toneGood
	case v1alpha1.RolloutAborted:
		r.State.Tone, r.Advice = toneFail, s.advisor.advice(v1alpha1.ReasonCanaryStageFailed)
		if gs.Status.Retry != "" {
			r.Todo = append(r.Todo, todo{"If the commit is not to blame, try it again:", command("retry")})
		}
		if gs.Status.Rollback != nil {
			r.Todo = append(r.Todo, todo{"To bring all gateways back to what they ran before:", command("rollback")})
		}
	case v1alpha1.RolloutSoaking:
		r.Advice = s.advisor.advice(v1alpha1.ReasonRolloutSoaking)
	case v1alpha1.RolloutWaiting:
		r.State.Tone, r.Advice = toneHeld, s.advisor.advice(v1alpha1.ReasonApprovalNeeded)
	}
	// The status could be forged to choose the words of the command.
	if a := gs.Status.Approval; a != nil && syntax.IsCommit(a.Commit) && slices.Contains(gs.StageNames(), a.Stage) {
		r.Todo = append(r.Todo, todo{"To approve the stage:", "stoker approve " + gs.Name + " " + a.Stage + " --commit " + syntax.ShortCommit(a.Commit) + f.flags})
	}
	if status.Since != nil {
		r.Since = moment{status.Since.Time, now.now}
	}
	r.Stages = newStages(f, status, link)
	return r
}

// newStages returns the stages of a rollout. It returns none if the spec has no stages, or another number of steps than
// the rollout.
func newStages(f fleet, status *v1alpha1.RolloutStatus, link func(stage string) string) (list []stage) {
	order := schedule.OrderOf(f.gs)
	steps := order.Steps()
	if len(steps) != int(status.Steps) || order.Stage(1) == nil {
		return nil
	}
	for i := range steps {
		if order.Opens(i + 1) {
			s := stage{Name: steps[i].Stage, Path: link(steps[i].Stage), first: i + 1}
			if spec := order.Stage(i + 1); spec != nil {
				s.Conditions = stageConditions(spec)
			}
			list = append(list, s)
		}
		list[len(list)-1].last = i + 1
	}
	for i := range f.Gateways {
		g := &f.Gateways[i]
		step := order.StepOf(g.row.Name, g.row.PodName)
		for j := range list {
			if s := &list[j]; s.first <= step && step <= s.last {
				s.Total++
				if !g.Unfinished() {
					s.Synced++
				}
			}
		}
	}
	for i := range list {
		list[i].State = list[i].state(status)
		if f.State.Tone == toneUnknown { // no agent confirms what the gateways run
			list[i].State = f.State
		}
	}
	if last := &list[len(list)-1]; last.Name == "" && last.Total == 0 { // every gateway is in a stage
		list = list[:len(list)-1]
	}
	return list
}

// state returns the state of a stage. While a rollout waits for an approval, status.Stage is the stage after the open steps.
func (s *stage) state(status *v1alpha1.RolloutStatus) chip {
	openStep := int(status.Step)
	switch {
	case status.Phase == v1alpha1.RolloutWaiting && s.Name == status.Stage:
		return chip{toneHeld, "Waits for approval"}
	case status.Phase == v1alpha1.RolloutDone, s.last < openStep, status.Phase == v1alpha1.RolloutWaiting && s.last <= openStep:
		if s.Synced < s.Total {
			return chip{toneBusy, "Open"}
		}
		return chip{toneGood, "Done"}
	case status.Phase == v1alpha1.RolloutAborted && openStep < s.first:
		return chip{toneOff, "Not reached"}
	case openStep < s.first:
		return chip{toneOff, "Later"}
	case status.Phase == v1alpha1.RolloutAborted:
		return chip{toneFail, "Failed"}
	case status.Phase == v1alpha1.RolloutSoaking:
		return chip{toneBusy, "Soaking"}
	}
	return chip{toneBusy, "Syncing"}
}

// stageConditions returns what must be fulfilled before and after a stage, in this order.
func stageConditions(s *v1alpha1.Stage) string {
	var list []string
	if s.RequireApproval {
		list = append(list, "approval")
	}
	if d := s.Soak(); d > 0 {
		list = append(list, "runs for "+duration.HumanDuration(d.Round(time.Second)))
	}
	if s.Check() != nil {
		list = append(list, "health check")
	}
	return strings.Join(list, ", ")
}

// stageOf returns the name of the stage of a gateway, or "" if it is in none.
func stageOf(gs *v1alpha1.GatewaySync, names ...string) string {
	if s := schedule.StageOf(gs, names...); s != nil {
		return clean(s.Name, 63)
	}
	return ""
}
