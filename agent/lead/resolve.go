package lead

import (
	"context"
	"errors"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/status"
)

// resolved is a commit and what it was resolved from.
type resolved struct {
	git, ref, name, commit string
	requestedAt            string
}

// resolve returns what is known of the desired ref, and starts a poll if one is due. The question is zero if no poll is needed.
func (t *term) resolve(ctx context.Context, gs *v1alpha1.GatewaySync, invalid error) (status.Ref, question) {
	if invalid != nil && gs.Spec.Git.Repo == "" {
		return status.Ref{Polled: true, Answered: t.answeredRequest}, question{}
	}
	if !t.requestRead {
		t.request, t.requestRead = gs.Status.Request.DeepCopy(), true
		t.answeredRequest = t.target().RequestedAt
		if s := gs.Status.Target; s != nil && s.RequestedAt != "" {
			t.answeredRequest = s.RequestedAt
		}
	}
	seen := *gs
	seen.Status.Request = t.request
	a := gs.Annotations
	q := question{git: gitOf(gs), request: strings.Join([]string{a[v1alpha1.AnnotationRequestedRef], a[v1alpha1.AnnotationRequestedOver],
		a[v1alpha1.AnnotationRequestedUnless], a[v1alpha1.AnnotationRequestedCommit]}, "\n")}
	specCommit := ""
	if t.lastPoll.question.same(q) {
		specCommit = t.lastPoll.specCommit
	}
	want, err := desiredref.Of(&seen, specCommit)
	if err != nil {
		return status.Ref{Err: err, Polled: true, Answered: t.answeredRequest}, question{}
	}
	q.requestedAt, q.rotated = want.RequestedAt, t.rotated()
	t.request = want.Status()
	seen.Status.Request = t.request

	parsed, err := repo.ParseRef(want.Ref)
	if err != nil {
		return status.Ref{Desired: want, Err: err, Polled: true, Answered: want.RequestedAt}, question{}
	}
	commit, fixed := parsed.Commit()
	if fixed && !want.Override {
		t.resolved = resolved{git: q.git, ref: want.Ref, commit: commit.String(), requestedAt: want.RequestedAt}
		t.answeredRequest = want.RequestedAt
		return status.Ref{Desired: want, Polled: true, Answered: t.answeredRequest}, question{}
	}
	t.inherit(gs, q, want)
	if err := t.eligible(gs); err != nil {
		return status.Ref{Desired: want, Err: err, Polled: true, Answered: t.answeredRequest}, question{}
	}
	now := t.now()
	polled := gs.Spec.Polling.IsEnabled() && (!fixed || want.ResolveSpec)
	if polled && t.schedule.began.IsZero() && t.answered(gs, want) {
		t.schedule.inherit(q, interval(gs), now)
	}
	t.schedule.setInterval(interval(gs), polled, now)
	if t.schedule.running && !q.same(t.schedule.lastQuestion) && syntax.IsRegistry(gs.Spec.Git.Repo) {
		t.abandonPoll() // a download can take half an hour, and another ref is desired now
	}
	if at := t.schedule.next(q, now); !at.IsZero() && !now.Before(at) {
		t.schedule.begin(q, now)
		asked, cancel := context.WithCancel(ctx)
		t.abandonPoll = cancel
		t.polling.Go(func() {
			f := t.poll(asked, &seen, q)
			f.abandoned = asked.Err() != nil
			cancel()
			t.polls <- f
		})
	}
	ref := status.Ref{Desired: want, Answered: t.answeredRequest, Polling: t.schedule.running}
	if t.lastPoll.question.same(q) && t.lastPoll.question != (question{}) {
		ref.Polled, ref.Err = true, t.lastPoll.err
		ref.HostKey = t.lastPoll.err == nil && status.OverSSH(gs.Spec.Git.Repo)
	}
	return ref, q
}

// inherit adopts the commit of an earlier lead if it was resolved from the same ref.
func (t *term) inherit(gs *v1alpha1.GatewaySync, q question, want desiredref.Desired) {
	if t.resolved.git == q.git && t.resolved.ref == want.Ref {
		return
	}
	if is := t.target(); is.Generation == gs.Generation && is.Ref == want.Ref && is.Commit != "" {
		t.resolved = resolved{git: q.git, ref: is.Ref, name: is.RefName, commit: is.Commit, requestedAt: is.RequestedAt}
	}
}

// answered reports whether an earlier lead has polled git for all that gs asks, with success. Of a request for another ref that is not known.
func (t *term) answered(gs *v1alpha1.GatewaySync, want desiredref.Desired) bool {
	is, c := t.target(), meta.FindStatusCondition(gs.Status.Conditions, v1alpha1.ConditionRefResolved)
	return !want.Override && !want.ResolveSpec && is.Commit != "" && is.Ref == want.Ref && is.Generation == gs.Generation && is.Problem == nil &&
		is.RequestedAt == want.RequestedAt && is.Requests == annotation.Hash(gs) &&
		c != nil && c.Status == metav1.ConditionTrue && c.ObservedGeneration == gs.Generation
}

// interval returns the polling interval. An invalid one is reported with the spec; the default applies meanwhile.
func interval(gs *v1alpha1.GatewaySync) time.Duration {
	d, err := effective.PollingInterval(&gs.Spec.Polling)
	if err != nil {
		return v1alpha1.DefaultPollingInterval
	}
	return d
}

// recordPoll records the result of a poll.
func (t *term) recordPoll(f pollResult) {
	if f.abandoned {
		t.schedule.running = false
		return
	}
	gs, err := t.view()
	if errors.Is(err, errGone) {
		return
	}
	reason := v1alpha1.ReasonRefResolved
	var away time.Duration
	if f.err != nil {
		reason = failure.Reason(f.err, v1alpha1.ReasonGitUnreachable)
		away, _ = repo.RetryAfter(f.err)
	}
	t.metrics.Resolved(string(reason), f.took)
	before := t.lastPoll
	t.lastPoll = f
	if f.err == nil {
		t.resolved = resolved{git: f.question.git, ref: f.desired, name: f.name, commit: f.commit, requestedAt: f.question.requestedAt}
	}
	// If the ref has moved away from the requested commit, the gateways keep what they run.
	if f.refused != "" && t.request != nil && (t.resolved.ref != f.desired || t.resolved.commit != f.wanted) {
		t.request.Refused = f.refused
	}
	if f.question.requestedAt != "" {
		t.answeredRequest = f.question.requestedAt
	}
	switch {
	case f.err != nil && (before.err == nil || failure.Reason(before.err, v1alpha1.ReasonGitUnreachable) != reason):
		t.log.Warn("the desired ref is not resolved", "reason", reason, "error", f.err)
	case f.err == nil && (before.err != nil || before.commit != f.commit || before.desired != f.desired):
		t.log.Info("resolved", "ref", f.desired, "commit", f.commit, "duration", f.took.Round(time.Millisecond).String(), "requestedAt", f.question.requestedAt)
	}
	ref, err := repo.ParseRef(f.desired)
	_, fixed := ref.Commit()
	polled := gs.Spec.Polling.IsEnabled() && (err != nil || !fixed || f.specCommit != "")
	t.schedule.end(reason, away, interval(gs), polled, t.now())
}
