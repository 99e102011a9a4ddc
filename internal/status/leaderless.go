package status

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/failure"
)

// Leaderless is what the injector sees of a GatewaySync while no agent leads.
type Leaderless struct {
	GatewaySync *v1alpha1.GatewaySync
	// Pods are those that ask for an agent or have one, with those that terminate. Stuck of a pod may say more about it.
	Pods []Pod
	// Awaited is why an evicted pod has no successor; empty if none is missing.
	Awaited string
	// Unclaimed is why pods that ask for an agent belong to no GatewaySync; empty if there are none.
	Unclaimed string
	// Now is from the API server's clock.
	Now time.Time
}

// WithoutLead returns the status of a GatewaySync while no agent leads. Without gateways there is nothing to wait for. Otherwise the status
// waits for their agents until spec.progressDeadline, and then gives up the request. It keeps what the last lead knew of the
// gateways, except for their state, which is unknown.
func WithoutLead(l Leaderless) *v1alpha1.GatewaySyncStatus {
	gs := l.GatewaySync
	asked := desiredref.InputsOf(gs).At()
	absence, total, pods := Absent(gs, asked, l.Now), l.total(), len(l.Pods)
	if l.Awaited != "" {
		pods++
	}
	st := gs.Status.DeepCopy()
	v := verdict{status: metav1.ConditionUnknown, reason: v1alpha1.ReasonAgentsAway, message: "no agent leads; " + l.describePods()}
	if without := l.withoutAgent(); len(without) > 0 {
		v.short = nameWithReason(without[0].Name, v1alpha1.ReasonMissingSidecar, len(without)-1)
	}
	for i := range st.DiscoveredGateways {
		g := &st.DiscoveredGateways[i]
		g.SyncStatus, g.Reason, g.Message = v1alpha1.GatewayPending, v1alpha1.ReasonAgentsAway, "no agent leads"
	}
	if absence.Gone(total, pods) {
		st.DiscoveredGateways, total = nil, 0
		v = verdict{status: metav1.ConditionUnknown, reason: v1alpha1.ReasonNoGateways, message: NoGateways(gs.Name)}
		if l.Unclaimed != "" {
			v.message += "; " + l.Unclaimed
		}
		if asked != "" {
			st.LastHandledRequest = asked
		}
	}
	observe(st, gs)
	st.GatewaysReady = fmt.Sprintf("0/%d", total)
	f := l.facts(absence, st.DiscoveredGateways)
	putCondition(st, v1alpha1.ConditionSidecarInjected, sidecarInjected(f, l.podsWithoutAgent(), l.Awaited))
	putCondition(st, v1alpha1.ConditionAllGatewaysSynced, f.condition(v.status, v.reason, v.message))
	p := progressOf(f, v)
	p.write(st, f)
	if at := f.Ref.Desired.RequestedAt; p.gaveUp && at != "" {
		st.LastHandledRequest = at
	}
	st.Outcome = outcome(f, meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReady), st.LastHandledRequest)
	st.Outcome.Total = int32(total)
	st.Rollback, st.Retry, st.Approval = rollback(f, st.LastGood), retry(f), approval(f)
	return st
}

// facts returns what is known without a lead. rows are the gateways that are waited for.
func (l Leaderless) facts(absence Absence, rows []v1alpha1.DiscoveredGateway) *facts {
	gs := l.GatewaySync
	f := &facts{Seen: Seen{GatewaySync: gs, Now: l.Now, Pods: l.Pods, Rollout: gs.Status.Rollout, Invalid: lastFailure(gs)},
		last: &gs.Status, now: inSeconds(l.Now), away: &away{Absence: absence}, target: gs.Status.Target}
	f.Ref.Desired, f.Ref.Err = desiredref.Of(gs, "")
	if t := f.target; t != nil {
		f.Ref.Answered = t.RequestedAt
		f.Target = v1alpha1.SyncTargetSpec{Ref: t.Ref, Commit: t.Commit, RequestedAt: t.RequestedAt}
		moved := f.Ref.Err == nil && t.Ref != f.Ref.Desired.Ref
		f.sameTarget = !moved && f.last.ObservedGeneration == gs.Generation
		f.resolved = !moved && f.resolvedByLead() && f.Ref.Err == nil && f.Ref.Desired.CheckCommit(t.Commit) == nil
	}
	for i := range rows {
		f.fleet = append(f.fleet, gateway{DiscoveredGateway: rows[i]})
	}
	return f
}

// resolvedByLead reports whether the last lead resolved the target for the current spec. status.observedGeneration does not show it, because the
// injector writes it, too. Other pods can write a target that is not a commit.
func (f *facts) resolvedByLead() bool {
	c := f.lastCondition(v1alpha1.ConditionRefResolved)
	return c != nil && c.Status != metav1.ConditionUnknown && c.ObservedGeneration == f.GatewaySync.Generation &&
		len(f.target.Commit) == 40 && syntax.IsCommitPrefix(f.target.Commit)
}

// total returns how many gateways are known: a very large fleet has more gateways than rows.
func (l Leaderless) total() int {
	st := &l.GatewaySync.Status
	total := len(st.DiscoveredGateways)
	if _, all, _ := strings.Cut(st.GatewaysReady, "/"); total > 0 {
		if n, err := strconv.Atoi(all); err == nil {
			total = max(total, n)
		}
	}
	return total
}

// lastFailure returns what the last lead found wrong with the current spec or request, or nil: waiting for agents does not help.
func lastFailure(gs *v1alpha1.GatewaySync) error {
	last := &gs.Status
	c := meta.FindStatusCondition(last.Conditions, v1alpha1.ConditionProfilesValid)
	if c != nil && c.Status == metav1.ConditionFalse && c.ObservedGeneration == gs.Generation {
		return failure.New(v1alpha1.Reason(c.Reason), "%s", c.Message)
	}
	o := last.Outcome
	if o != nil && o.Phase == v1alpha1.OutcomeFailed && o.Failed == 0 && o.Reason != v1alpha1.ReasonProgressDeadlineExceeded &&
		last.ObservedGeneration == gs.Generation && last.ObservedRequest == desiredref.Key(gs) {
		return failure.New(o.Reason, "%s", o.Message)
	}
	return nil
}

// withoutAgent returns the pods that run without an agent.
func (l Leaderless) withoutAgent() (pods []Pod) {
	for _, p := range l.Pods {
		if !p.Ending && !p.Agent {
			pods = append(pods, p)
		}
	}
	return pods
}

// podsWithoutAgent describes the pods of withoutAgent.
func (l Leaderless) podsWithoutAgent() (labels []string) {
	for _, p := range l.withoutAgent() {
		labels = append(labels, p.label())
	}
	return labels
}

// describePods lists the pods, each with what is wrong with it.
func (l Leaderless) describePods() string {
	var live, ending []string
	for _, p := range l.Pods {
		if p.Ending {
			ending = append(ending, p.label())
		} else {
			live = append(live, p.label())
		}
	}
	switch {
	case len(live) > 0:
		return "pods: " + list(live)
	case len(ending) > 0:
		return "terminating pods: " + list(ending)
	case l.Awaited != "":
		return l.Awaited
	}
	if l.Unclaimed != "" {
		return "the pods of its gateways are gone; " + l.Unclaimed
	}
	return "the pods of its gateways are gone"
}
