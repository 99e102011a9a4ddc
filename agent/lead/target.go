package lead

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/schedule"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/status"
)

// setProblem sets why the desired ref has no commit. If the target never had a commit, it also sets generation and ref, so that
// the agents know how long a gateway's start may wait. An existing commit keeps its own generation.
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

// unsure is a write of the target whose answer was lost: the API server may have carried it out.
type unsure struct {
	sent    v1alpha1.SyncTargetSpec
	written func() // records that it was carried out
}

// resolveLostWrite finds out whether the last write was carried out if its answer was lost. Before that, nothing is decided: a decision from what was
// published before could differ by now, and would begin a rollout a second time or continue an aborted one.
func (t *term) resolveLostWrite(ctx context.Context) error {
	last := t.unsure
	if last == nil {
		return nil
	}
	if err := t.readTarget(ctx); err != nil {
		return err
	}
	t.unsure = nil
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

// begin returns the published rollout if it still fits the desired state. Otherwise it returns a new one, in which no step is open unless
// there is nothing to try out: gateways that go back to what all of them ran do not wait. fresh reports a new attempt.
func (r *rollout) begin() (t *v1alpha1.TargetRollout, fresh bool) {
	was, rules, steps := r.published.Rollout, rulesOf(r.gs), int32(len(r.order.Steps()))
	retry := annotation.Retry(r.gs)
	next := &v1alpha1.TargetRollout{Rules: rules, Order: orderOf(r.gs), Retry: retry, Steps: steps, From: r.lastGood()}
	moved := r.want.Commit != r.published.Commit
	// An agent of another version hashes other fields. The spec of one generation is the same.
	sameRules := was == nil || was.Rules == rules || r.published.Generation == r.gs.Generation
	switch {
	case moved && (r.rollback || sameRules) && r.gs.Status.RanEverywhere(r.want.Commit), was == nil && !moved, r.first():
		next.Open, next.Done = steps, true
		return next, true
	case moved, !sameRules, was.Failed != "" && retry != was.Retry && annotation.Retries(retry, r.want.Commit):
		return next, true
	}
	order := next.Order
	next = was.DeepCopy()
	next.Rules, next.Steps, next.Order = rules, steps, order
	switch {
	case was.Done:
		next.Open = steps
	case was.Order != order && was.Failed == "": // other stages: begin with the first one
		next.Open, next.Revision, fresh = 0, 0, true
	}
	if was.Failed == "" {
		next.Retry = retry // it asks nothing of a rollout that goes on
	}
	next.Open = min(max(next.Open, 0), steps)
	return next, fresh
}

// first reports whether no gateway runs anything yet, so that a rollout protects nothing.
func (r *rollout) first() bool {
	return r.published.Commit == "" && r.gs.Status.LastGood == nil && !slices.ContainsFunc(r.gateways, func(g status.Standing) bool { return g.Commit != "" })
}

// unreported returns the gateways without what they say about the published target, because another one is about to be published.
func unreported(gateways []status.Standing) []status.Standing {
	out := slices.Clone(gateways)
	for i := range out {
		g := &out[i]
		if g.Synced, g.Stale, g.Planned = false, false, ""; !leftOut(*g) {
			g.Phase, g.Reason, g.Message = v1alpha1.GatewayPending, v1alpha1.ReasonProgressing, ""
		}
	}
	return out
}

var commitID = regexp.MustCompile(`^[0-9a-f]{40}$`)

// lastGood returns what last ran on every gateway.
func (r *rollout) lastGood() *v1alpha1.TargetCommit {
	good := r.gs.Status.LastGood
	if good == nil || !commitID.MatchString(good.Commit) || len(good.Ref) > 255 {
		return nil
	}
	from := &v1alpha1.TargetCommit{Ref: good.Ref, Commit: good.Commit}
	if r.published.Commit == good.Commit && r.published.Ref == good.Ref {
		from.RefName = r.published.RefName
	}
	return from
}

// rulesOf returns a hash of the fields that decide, besides the commit, what gateways run. The other fields, and those that say how a
// rollout goes, can change without a new rollout.
func rulesOf(gs *v1alpha1.GatewaySync) string {
	spec := gs.Spec.DeepCopy()
	spec.Git.Ref, spec.Git.AllowedRefs = "", nil
	spec.Polling, spec.Webhook, spec.Agent = v1alpha1.PollingSpec{}, v1alpha1.WebhookSpec{}, v1alpha1.AgentSpec{}
	spec.Deployment, spec.Validation, spec.Rollback, spec.AutoRollback, spec.Alerting = nil, nil, nil, nil, nil
	spec.Paused, spec.ProgressDeadline = false, ""
	return hash(spec)
}

// orderOf returns a hash of the fields that decide the step and the stage of a gateway. What the stages wait for can change without a new attempt.
func orderOf(gs *v1alpha1.GatewaySync) string {
	type stage struct {
		Name     string
		Gateways []string
	}
	var is struct {
		Steps     []schedule.Step
		Stages    []stage
		SyncOrder []v1alpha1.SyncOrderEntry
	}
	order := schedule.OrderOf(gs)
	is.Steps = order.Steps()
	for i := range is.Steps {
		if s := order.Stage(i + 1); s != nil && order.Opens(i+1) {
			is.Stages = append(is.Stages, stage{s.Name, s.Gateways})
		}
	}
	if d := gs.Spec.Deployment; d != nil {
		is.SyncOrder = d.SyncOrder
	}
	return hash(is)
}

func hash(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return "" // impossible: it was decoded from JSON
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}
