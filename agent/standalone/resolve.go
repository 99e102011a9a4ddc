package standalone

import (
	"context"
	"sync"
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
	override bool    // a request replaces spec.git.ref
	moves    bool    // the desired ref, or the ref of the spec that its request depends on, can move
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
	if t.moves && l.spec.gs.Spec.Polling.IsEnabled() {
		l.target.due = l.Now().Add(backoff.Jitter(effective.PollingInterval(&l.spec.gs.Spec.Polling)))
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
		l.Log.Warn("the desired ref is not resolved", "ref", ref, "reason", reason, "error", err)
	}
	t.ref, t.err = ref, err
	t.failures++
	pause := backoff.After(reason.Class(), t.failures, effective.PollingInterval(&l.spec.gs.Spec.Polling))
	if reason == v1alpha1.ReasonRefNotFound || reason == v1alpha1.ReasonAmbiguousRef || reason == v1alpha1.ReasonRefMoved {
		// Git answers, and a push may correct its refs soon: retry at least as often as a branch is polled.
		pause = backoff.Retry(t.failures, effective.PollingInterval(&l.spec.gs.Spec.Polling))
	}
	asked, _ := backoff.Asked(err)
	t.due = l.Now().Add(max(pause, asked))
}

// resolveDesired resolves the desired ref with one request of all refs, or without a request if only commits are named. It records in the
// status what the next desiredref.Resolve must know of a user's request for a ref; a restart loses this.
func (l *Loop) resolveDesired(ctx context.Context) (target, error) {
	gs := l.spec.gs
	refs := sync.OnceValues(func() (*repo.Refs, error) { return l.spec.connections.Remote.Refs(ctx) })
	want, _, err := desiredref.Resolve(gs, func(name string) (string, error) {
		all, err := refs()
		if err != nil {
			return "", err
		}
		return all.Commit(name)
	})
	if err != nil && want == (desiredref.Desired{}) {
		return target{ref: gs.Annotations[v1alpha1.AnnotationRequestedRef]}, err
	}
	gs.Status.Request = want.Status()
	t := target{ref: want.Ref, override: want.Override, moves: moves(want.Ref) || want.ResolveSpec && moves(gs.Spec.Git.Ref)}
	if err != nil {
		return t, err
	}
	if want.RefusedCommit != "" {
		return t, want.CheckCommit(want.RefusedCommit)
	}
	at, err := lookup(refs, want.Ref)
	if err != nil {
		return t, err
	}
	t.commit, t.name = at.Commit, at.Ref
	if err := want.CheckCommit(at.Commit.String()); err != nil {
		// If the request is carried out and its ref moves away later, the gateway keeps what it runs, and the request is not refused.
		if o := l.order; o == nil || o.Ref != want.Ref || o.Commit.String() != want.Commit {
			gs.Status.Request.Refused = want.Refuse(at.Commit.String())
		}
		return t, err
	}
	return t, nil
}

// lookup finds the commit of a ref. It calls refs only if the ref is not a commit.
func lookup(refs func() (*repo.Refs, error), name string) (repo.Resolution, error) {
	ref, err := repo.ParseRef(name)
	if err != nil {
		return repo.Resolution{}, err
	}
	if commit, fixed := ref.Commit(); fixed {
		return repo.Resolution{Commit: commit}, nil
	}
	all, err := refs()
	if err != nil {
		return repo.Resolution{}, err
	}
	return all.Resolve(ref)
}

// moves reports whether a ref can move. A commit cannot.
func moves(name string) bool {
	ref, err := repo.ParseRef(name)
	_, fixed := ref.Commit()
	return err == nil && !fixed
}
