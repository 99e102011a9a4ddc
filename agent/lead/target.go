package lead

import (
	"k8s.io/apimachinery/pkg/api/equality"

	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// unresolved says in the target why what is wanted now has no commit. Where there never was one it also tells the agents
// which spec counts, so that they know how long a start may wait; a commit that there is stays with its own generation.
func unresolved(want *v1alpha1.SyncTargetSpec, gs *v1alpha1.GatewaySync, invalid error, ref Ref) {
	err, reason := ref.Err, failure.Reason(ref.Err, v1alpha1.ReasonGitUnreachable)
	if invalid != nil {
		err, reason = invalid, failure.Reason(invalid, v1alpha1.ReasonProfilesInvalid)
	}
	if err == nil {
		return // git is being asked: what was said last stays until it answers
	}
	want.Problem = nil
	switch class := reason.Class(); {
	case reason == v1alpha1.ReasonPodRestartNeeded: // of this very pod: the others say for themselves what they lack
	case class == v1alpha1.ClassStalled, class == v1alpha1.ClassHeld:
		want.Problem = &v1alpha1.TargetProblem{Generation: gs.Generation, Reason: reason, Message: cut(err.Error(), 512)}
	}
	if want.Commit != "" {
		return
	}
	want.Generation, want.Ref = gs.Generation, ""
	if name := ref.Desired.Ref; len(name) <= 255 {
		if _, err := repo.ParseRef(name); err == nil {
			want.Ref = name
		}
	}
}

// maxRevision is far above what is ever counted, and far below what cannot be counted on from.
const maxRevision = 1 << 53

// told makes s what is wanted, all but its lock. Whatever an agent may do something else for is another revision; why
// there is no commit is no such thing.
func told(s *v1alpha1.SyncTargetSpec, want v1alpha1.SyncTargetSpec, least int64) {
	was := *s
	*s = want
	s.Lead, s.Revision = was.Lead, was.Revision
	same := was
	same.Problem = s.Problem
	if equality.Semantic.DeepEqual(same, *s) {
		return
	}
	if s.Revision = max(was.Revision, least) + 1; s.Revision < 1 || s.Revision > maxRevision {
		s.Revision = 1
	}
}

// reported is the highest revision that agents speak of: a target that is made anew counts on from there, so that nothing
// that was said of an earlier one is taken to be about it.
func reported(reports []*v1alpha1.SyncReport) int64 {
	var most int64
	for _, r := range reports {
		if n := r.Status.Revision; n < maxRevision {
			most = max(most, n)
		}
	}
	return most
}
