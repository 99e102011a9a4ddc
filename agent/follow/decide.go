package follow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"stoker.io/stoker/agent/connect"
	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
)

// Decide implements loop.Source.
func (f *Follower) Decide(ctx context.Context, changed bool) loop.Decision {
	f.pod.reload(f.Log)
	f.startup.checkVolume()
	d := f.decide(ctx, changed)
	d.Order = f.started(d.Order)
	d = f.startup.holdFirstStart(ctx, d)
	f.logProblems(d.Problems)
	d.Due = earliest(d.Due, f.spec.due, f.startup.due())
	return d
}

// logProblems logs once why the gateway stays as it is.
func (f *Follower) logProblems(problems []loop.Problem) {
	if len(problems) == 0 {
		if f.logged != "" {
			f.Log.Info("following the SyncTarget again")
		}
		f.logged = ""
		return
	}
	p := problems[len(problems)-1]
	if p.Message == f.logged {
		return
	}
	f.logged = p.Message
	level := slog.LevelWarn
	if p.Reason.Class() == v1alpha1.ClassWorking {
		level = slog.LevelInfo
	}
	f.Log.Log(context.Background(), level, "the gateway stays as it is", "reason", p.Reason, "message", p.Message)
}

// decide returns what SyncTarget and GatewaySync ask for together. If one of them cannot be read or they do not match, the
// current order stays in force.
func (f *Follower) decide(ctx context.Context, changed bool) loop.Decision {
	f.reportTarget, f.spec.due, f.refilling = nil, time.Time{}, false
	stay := func(p loop.Problem) loop.Decision {
		return loop.Decision{Order: f.current.order, Problems: []loop.Problem{p}}
	}
	handsOff := func(p loop.Problem) loop.Decision {
		return loop.Decision{Order: f.current.order, HandsOff: true, Problems: []loop.Problem{p}}
	}
	in, p, leave := f.readTarget()
	if f.listed || p == nil {
		if err := f.readRecord(ctx); err != nil {
			d := stay(waiting("the last report of this gateway cannot be read: %v", err))
			d.Due = f.record.retry
			return d
		}
	}
	switch {
	case p != nil && leave:
		return handsOff(*p)
	case p != nil:
		return stay(*p)
	}
	gs, err := f.spec.fetch(ctx, in, f.targets.currentEpoch(), changed)
	if err != nil && in.paused {
		f.current.pause(&in, true)
	}
	switch {
	case errors.Is(err, errGone):
		return handsOff(waiting("GatewaySync %s is gone: the gateway stays as it is", f.GatewaySync))
	case err != nil && f.current.order != nil && failure.Reason(err, "").Class() == v1alpha1.ClassWorking && !f.spec.unconfirmedTooLong():
		return loop.Decision{Order: f.current.order} // probably short: keep reporting the last state
	case err != nil:
		return stay(loop.NewProblem(err, v1alpha1.ReasonProgressing))
	}
	in.Requests = f.spec.requestsFor(f.Gateway, in.Commit)
	wanted, passage := in, f.check(ctx, gs, in)
	if passage.dry {
		passage.held = f.current.planned.waits(in, f.adoptStartup(gs), f.pod.labels)
	}
	if !passage.dry || passage.held == nil { // the dry run, if any, is to be made
		f.current.planned = nil
	}
	f.current.setDryRun(passage.dry && passage.held == nil)
	if passage.held != nil {
		eff := f.adoptStartup(gs)
		in.paused = in.paused || eff.Paused
		f.current.pause(&in, in.paused)
		f.reportTarget = &in
		if in.paused {
			passage.hold(v1alpha1.ReasonPaused, "syncing is paused; the files on the disk stay")
		}
		if f.keep(ctx, gs, wanted, passage.held); f.lapses() {
			return handsOff(*passage.held)
		}
		return stay(*passage.held)
	}
	in = passage.in
	m, err := f.prepare(ctx, gs, in)
	m.profile.DryRun, m.rollback, m.rolloutRollback = m.profile.DryRun || passage.dry, m.rollback || passage.rollback, passage.rollback
	if err != nil {
		in.paused = m.profile.Paused
		f.current.pause(&in, in.paused)
		f.reportTarget = &in
		return stay(loop.NewProblem(err, v1alpha1.ReasonProfilesInvalid))
	}
	f.startup.setPolicy(m.profile.Startup, gs)
	if !in.Commit.IsZero() || f.current.order == nil || f.current.order.Commit.IsZero() {
		f.take(gs, m)
	} else {
		f.current.pause(&in, m.profile.Paused)
	}
	if in.Commit.IsZero() {
		if m.profile.Paused {
			f.startup.allow("waiting for an operator: syncing is paused")
		}
		if p, ok := in.unresolved(gs.Generation); ok {
			return stay(p)
		}
		return stay(waiting("no commit is known yet for the ref %q", in.Ref))
	}
	if f.refilling {
		f.reportTarget = &wanted
	}
	if passage.rollback {
		p, failed := f.current.returned(f.loop.State(), wanted.Commit)
		if p != nil || failed { // otherwise the report would attribute the outcome to the earlier target
			f.reportTarget = &wanted
		}
		if p != nil {
			return stay(*p)
		}
	}
	return loop.Decision{Order: f.current.order}
}

