package follow

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// instruction is a parsed and verified SyncTarget.
type instruction struct {
	sync.Target
	paused  bool
	owner   types.UID // the UID of the target's GatewaySync; "" if unknown
	problem problem
	gates   gates
}

// problem is why the lead has no commit for a generation of the spec, if an operator must act. The zero value means unknown.
type problem struct {
	generation int64
	loop.Problem
}

// unresolved returns why there is no commit for a generation of the spec.
func (in *instruction) unresolved(generation int64) (loop.Problem, bool) {
	return in.problem.Problem, in.problem.Reason != "" && in.problem.generation == generation
}

// read parses and verifies a SyncTarget. The API server has verified it, too, unless its validation rules were removed.
//
// The error is WaitingForLead if the lead must write the target again, and PodRestartNeeded if only a newer agent can follow
// it. The fields generation, paused and owner are set even with an error.
func read(t *v1alpha1.SyncTarget) (instruction, error) {
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
		in.Commit = id
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
	if in.gates, err = readGates(s.Rollout); err != nil {
		return bad("rollout", err)
	}
	if p := s.Problem; p != nil { // other reasons pass by themselves
		if c := p.Reason.Class(); c == v1alpha1.ClassStalled || c == v1alpha1.ClassHeld {
			in.problem = problem{p.Generation, loop.Problem{Reason: p.Reason, Message: clip(p.Message, maxMessage)}}
		}
	}
	return in, nil
}

func equal(a, b *v1alpha1.SyncTargetSpec) bool { return equality.Semantic.DeepEqual(a, b) }
