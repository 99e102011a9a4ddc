package lead

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/schedule"
	"stoker.io/stoker/internal/status"
)

// begin returns the published rollout if it still fits the desired state. Otherwise it returns a new one, in which no step is open unless
// there is nothing to try out: gateways that go back to what all of them ran do not wait. fresh reports a new attempt.
func (r *rollout) begin() (t *v1alpha1.TargetRollout, fresh bool) {
	was, rules, steps := r.published.Rollout, rulesOf(r.gs), int32(len(r.order.Steps()))
	retry := annotation.Retry(r.gs)
	next := &v1alpha1.TargetRollout{Rules: rules, Order: orderOf(r.gs), Retry: retry, Steps: steps, From: r.lastGood()}
	if r.published.Commit == "" && (r.aborted(next) || r.unfinished()) {
		return next, true
	}
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
		next.Retry = retry // a retry changes nothing in a rollout that goes on
	}
	next.Open = min(max(next.Open, 0), steps)
	return next, fresh
}

// aborted makes t an aborted rollout if the status says that the rollout of this commit and spec was aborted. It is for a SyncTarget that was
// deleted while no agent led. A retry that was requested in between counts as that of the aborted rollout: it has to be requested again.
func (r *rollout) aborted(t *v1alpha1.TargetRollout) bool {
	was := r.gs.Status.Rollout
	if was == nil || was.Phase != v1alpha1.RolloutAborted || was.Commit != r.want.Commit || r.gs.Status.ObservedGeneration != r.gs.Generation {
		return false
	}
	why := was.Message
	if i := strings.LastIndex(why, "; "); i > 0 { // describeAbort adds the rest again
		why = why[:i]
	}
	t.Open = min(max(was.Step, 0), t.Steps)
	r.setFailed(t, cmp.Or(why, "the rollout was aborted"))
	return true
}

// unfinished reports whether the status has a rollout of the commit that is not done. Its settings may differ from those that ran everywhere.
func (r *rollout) unfinished() bool {
	was := r.gs.Status.Rollout
	return was != nil && was.Commit == r.want.Commit && was.Phase != v1alpha1.RolloutDone
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