// check decides what this gateway may follow now: the commit that its volume lost, or what its gate lets pass.
func (f *Follower) check(ctx context.Context, gs *v1alpha1.GatewaySync, in instruction) passage {
	o, ok := f.refill(in)
	if f.refilling = ok; !ok {
		return f.passGate(ctx, gs, in)
	}
	p := passage{in: in}
	p.in.goTo(o)
	p.in.Requests = annotation.Requests{Propose: in.Propose} // the others are about the target
	return p
}

// readTarget returns the parsed SyncTarget, or why there is none that can be followed. leave is set if the gateway must then be left alone.
func (f *Follower) readTarget() (in instruction, p *loop.Problem, leave bool) {
	f.listed = f.targets.listed()
	target, err := f.targets.get()
	var why loop.Problem
	switch {
	case err == nil:
		if in, err = parse(target); err == nil {
			return in, nil, false
		}
		if in.paused {
			f.current.pause(&in, true)
		}
		leave = failure.Is(err, v1alpha1.ReasonPodRestartNeeded)
		why = loop.NewProblem(err, v1alpha1.ReasonWaitingForLead)
	case errors.Is(err, kube.ErrNotSeen) && !f.listed:
		var operator bool
		if why, operator = f.targets.unanswered(); operator {
			f.startup.allow("waiting for an operator: " + why.Message)
		}
	case errors.Is(err, kube.ErrNotSeen) && f.current.order != nil:
		leave = true
		why = waiting("SyncTarget %s is gone: the gateway stays as it is until it exists again", f.GatewaySync)
	case errors.Is(err, kube.ErrNotSeen):
		why = waiting("no lead has written SyncTarget %s yet", f.GatewaySync)
	default:
		why = waiting("%v; the lead must write it again", err)
	}
	return in, &why, leave
}

// effective returns the spec as it applies to this gateway.
func (f *Follower) effective(gs *v1alpha1.GatewaySync) (effective.Settings, error) {
	profile := f.Profile
	if live, ok := gatewaypod.Annotation(f.pod.annotations, v1alpha1.AnnotationProfile); ok && live != "" {
		profile = live
	}
	return effective.Of(gs, profile, f.pod.annotations)
}

// adoptStartup adopts what a GatewaySync says about the start of this gateway, and returns the gateway's settings as far as they are valid.
func (f *Follower) adoptStartup(gs *v1alpha1.GatewaySync) effective.Settings {
	eff, bad := f.effective(gs)
	if bad == nil {
		f.startup.setPolicy(eff.Startup, gs)
	}
	return eff
}

