package lead

import (
	"context"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/status"
)

// rolling is what a term remembers of a rollout. Another lead does not know it, and at most waits longer.
type rolling struct {
	decision  progress // the last decision whose target is written
	decidedOn v1alpha1.SyncTargetSpec
	decided   bool // this term has written a decision, with the target decidedOn
	failing   map[installed]time.Time
	stale     map[installed]time.Time
	due       time.Time // when the decision may change by itself; zero for never

	health    health
	probing   bool
	nextProbe time.Time // when the next health check is due
	results   chan probe
}

// recordDecision records a decision whose target is written. What failed before a new attempt does not count in it.
func (r *rolling) recordDecision(p progress, target v1alpha1.SyncTargetSpec) {
	r.decision, r.decidedOn, r.decided = p, target, true
	if p.fresh {
		r.failing = nil
	}
}

// status returns how far the rollout of the published target is. Until this term has written a target, it is what the previous lead reported.
func (r *rolling) status(gs *v1alpha1.GatewaySync) *v1alpha1.RolloutStatus {
	if !r.decided {
		return gs.Status.Rollout.DeepCopy()
	}
	return r.decision.status
}

func (r *rolling) recordProbe(p probe, now time.Time) {
	r.probing, r.nextProbe = false, now.Add(probeEvery)
	if p.step != r.health.step {
		return
	}
	r.health.ok, r.health.lastProblem = p.err == nil, ""
	if p.err == nil {
		r.health.failures = 0
		return
	}
	r.health.failures++
	r.health.lastProblem = failure.Cut(p.err.Error(), 200)
}

// recordFailing records since when gateways report errors, or have not answered.
func (r *rolling) recordFailing(gateways []status.Standing, now time.Time) {
	r.failing = since(r.failing, gateways, now, func(g status.Standing) bool {
		return g.Phase == v1alpha1.GatewayError && g.Reason.Cause() != v1alpha1.CauseGit
	})
	r.stale = since(r.stale, gateways, now, func(g status.Standing) bool { return g.Stale })
}

// installed is a gateway with the commit on its disk. A failure with another commit is a new one: the agent may report no other state in between.
type installed struct{ gateway, commit string }

func installedOn(g status.Standing) installed { return installed{g.Name, g.Commit} }

// since returns when each gateway entered the state that inState describes. was is the last result.
func since(was map[installed]time.Time, gateways []status.Standing, now time.Time, inState func(status.Standing) bool) map[installed]time.Time {
	is := map[installed]time.Time{}
	for _, g := range gateways {
		if !inState(g) {
			continue
		}
		key := installedOn(g)
		if is[key] = now; !was[key].IsZero() {
			is[key] = was[key]
		}
	}
	return is
}

// roll decides how far the gateways may follow want, and sends a health check if one is due. An invalid spec changes nothing, so that no
// gateway gets a commit past stages that cannot be read. A spec whose ref has no commit yet changes nothing either.
func (t *term) roll(ctx context.Context, gs *v1alpha1.GatewaySync, invalid error, ref status.Ref, is v1alpha1.SyncTargetSpec, want *v1alpha1.SyncTargetSpec) progress {
	t.rolling.due = time.Time{}
	if t.rolling.decided { // another writer may have changed the target
		is = t.rolling.decidedOn
	}
	switch {
	case invalid == nil && gs.InSteps() && len(validation.GatewaySync(gs)) > 0, invalid != nil && is.Rollout != nil,
		want.Commit != "" && want.Generation != gs.Generation:
		if want.Commit != "" {
			want.Generation, want.Ref, want.RefName, want.Commit, want.ResolvedAt = is.Generation, is.Ref, is.RefName, is.Commit, is.ResolvedAt
		}
		want.Rollout = is.Rollout
		return progress{target: is.Rollout, status: t.rolling.status(gs)}
	case invalid != nil || !gs.InSteps():
		want.Rollout = nil
		return progress{}
	}
	reports, unreadable := t.reports()
	gateways := status.Standings(status.Seen{GatewaySync: gs, Target: is, Reports: reports, Unreadable: unreadable, Pods: t.pods(), Sole: t.sole(ctx)})
	now := t.stamp()
	t.rolling.recordFailing(gateways, now)
	seen := *gs
	if t.rolling.decided { // the status may be a second behind, and say that another attempt soaked
		seen.Status.Rollout = t.rolling.decision.status
	}
	p := advance(observed{gs: &seen, stale: t.rolling.stale, published: is, want: *want, rollback: ref.Desired.GoesBack(want.Commit, gs.Status.RanEverywhere), gateways: gateways,
		failing: t.rolling.failing, health: t.rolling.health, now: now})
	want.Rollout = p.target
	if !p.again.IsZero() {
		t.rolling.due = t.now().Add(p.again.Sub(now))
	}
	t.probe(ctx, p)
	return p
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}
