package standalone

import (
	"context"
	"time"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/failure"
)

// target is the result of the last resolution.
type target struct {
	ref      string
	override bool
	commit   plan.ID
	name     string
	err      error
	due      time.Time
	failures int
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
		if l.target.err == nil || l.target.err.Error() != err.Error() {
			l.Log.Warn("the desired ref is not resolved; what is on the disk stays", "ref", t.ref, "reason", reason, "error", err)
		}
		l.target.ref, l.target.err = t.ref, err
		l.target.failures++
		asked, _ := repo.RetryAfter(err)
		pause := backoff.After(reason.Class(), l.target.failures, l.interval())
		if reason == v1alpha1.ReasonRefNotFound || reason == v1alpha1.ReasonAmbiguousRef || reason == v1alpha1.ReasonRefMoved {
			// Git answers, and the missing ref may be pushed soon: retry at least as often as a branch is polled.
			pause = backoff.Retry(l.target.failures, l.interval())
		}
		l.target.due = l.Now().Add(max(pause, min(asked, backoff.MaxRetryAfter)))
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

// never is the due time of something that only an event can trigger.
const never = 10 * 365 * 24 * time.Hour

// ask resolves the desired ref. If a request is in force only while spec.git.ref points to a certain commit, it
// resolves that ref, too.
func (l *Loop) resolveDesired(ctx context.Context) (target, error) {
	lookup := func(name string) (repo.Resolution, error) {
		ref, err := repo.ParseRef(name)
		if err != nil {
			return repo.Resolution{}, err
		}
		return l.spec.connections.Remote.Resolve(ctx, ref)
	}
	gs := l.spec.gs
	want, err := v1alpha1.DesiredRef(gs, "")
	if err == nil && want.ResolveSpec {
		at, lookupErr := lookup(gs.Spec.Git.Ref)
		if lookupErr != nil {
			return target{ref: gs.Spec.Git.Ref}, lookupErr
		}
		want, err = v1alpha1.DesiredRef(gs, at.Commit.String())
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
	d, err := l.spec.gs.Spec.Polling.Period()
	if err != nil {
		return v1alpha1.DefaultPollingInterval
	}
	return d
}

// polled reports whether the ref can move, and polling is enabled. A commit cannot move.
func isPolled(gs *v1alpha1.GatewaySync, name string) bool {
	ref, err := repo.ParseRef(name)
	_, fixed := ref.Commit()
	return gs.Spec.Polling.IsEnabled() && err == nil && !fixed
}