// prepare returns the inputs of an order for this gateway. Even with an error, profile.Paused is set.
func (f *Follower) prepare(ctx context.Context, gs *v1alpha1.GatewaySync, in instruction) (inputs, error) {
	eff, bad := f.effective(gs)
	eff.Paused = eff.Paused || in.paused
	err := connect.Reachable(&gs.Spec, f.Secrets)
	if err == nil {
		err = bad
	}
	if err == nil {
		err = f.connections.update(&f.Config, gs)
	}
	if err != nil {
		return inputs{profile: eff}, err
	}
	ordinal, _ := gatewaypod.Ordinal(f.Pod, f.pod.labels)
	in.WindowApproved = in.WindowApproved && hasWindow(eff.Windows, f.Gateway, f.Pod)
	var request sync.Request
	if in.Ref != gs.Spec.Git.Ref {
		request = f.spec.request
	}
	return inputs{
		request: request,
		in:      in, generation: gs.Generation, profile: eff, rotated: f.rotated.Load(),
		rollback:    in.Ref != gs.Spec.Git.Ref && !in.Commit.IsZero() && in.Commit == f.spec.rollback,
		beforeStart: f.startup.beforeStart(ctx, f.connections.Gateway), newVolume: f.startup.state.NewVolume,
		facts: plan.Facts{GatewayName: f.Gateway, PodName: f.Pod, PodOrdinal: ordinal, Namespace: f.Namespace, CRName: f.GatewaySync, Labels: f.pod.labels},
	}, nil
}

// take puts an order for m in force, unless the current one fits m.
func (f *Follower) take(gs *v1alpha1.GatewaySync, m inputs) {
	c := &f.current
	if c.fits(m, f.connections.Connections) {
		return
	}
	if c.order == nil || c.order.Commit != m.in.Commit || c.order.Generation != m.generation || c.order.Profile.Profile != m.profile.Profile {
		f.Log.Info("following", "gatewaysync", gs.Name, "gateway", f.Gateway, "profile", m.profile.Profile, "repo", connect.RepoName(gs.Spec.Git),
			"ref", m.in.Ref, "commit", m.in.Commit.String(), "generation", m.generation, "term", m.in.Term)
	}
	if a := c.admitted; a == nil || a.remote != f.connections.Remote || a.ref != m.in.Ref || a.commit != m.in.Commit {
		c.admitted = &admission{git: gs.Spec.Git, remote: f.connections.Remote, store: f.Engine.Store, ref: m.in.Ref, commit: m.in.Commit}
	}
	c.inputs = m
	c.order = &loop.Order{
		Task: sync.Task{
			Target: m.in.Target, Profile: m.profile, Facts: m.facts, Admit: c.admitted.admit, BeforeStart: m.beforeStart, NewVolume: m.newVolume, Start: f.start(),
			RequestedRollback: m.rollback, RolloutRollback: m.rolloutRollback, Request: m.request,
		},
		GatewaySync: gs.Name, Repo: connect.RepoName(gs.Spec.Git), Connections: f.connections.Connections, Until: f.startup.until(m.beforeStart),
		ProposalSettings: f.proposals.Settings(gs, m.profile, m.facts, f.Secrets, f.Remote),
	}
	c.order.Generation, c.order.Request.ApprovedBy = m.generation, f.spec.approvedBy(m.in.Commit)
}

// started converts an order from before the gateway's start to one for a gateway that may run, once startup allows that.
func (f *Follower) started(o *loop.Order) *loop.Order {
	if o == nil || !o.BeforeStart || !f.startup.allowed() {
		return o
	}
	after := *o
	after.BeforeStart, after.Until = false, time.Time{}
	f.current.order, f.current.inputs.beforeStart = &after, false
	return f.current.order
}

// waiting returns a problem that the lead solves.
func waiting(format string, a ...any) loop.Problem {
	return loop.Problem{Reason: v1alpha1.ReasonWaitingForLead, Message: fmt.Sprintf(format, a...)}
}

// earliest returns the earliest of times that is not zero; zero if all are.
func earliest(times ...time.Time) time.Time {
	var first time.Time
	for _, t := range times {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}
