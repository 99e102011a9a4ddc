package ui

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/request"
)

// rollout is how far the rollout of a commit is.
type rollout struct {
	State        chip
	Advice       Advice // why it does not go on; none while it does
	Message      string
	Step, Steps  int
	Since        moment
	Commit, From string
	Stages       []stage
	// Todo is what the user can do; Type is the command.
	Todo []todo
}

// stage is a stage of a rollout, or the gateways in no stage.
type stage struct {
	Name, Path    string
	State         chip
	Conditions    string // what the spec asks for before and after it
	Synced, Total int

	first, last int // its steps
}

type todo struct{ Text, Type string }

// newRollout returns nil if all gateways change at once.
func (s *Server) newRollout(f fleet, now moment, link func(stage string) string) *rollout {
	gs := f.spec
	o := gs.Status.Rollout
	if o == nil {
		return nil
	}
	r := &rollout{State: chip{toneWorking, clean(string(o.Phase), 32)}, Message: clean(o.Message, maxMessage), Step: int(o.Step), Steps: int(o.Steps),
		Commit: clean(request.Short(o.Commit), 7), From: clean(request.Short(o.From), 7)}
	command := func(verb string) string { return "stoker " + verb + " " + gs.Name + " --namespace " + gs.Namespace }
	switch o.Phase {
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
		r.Todo = append(r.Todo, todo{"To approve the stage:", command("approve")})
	}
	if o.Since != nil {
		r.Since = moment{o.Since.Time, now.now}
	}
	r.Stages = newStages(f, o, link)
	return r
}

// newStages returns the stages of a rollout with their gateways; none if the spec has none, or if the rollout is about other ones.
func newStages(f fleet, o *v1alpha1.RolloutStatus, link func(stage string) string) (list []stage) {
	order := f.spec.Order()
	steps := order.Steps()
	if len(steps) != int(o.Steps) || order.Stage(1) == nil {
		return nil
	}
	for i := range steps {
		if order.Opens(i + 1) {
			s := stage{Name: steps[i].Stage, Path: link(steps[i].Stage), first: i + 1}
			if is := order.Stage(i + 1); is != nil {
				s.Conditions = stageConditions(is)
			}
			list = append(list, s)
		}
		list[len(list)-1].last = i + 1
	}
	for i := range f.Gateways {
		g := &f.Gateways[i]
		step := order.StepOf(g.row.Name)
		for j := range list {
			if s := &list[j]; s.first <= step && step <= s.last {
				s.Total++
				if !g.Behind {
					s.Synced++
				}
			}
		}
	}
	for i := range list {
		list[i].State = list[i].state(o)
		if f.State.Tone == toneUnknown { // no agent confirms what the gateways run
			list[i].State = f.State
		}
	}
	if rest := &list[len(list)-1]; rest.Name == "" && rest.Total == 0 { // every gateway is in a stage
		list = list[:len(list)-1]
	}
	return list
}

// state returns how far a stage is. While a rollout waits for an approval, the stage that waits comes after the open steps.
func (s *stage) state(o *v1alpha1.RolloutStatus) chip {
	open := int(o.Step)
	switch {
	case o.Phase == v1alpha1.RolloutWaiting && s.Name == o.Stage:
		return chip{toneHeld, "Waits for approval"}
	case o.Phase == v1alpha1.RolloutDone, s.last < open, o.Phase == v1alpha1.RolloutWaiting && s.last <= open:
		if s.Synced < s.Total {
			return chip{toneWorking, "Open"}
		}
		return chip{toneGood, "Done"}
	case o.Phase == v1alpha1.RolloutAborted && open < s.first:
		return chip{toneOff, "Not reached"}
	case open < s.first:
		return chip{toneOff, "Later"}
	case o.Phase == v1alpha1.RolloutAborted:
		return chip{toneFail, "Failed"}
	case o.Phase == v1alpha1.RolloutSoaking:
		return chip{toneWorking, "Soaking"}
	}
	return chip{toneWorking, "Syncing"}
}

// stageConditions returns what a stage asks for, in the order in which it comes.
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
func stageOf(gs *v1alpha1.GatewaySync, gateway string) string {
	if s := gs.StageOf(gateway); s != nil {
		return clean(s.Name, 63)
	}
	return ""
}
