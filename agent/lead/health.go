package lead

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/httpclient"
	"stoker.io/stoker/internal/status"
)

// probeEvery is the time between two health checks.
const probeEvery = 5 * time.Second

// maxHealthAnswer bounds the body of an answer, which nothing reads.
const maxHealthAnswer = 1 << 20

// probe is the result of one health check.
type probe struct {
	step string // see progress.probe
	err  error
}

// rolling is what a term remembers of a rollout. Another lead does not know it, and at most waits longer.
type rolling struct {
	decision  progress // the last decision whose target is written
	decidedOn v1alpha1.SyncTargetSpec
	decided   bool // this term has written a decision, with the target decidedOn
	failing   map[string]time.Time
	stale     map[string]time.Time
	due       time.Time // when the decision may change by itself; zero for never

	health    health
	probing   bool
	nextProbe time.Time // when the next health check is due
	results   chan probe
}

// recordDecision records a decision whose target is written.
func (r *rolling) recordDecision(p progress, target v1alpha1.SyncTargetSpec) {
	r.decision, r.decidedOn, r.decided = p, target, true
}

// status returns how far the rollout of the published target is. Until this term has written a target, it is what the lead before it said.
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

// since returns, by name, when each gateway entered the state that inState describes. was is the last result.
func since(was map[string]time.Time, gateways []status.Standing, now time.Time, inState func(status.Standing) bool) map[string]time.Time {
	is := map[string]time.Time{}
	for _, g := range gateways {
		if !inState(g) {
			continue
		}
		if is[g.Name] = now; !was[g.Name].IsZero() {
			is[g.Name] = was[g.Name]
		}
	}
	return is
}

// roll decides how far the gateways may follow want, and sends a health check if one is due. A spec that is not valid changes nothing: no
// gateway gets a commit past the stages because they cannot be read.
func (t *term) roll(ctx context.Context, gs *v1alpha1.GatewaySync, invalid error, ref status.Ref, is v1alpha1.SyncTargetSpec, want *v1alpha1.SyncTargetSpec) progress {
	t.rolling.due = time.Time{}
	switch {
	case invalid == nil && gs.InSteps() && len(validation.GatewaySync(gs)) > 0, invalid != nil && is.Rollout != nil:
		if want.Commit != "" {
			want.Generation, want.Ref, want.RefName, want.Commit, want.ResolvedAt = is.Generation, is.Ref, is.RefName, is.Commit, is.ResolvedAt
		}
		return progress{target: is.Rollout, status: gs.Status.Rollout}
	case invalid != nil || !gs.InSteps():
		want.Rollout = nil
		return progress{}
	case t.rolling.decided: // another writer may have changed the target
		is = t.rolling.decidedOn
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

// probe sends the health check of a decision if it is due.
func (t *term) probe(ctx context.Context, p progress) {
	r := &t.rolling
	if p.check == nil {
		return
	}
	if r.health.step != p.probe {
		r.health, r.nextProbe = health{step: p.probe}, time.Time{}
	}
	if r.probing {
		return
	}
	if now := t.now(); now.Before(r.nextProbe) {
		r.due = earlier(r.due, r.nextProbe)
		return
	}
	r.probing = true
	check, step, results := *p.check, p.probe, r.results
	t.polling.Go(func() { results <- probe{step, send(ctx, check)} })
}

// send sends a health check. The answer counts by its status alone.
func send(ctx context.Context, c v1alpha1.HealthCheck) error {
	client := httpclient.Client{CA: []byte(c.CABundle), InsecureSkipVerify: c.InsecureSkipVerify, Timeout: c.TimeoutDuration(), MaxAnswer: maxHealthAnswer}
	answer, err := client.Do(ctx, http.MethodGet, c.URL, nil, nil)
	if err != nil {
		return err
	}
	if answer.Status != int(c.ExpectedStatus) {
		return fmt.Errorf("the answer has status %d instead of %d", answer.Status, c.ExpectedStatus)
	}
	return nil
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// lockWatch is the state of the lock as this agent's watch shows it. Times are from its own clock, because those of other nodes may
// be wrong.
type lockWatch struct {
	identity string
	now      func() time.Time

	mu      sync.Mutex
	listed  bool                 // something is known
	target  *v1alpha1.SyncTarget // nil for none
	since   time.Time            // when the lock record last changed
	atLeast time.Duration        // how long it is valid from then on, if the record says less
	changed chan struct{}
}

func newLockWatch(identity string, now func() time.Time) *lockWatch {
	return &lockWatch{identity: identity, now: now, since: now(), changed: make(chan struct{}, 1)}
}

// saw records what the watch shows. Any change of the lock record counts as a renewal.
func (s *lockWatch) saw(t *v1alpha1.SyncTarget) {
	s.mu.Lock()
	if s.target == nil || t == nil || !equality.Semantic.DeepEqual(s.target.Spec.Lead, t.Spec.Lead) {
		s.since, s.atLeast = s.now(), 0
	}
	s.target, s.listed = t, true
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// extend lets the lock be valid for d since its last renewal. The next renewal counts as usual.
func (s *lockWatch) extend(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.atLeast = d
}

// lockState is the state of the lock at one moment.
type lockState struct {
	target *v1alpha1.SyncTarget
	free   bool
	// heldByOther means that another agent holds the lock.
	heldByOther bool
	// expiresIn is the time until the lock expires unless it is renewed.
	expiresIn time.Duration
}

// state returns the state of the lock now. Before the watch has shown anything, the lock is neither free nor held.
func (s *lockWatch) state() lockState {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := lockState{target: s.target, expiresIn: time.Hour} // a change of the lock ends a wait earlier
	if !s.listed {
		return st
	}
	if s.target == nil || s.target.Spec.Lead.Holder == "" {
		st.free = true
		return st
	}
	st.expiresIn = s.since.Add(max(s.target.Spec.Lead.ValidFor(), s.atLeast)).Sub(s.now())
	st.free = st.expiresIn <= 0
	st.heldByOther = !st.free && s.target.Spec.Lead.Holder != s.identity
	return st
}
