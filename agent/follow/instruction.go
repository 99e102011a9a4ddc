package follow

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// instruction is a parsed and validated SyncTarget.
type instruction struct {
	sync.Target
	paused  bool
	owner   types.UID // the UID of the target's GatewaySync; "" if unknown
	problem problem
	rollout rolloutState
}

// problem is why the lead has no commit for a generation of the spec. It is zero unless an operator must act.
type problem struct {
	generation int64
	loop.Problem
}

// unresolved returns the problem of a generation of the spec, and whether there is one.
func (in *instruction) unresolved(generation int64) (loop.Problem, bool) {
	return in.problem.Problem, in.problem.Reason != "" && in.problem.generation == generation
}

// parse parses and validates a SyncTarget. The API server validates it, too, unless its validation rules were removed.
//
// The reason of the error is WaitingForLead if the lead must write the target again, and PodRestartNeeded if only a newer agent can follow
// it. Generation, paused and owner are set even with an error.
func parse(t *v1alpha1.SyncTarget) (instruction, error) {
	s := &t.Spec
	known := instruction{Target: sync.Target{Generation: s.Generation}, paused: s.Paused}
	for _, o := range t.OwnerReferences {
		if o.Kind == v1alpha1.Kind {
			known.owner = o.UID
		}
	}
	if s.MinFormat > v1alpha1.TargetFormat {
		return known, failure.New(v1alpha1.ReasonPodRestartNeeded,
			"the SyncTarget needs an agent of format %d, this one knows %d: restart the pod, so that it gets a newer agent", s.MinFormat, v1alpha1.TargetFormat)
	}
	in := known
	in.Target = sync.Target{
		Ref: s.Ref, Name: s.RefName, ForceID: s.ForceSync, ConfirmDeletion: s.ConfirmDeletion, Propose: s.Propose, Restore: s.Restore, Retry: s.Retry, WindowApproved: s.WindowApproved,
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
	for _, text := range []struct {
		field, value string
		most         int
	}{{"requestedAt", s.RequestedAt, maxRequest}, {"forceSync", s.ForceSync, maxForce}, {"propose", s.Propose, maxPropose}, {"restore", s.Restore, maxRestore},
		{"retry", s.Retry, maxRetry}} {
		if len(text.value) > text.most {
			return bad(text.field, fmt.Errorf("longer than %d bytes", text.most))
		}
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
