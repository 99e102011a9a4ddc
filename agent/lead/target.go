package lead

import (
	"context"
	"encoding/json"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/status"
)

// setProblem sets why the desired ref has no commit. If the target never had a commit, it also sets generation and ref, so that the agents read
// the spec, which says how long a gateway's start may wait. An existing commit keeps its own generation.
func setProblem(want *v1alpha1.SyncTargetSpec, gs *v1alpha1.GatewaySync, invalid error, ref status.Ref) {
	err, reason := ref.Err, failure.Reason(ref.Err, v1alpha1.ReasonGitUnreachable)
	if invalid != nil {
		err, reason = invalid, failure.Reason(invalid, v1alpha1.ReasonProfilesInvalid)
	}
	if err == nil {
		return // during a poll the last problem stays
	}
	want.Problem = nil
	switch class := reason.Class(); {
	case reason == v1alpha1.ReasonPodRestartNeeded: // concerns this pod only; the other agents report what they lack themselves
	case class == v1alpha1.ClassStalled, class == v1alpha1.ClassHeld:
		want.Problem = &v1alpha1.TargetProblem{Generation: gs.Generation, Reason: reason, Message: failure.Cut(err.Error(), 512)}
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

// setMoved sets the problem of a target whose ref has moved away from the requested commit since it was resolved. Gateways that have not
// taken the commit do not take it then. During a poll the last problem stays.
func setMoved(want *v1alpha1.SyncTargetSpec, is v1alpha1.SyncTargetSpec, ref status.Ref) {
	same := is.Ref == want.Ref && is.Commit == want.Commit && is.Problem != nil && is.Problem.Reason == v1alpha1.ReasonRefMoved
	if failure.Is(ref.Err, v1alpha1.ReasonRefMoved) {
		want.Problem = &v1alpha1.TargetProblem{Generation: want.Generation, Reason: v1alpha1.ReasonRefMoved, Message: failure.Cut(ref.Err.Error(), 512)}
	} else if ref.Polled || !same {
		want.Problem = nil
	}
}

// lostWrite is a write of the target whose answer was lost: the API server may have carried it out.
type lostWrite struct {
	sent    v1alpha1.SyncTargetSpec
	written func() // records that it was carried out
}

// resolveLostWrite finds out whether the last write was carried out if its answer was lost. Before that, nothing is decided: a decision from what was
// published before could differ by now, and would begin a rollout a second time or continue an aborted one.
func (t *term) resolveLostWrite(ctx context.Context) error {
	last := t.lostWrite
	if last == nil {
		return nil
	}
	if err := t.readTarget(ctx); err != nil {
		return err
	}
	t.lostWrite = nil
	is := t.target()
	if is.Lead = last.sent.Lead; equality.Semantic.DeepEqual(is, last.sent) {
		last.written()
	}
	return nil
}

// maxRevision is far above any real revision, and far below an overflow.
const maxRevision = 1 << 53

// setTarget sets s to want except for the lock. A change that syncs depend on gets a new revision. A change of the problem alone gets none,
// so that all reports stay current. Nor does an opened step of a rollout, an approval, or a request to propose: few gateways act then.
func setTarget(s *v1alpha1.SyncTargetSpec, want v1alpha1.SyncTargetSpec, least int64) {
	was := *s
	*s = want
	s.Lead, s.Revision = was.Lead, was.Revision
	same := was
	same.Problem = s.Problem
	if annotation.SameSync(was.Requests, s.Requests) {
		same.Requests = s.Requests
	}
	if was.Rollout == nil || s.Rollout == nil || was.Rollout.Back == s.Rollout.Back && s.Rollout.Revision != 0 {
		same.Rollout = s.Rollout
	}
	if !equality.Semantic.DeepEqual(same, *s) {
		if s.Revision = max(was.Revision, least) + 1; s.Revision < 1 || s.Revision > maxRevision {
			s.Revision = 1
		}
	}
	if s.Rollout != nil && s.Rollout.Revision == 0 {
		r := *s.Rollout
		r.Revision = s.Revision
		s.Rollout = &r
	}
}

// highestRevision returns the highest revision in the reports. A target that is created again continues from it, so that reports about
// the old one are not taken for reports about the new one.
func highestRevision(reports []*v1alpha1.SyncReport) int64 {
	var most int64
	for _, r := range reports {
		if n := r.Status.Revision; n < maxRevision {
			most = max(most, n)
		}
	}
	return most
}

// validate checks a spec. The error invalid means that no gateway can use it. Otherwise flawed has the error of each invalid profile, by
// name; gateways with other profiles continue.
func validate(gs *v1alpha1.GatewaySync) (flawed map[string]error, invalid error) {
	all := plan.Validate(gs)
	if len(all) == 0 {
		return nil, nil
	}
	if errs := validation.GatewaySync(gs); len(errs) > 0 {
		return nil, failure.New(v1alpha1.ReasonProfilesInvalid, "%w", errs.ToAggregate())
	}
	flawed = map[string]error{}
	single := *gs // shallow: gs keeps its profiles
	for name, p := range gs.Spec.Sync.Profiles {
		single.Spec.Sync.Profiles = map[string]v1alpha1.SyncProfile{name: p}
		if errs := plan.Validate(&single); len(errs) > 0 {
			flawed[name] = errs.ToAggregate()
		}
	}
	if len(flawed) == 0 { // no single profile causes it
		return nil, failure.New(v1alpha1.ReasonProfilesInvalid, "%w", all.ToAggregate())
	}
	return flawed, nil
}

// metadataAndStatus decodes what it can of an invalid GatewaySync: its metadata and status, so that the problem can be reported there.
func metadataAndStatus(u *unstructured.Unstructured) *v1alpha1.GatewaySync {
	gs := &v1alpha1.GatewaySync{}
	if u == nil {
		return gs
	}
	gs.Namespace, gs.Name, gs.UID = u.GetNamespace(), u.GetName(), u.GetUID()
	gs.ResourceVersion, gs.Generation = u.GetResourceVersion(), u.GetGeneration()
	gs.DeletionTimestamp, gs.Annotations = u.GetDeletionTimestamp(), u.GetAnnotations()
	if data, err := json.Marshal(u.Object["status"]); err == nil {
		_ = json.Unmarshal(data, &gs.Status) // never fails: undecodable parts go to Unread
	}
	return gs
}
