package follow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"stoker.io/stoker/agent/audit"
	"stoker.io/stoker/agent/connect"
	"stoker.io/stoker/agent/decide"
	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/propose"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
)

// Decide implements loop.Source.
func (f *Follower) Decide(ctx context.Context, changed bool) loop.Decision {
	f.pod.reload(f.Log)
	if !f.startup.state.Unseeded {
		f.updateKey()
		f.restartGateway(f.end)
	}
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

// decide returns what the SyncTarget and the GatewaySync ask for together. It obeys package decide, which knows the rules.
func (f *Follower) decide(ctx context.Context, changed bool) loop.Decision {
	f.reportTarget, f.spec.due = nil, time.Time{}
	in, gs, s := f.situation(ctx, changed)
	n := f.next(ctx, gs, &s)
	if s.Obstacle == nil {
		f.current.setDryRun(n)
	}
	wanted := in
	f.refilling = n.Refill
	var m inputs
	if n.Do == decide.Follow || n.Do == decide.DryRun {
		in.apply(n)
		var err error
		if m, err = f.prepare(ctx, gs, in); err != nil {
			p := loop.NewProblem(err, v1alpha1.ReasonProfilesInvalid)
			s.Invalid = &decide.Hold{Reason: p.Reason, Message: p.Message}
			n = decide.Next(s)
		}
		back := n.Rollback && s.MayGoBack(in.Commit)
		m.profile.DryRun, m.rollback, m.rolloutRollback, m.earlier = m.profile.DryRun || n.Do == decide.DryRun, m.rollback || back, back, n.To != nil
	}
	if n.ApplyPause {
		var kept *effective.Settings
		if n.Do == decide.KeepOnDisk {
			if settings, invalid := f.effective(gs); invalid == nil {
				kept = &settings
			}
		}
		f.current.pause(&in, kept)
	}
	switch n.Do {
	case decide.KeepOnDisk:
		n.DoNotTouch = f.keep(ctx, gs, in, n.Held)
	case decide.Follow, decide.DryRun:
		f.take(gs, m)
	}
	if in.Commit.IsZero() && s.Obstacle == nil && s.Invalid == nil && s.Paused {
		f.startup.allow("waiting for an operator: syncing is paused")
	}
	if n.ReportTarget {
		f.reportTarget = &wanted
	}
	if s.Obstacle == nil {
		f.aborted = nil
		if n.Rollback {
			f.aborted = &wanted
		}
	}
	if f.aborted != nil && n.Held == nil {
		var ofTarget bool
		if n.Held, ofTarget = f.current.wentBack(f.loop.State(), f.aborted.Commit).Report(); ofTarget {
			f.reportTarget = f.aborted
		}
	}
	d := loop.Decision{Order: f.current.order, DoNotTouch: n.DoNotTouch}
	if n.Held != nil {
		d.Problems = []loop.Problem{{Reason: n.Held.Reason, Message: n.Held.Message}}
	}
	return d
}

// situation collects what package decide needs to know. gs is the GatewaySync that the target was made from; nil if there is an obstacle.
func (f *Follower) situation(ctx context.Context, changed bool) (in instruction, gs *v1alpha1.GatewaySync, s decide.Situation) {
	s = decide.Situation{Gateway: f.Gateway, Pod: f.Pod, InForce: f.current.inForce()}
	in, s.Obstacle = f.readTarget()
	s.Paused = in.paused
	if f.listed || s.Obstacle == nil {
		if err := f.readRecord(ctx); err != nil {
			s.Obstacle = &decide.Obstacle{Hold: waiting("the last report of this gateway cannot be read: %v", err)}
			f.spec.due = f.record.retry
		}
	}
	if s.Obstacle != nil {
		return in, nil, s
	}
	gs, err := f.spec.fetch(ctx, in, changed)
	if err != nil {
		s.Obstacle = f.obstacle(err)
		return in, nil, s
	}
	settings := f.adoptStartup(gs)
	in.Requests, in.paused = f.spec.requestsFor(f.Gateway, in.Commit), in.paused || settings.Paused
	s.GatewaySync, s.Ref, s.Target, s.Rollout, s.Paused = f.spec.current(gs), in.Ref, in.Commit, in.rollout, in.paused
	if in.problem.Reason == v1alpha1.ReasonRefMoved {
		s.Moved = in.problem.Message
	}
	if p, ok := in.unresolved(gs.Generation); ok {
		s.Unresolved = &decide.Hold{Reason: p.Reason, Message: p.Message}
	}
	s.Planned = f.current.planned.outcome(in, settings, f.pod.labels)
	s.Disk, s.Earlier, s.Empty = f.volume.commit(), f.volume.earlier(), f.volume.isEmpty()
	s.Whole, s.Unsynced = f.volume.holds("", s.Disk), f.volume.unsynced()
	s.Delivered.Ref, s.Delivered.Commit = f.Engine.Record.Delivered()
	s.NewVolume, s.GaveUp = !f.startup.allowed() || f.startup.state.NewVolume, f.record.gaveUp == s.Delivered.Commit
	s.Incomplete = f.volume.incomplete(s.Delivered.Commit)
	return in, gs, s
}

// next asks package decide. If a newer GatewaySync could change the answer, next reads it and asks again.
func (f *Follower) next(ctx context.Context, gs *v1alpha1.GatewaySync, s *decide.Situation) decide.Step {
	n := decide.Next(*s)
	if n.Ask != "" && f.spec.refresh(ctx, n.Ask) {
		s.GatewaySync = f.spec.current(gs)
		n = decide.Next(*s)
	}
	return n
}

// readTarget returns the parsed SyncTarget, or why there is none that can be followed.
func (f *Follower) readTarget() (in instruction, o *decide.Obstacle) {
	f.listed = f.targets.listed()
	target, err := f.targets.get()
	switch {
	case err == nil:
		if in, err = parse(target); err == nil {
			return in, nil
		}
		p := loop.NewProblem(err, v1alpha1.ReasonWaitingForLead)
		return in, &decide.Obstacle{Hold: decide.Hold{Reason: p.Reason, Message: p.Message}, DoNotTouch: failure.Is(err, v1alpha1.ReasonPodRestartNeeded)}
	case errors.Is(err, kube.ErrNotSeen) && !f.listed:
		why, operator := f.targets.unanswered()
		if operator {
			f.startup.allow("waiting for an operator: " + why.Message)
		}
		return in, &decide.Obstacle{Hold: why}
	case errors.Is(err, kube.ErrNotSeen) && f.current.order != nil:
		return in, &decide.Obstacle{Hold: waiting("SyncTarget %s is gone: the gateway stays as it is until it exists again", f.GatewaySync), DoNotTouch: true}
	case errors.Is(err, kube.ErrNotSeen):
		return in, &decide.Obstacle{Hold: waiting("no lead has written SyncTarget %s yet", f.GatewaySync)}
	}
	return in, &decide.Obstacle{Hold: waiting("%v; the lead must write it again", err)}
}

// obstacle returns why the GatewaySync does not confirm the target.
func (f *Follower) obstacle(err error) *decide.Obstacle {
	if errors.Is(err, errGone) {
		return &decide.Obstacle{Hold: waiting("GatewaySync %s is gone: the gateway stays as it is", f.GatewaySync), DoNotTouch: true}
	}
	p := loop.NewProblem(err, v1alpha1.ReasonProgressing)
	return &decide.Obstacle{Hold: decide.Hold{Reason: p.Reason, Message: p.Message}, Short: p.Reason.Class() == v1alpha1.ClassWorking && !f.spec.unconfirmedTooLong()}
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

// prepare returns the inputs of an order for this gateway, and makes the connections for it.
func (f *Follower) prepare(ctx context.Context, gs *v1alpha1.GatewaySync, in instruction) (inputs, error) {
	eff, bad := f.effective(gs)
	pausedBySpec := eff.Paused
	eff.Paused = pausedBySpec || in.paused
	err := connect.Reachable(&gs.Spec, f.Secrets)
	if err == nil {
		err = bad
	}
	if err == nil {
		err = f.connections.update(&f.Config, gs)
	}
	if err != nil {
		return inputs{}, err
	}
	ordinal, _ := gatewaypod.Ordinal(f.Pod, f.pod.labels)
	in.WindowApproved = in.WindowApproved && hasWindow(eff.Windows, f.Gateway, f.Pod)
	var request audit.Request
	if in.Ref != gs.Spec.Git.Ref {
		request = f.spec.request
	}
	return inputs{
		request: request, pausedBySpec: pausedBySpec,
		in: in, generation: gs.Generation, profile: eff, rotated: f.rotated.Load(),
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
	if a := c.admitted; a == nil || a.remote != f.connections.Remote || a.ref != m.in.Ref || a.commit != m.in.Commit || a.earlier != m.earlier {
		c.admitted = &admission{git: gs.Spec.Git, remote: f.connections.Remote, store: f.Engine.Store, ref: m.in.Ref, commit: m.in.Commit, earlier: m.earlier}
	}
	c.inputs = m
	c.paused, _ = c.paused.Apply(m.in.pause(), m.in.paused)
	c.order = &loop.Order{
		Task: sync.Task{
			Target: m.in.Target, Profile: m.profile, Facts: m.facts, Admit: c.admitted.admit, BeforeStart: m.beforeStart, NewVolume: m.newVolume, Start: f.start(),
			RequestedRollback: m.rollback, RolloutRollback: m.rolloutRollback, Request: m.request,
			Stop: stopCheck{f.targets, &f.spec, f.effective, m.generation}.check,
		},
		GatewaySync: gs.Name, Repo: connect.RepoName(gs.Spec.Git), Connections: f.connections.Connections, Until: f.startup.until(m.beforeStart),
		ProposalSettings: f.proposals.Settings(gs, m.profile, propose.Identity{Namespace: f.Namespace, Gateway: f.Gateway}, f.Secrets, f.Remote),
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

// waiting returns a hold with the reason WaitingForLead.
func waiting(format string, a ...any) decide.Hold {
	return decide.Hold{Reason: v1alpha1.ReasonWaitingForLead, Message: fmt.Sprintf(format, a...)}
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
