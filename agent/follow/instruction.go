package follow

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/agent/decide"
	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/schedule"
	"stoker.io/stoker/internal/failure"
)

// instruction is a parsed and validated SyncTarget. Its requests are those of the GatewaySync: see specReader.
type instruction struct {
	sync.Target
	paused  bool
	hash    string    // of the requests of the GatewaySync that the target was made from
	owner   types.UID // the UID of the target's GatewaySync; "" if unknown
	problem problem
	rollout decide.Rollout
}

// problem is what the lead reports about a generation of the spec: why it has no commit, or that the ref of its commit has moved. It is zero
// unless an operator must act.
type problem struct {
	generation int64
	loop.Problem
}

// unresolved returns the problem of a generation of the spec, and whether there is one.
func (in *instruction) unresolved(generation int64) (loop.Problem, bool) {
	return in.problem.Problem, in.problem.Reason != "" && in.problem.generation == generation
}

// pause returns the pause that this target would begin or end.
func (in *instruction) pause() decide.Pause {
	return decide.Pause{Owner: in.owner, Generation: in.Generation}
}

// parse parses and validates a SyncTarget. The API server validates it, too, unless its validation rules were removed.
//
// The reason of the error is WaitingForLead if the lead must write the target again, and PodRestartNeeded if only a newer agent can follow
// it. Generation, paused and owner are set even with an error.
func parse(t *v1alpha1.SyncTarget) (instruction, error) {
	s := &t.Spec
	known := instruction{Target: sync.Target{Generation: s.Generation}, paused: s.Paused}
	for _, o := range t.OwnerReferences {
		if o.Kind == v1alpha1.KindGatewaySync {
			known.owner = o.UID
		}
	}
	if s.Format > v1alpha1.TargetFormat {
		return known, failure.New(v1alpha1.ReasonPodRestartNeeded,
			"the SyncTarget needs an agent of format %d, this one knows %d: restart the pod, so that it gets a newer agent", s.Format, v1alpha1.TargetFormat)
	}
	in := known
	in.hash = s.Requests
	in.Target = sync.Target{
		Ref: s.Ref, Name: s.RefName,
		Generation: s.Generation, Revision: max(s.Revision, 0), RequestedAt: s.RequestedAt, Term: s.Lead.Transitions,
	}
	bad := func(field string, err error) (instruction, error) {
		return known, failure.New(v1alpha1.ReasonWaitingForLead, "the SyncTarget cannot be followed: spec.%s: %w; the lead must write it again", field, err)
	}
	if s.Commit != "" {
		id, err := plan.ParseID(s.Commit)
		if err != nil {
			return bad("commit", err)
		}
		if in.Commit = id; s.Ref == "" {
			return bad("ref", errors.New("the commit has none"))
		}
	}
	for _, ref := range []struct{ field, value string }{{"ref", s.Ref}, {"refName", s.RefName}} {
		if ref.value == "" {
			continue
		}
		if _, err := repo.ParseRef(ref.value); err != nil {
			return bad(ref.field, err)
		}
	}
	if len(s.RequestedAt) > maxRequest {
		return bad("requestedAt", fmt.Errorf("longer than %d bytes", maxRequest))
	}
	var err error
	if in.rollout, err = parseRollout(s.Rollout); err != nil {
		return bad("rollout", err)
	}
	if p := s.Problem; p != nil {
		if c := p.Reason.Class(); c == v1alpha1.ClassStalled || c == v1alpha1.ClassHeld { // problems of other classes pass without an operator
			in.problem = problem{p.Generation, loop.Problem{Reason: p.Reason, Message: failure.Cut(p.Message, maxMessage)}}
		}
	}
	return in, nil
}

// parseRollout parses and validates the rollout of a SyncTarget.
func parseRollout(r *v1alpha1.TargetRollout) (decide.Rollout, error) {
	if r == nil {
		return decide.Rollout{}, nil
	}
	if r.Open < 0 || r.Steps < 1 || r.Open > r.Steps {
		return decide.Rollout{}, fmt.Errorf("%d of %d steps cannot be open", r.Open, r.Steps)
	}
	s := decide.Rollout{On: true, Done: r.Done, Rollback: r.Back, Failed: r.Failed != "", Steps: int(r.Steps), Open: int(r.Open)}
	f := r.From
	if f == nil {
		return s, nil
	}
	id, err := plan.ParseID(f.Commit)
	if err != nil {
		return decide.Rollout{}, fmt.Errorf("from: %w", err)
	}
	// the two names of one ref
	for _, name := range []string{f.Ref, f.RefName} {
		if _, err := repo.ParseRef(name); name != "" && err != nil {
			return decide.Rollout{}, fmt.Errorf("from: %w", err)
		}
	}
	s.From = decide.Origin{Ref: f.Ref, Name: f.RefName, Commit: id}
	return s, nil
}

// apply replaces the ref and the commit of an instruction by those of a step. For a refill it drops the requests, which are about the target,
// except those to propose, and keeps the snapshot that the spec names as HiddenRestore.
func (in *instruction) apply(n decide.Step) {
	if n.To == nil {
		return
	}
	in.Ref, in.Name, in.Commit = n.To.Ref, n.To.Name, n.To.Commit
	if n.Refill {
		in.Requests = annotation.Requests{Propose: in.Propose, HiddenRestore: in.RestoreOfSpec()}
	}
}

// hasWindow reports whether this gateway has maintenance windows. An approval does not change the order of a gateway without windows.
func hasWindow(windows []v1alpha1.MaintenanceWindow, gateway, pod string) bool {
	own, _ := schedule.ParseWindows(windows, gateway, pod) // the sync reports windows that are not valid
	return len(own) > 0
}
