package standalone

import (
	"context"
	"time"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/failure"
)

// target is the result of the last resolution.
type target struct {
	ref      string  // the desired ref
	override bool    // a request is in force
	commit   plan.ID // of the last success
	name     string  // the full name of the ref that commit is the tip of
	err      error
	due      time.Time // when to resolve again
	failures int       // in a row
}

// resolve resolves the desired ref when due.
func (l *Loop) resolve(ctx context.Context) {
	if !l.target.due.IsZero() && l.Now().Before(l.target.due) {
		return
	}
	started := l.Now()
	t, err := l.resolveDesired(ctx)
	d := l.Now().Sub(started)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		reason := failure.Reason(err, v1alpha1.ReasonGitUnreachable)
		l.Metrics.Resolved(string(reason), d)
		l.recordFailure(t.ref, reason, err)
		return
	}
	l.Metrics.Resolved(string(v1alpha1.ReasonRefResolved), d)
	if t.commit != l.target.commit || t.ref != l.target.ref {
		l.Log.Info("resolved", "ref", t.ref, "commit", t.commit.String(), "override", t.override)
	}
	l.target = t
	if isPolled(l.spec.gs, t.ref) {
		l.target.due = l.Now().Add(backoff.Jitter(l.interval()))
	} else {
		l.target.due = l.Now().Add(never)
	}
}

// never is the pause before something that only an event can trigger.
const never = 10 * 365 * 24 * time.Hour

// recordFailure keeps the last commit, and determines when to resolve again.
func (l *Loop) recordFailure(ref string, reason v1alpha1.Reason, err error) {
	t := &l.target
	if t.err == nil || t.err.Error() != err.Error() {
		l.Log.Warn("the desired ref is not resolved; what is on the disk stays", "ref", ref, "reason", reason, "error", err)
	}
	t.ref, t.err = ref, err
	t.failures++
	pause := backoff.After(reason.Class(), t.failures, l.interval())
	if reason == v1alpha1.ReasonRefNotFound || reason == v1alpha1.ReasonAmbiguousRef || reason == v1alpha1.ReasonRefMoved {
		// Git answers, and the missing ref may be pushed soon: retry at least as often as a branch is polled.
		pause = backoff.Retry(t.failures, l.interval())
	}
	retryAfter, _ := repo.RetryAfter(err)
	t.due = l.Now().Add(max(pause, min(retryAfter, backoff.MaxRetryAfter)))
}

// resolveDesired resolves the desired ref. If a request is in force only while spec.git.ref points to a certain commit, it
// resolves spec.git.ref, too.
func (l *Loop) resolveDesired(ctx context.Context) (target, error) {
	lookup := func(name string) (repo.Resolution, error) {
		ref, err := repo.ParseRef(name)
		if err != nil {
			return repo.Resolution{}, err
		}
		return l.spec.connections.Remote.Resolve(ctx, ref)
	}
	gs := l.spec.gs
	want, err := desiredref.Of(gs, "")
	if err == nil && want.ResolveSpec {
		spec, lookupErr := lookup(gs.Spec.Git.Ref)
		if lookupErr != nil {
			return target{ref: gs.Spec.Git.Ref}, lookupErr
		}
		want, err = desiredref.Of(gs, spec.Commit.String())
	}
	if err != nil {
		return target{ref: gs.Annotations[v1alpha1.AnnotationRequestedRef]}, err
	}
	gs.Status.Request = &v1alpha1.RequestStatus{Over: want.Over, Lapsed: want.Lapsed}
	res, err := lookup(want.Ref)
	if err == nil {
		err = want.CheckCommit(res.Commit.String())
	}
	return target{ref: want.Ref, override: want.Override, commit: res.Commit, name: res.Ref}, err
}

// interval returns the polling interval of a moving ref. The spec is already validated.
func (l *Loop) interval() time.Duration {
	d, err := effective.PollingInterval(&l.spec.gs.Spec.Polling)
	if err != nil {
		return v1alpha1.DefaultPollingInterval
	}
	return d
}

// isPolled reports whether the ref can move, and polling is enabled. A commit cannot move.
func isPolled(gs *v1alpha1.GatewaySync, name string) bool {
	ref, err := repo.ParseRef(name)
	_, fixed := ref.Commit()
	return gs.Spec.Polling.IsEnabled() && err == nil && !fixed
}
