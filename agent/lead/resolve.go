package lead

import (
	"context"
	"encoding/json"
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
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/status"
)

// resolved is a commit and what it was resolved from.
type resolved struct {
	git, ref, name, commit string
	requestedAt            string
}

// resolve returns what is known of the desired ref, and the question (what a poll depends on), which is zero if no poll is needed. If a poll is
// due, it starts one.
func (t *term) resolve(ctx context.Context, gs *v1alpha1.GatewaySync, invalid error) (status.Ref, question) {
	if invalid != nil && gs.Spec.Git.Repo == "" {
		return status.Ref{Polled: true, Answered: t.answeredRequest}, question{}
	}
	if !t.requestRead { // at the start of a term: what the earlier lead knew
		t.request, t.requestRead = gs.Status.Request.DeepCopy(), true
		t.answeredRequest = t.target().RequestedAt
		if s := gs.Status.Target; s != nil && s.RequestedAt != "" {
			t.answeredRequest = s.RequestedAt
		}
	}
	seen := *gs // with status.request as this lead computed it last
	seen.Status.Request = t.request
	a := gs.Annotations
	q := question{git: gitOf(gs), request: strings.Join([]string{a[v1alpha1.AnnotationRequestedRef], a[v1alpha1.AnnotationRequestedOver],
		a[v1alpha1.AnnotationRequestedUnless], a[v1alpha1.AnnotationRequestedCommit]}, "\n")}
	specCommit := "" // the commit of spec.git.ref, if the last poll asked for it
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
	if fixed && !want.Override { // a commit id in the spec needs no git
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
		t.schedule.inherit(q, effective.PollingInterval(&gs.Spec.Polling), now)
	}
	t.schedule.setInterval(effective.PollingInterval(&gs.Spec.Polling), polled, now)
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

// answered reports whether an earlier lead has polled git for all that gs asks, with success. For a request for another ref, that is not known.
func (t *term) answered(gs *v1alpha1.GatewaySync, want desiredref.Desired) bool {
	is, c := t.target(), meta.FindStatusCondition(gs.Status.Conditions, v1alpha1.ConditionRefResolved)
	return !want.Override && !want.ResolveSpec && is.Commit != "" && is.Ref == want.Ref && is.Generation == gs.Generation && is.Problem == nil &&
		is.RequestedAt == want.RequestedAt && is.Requests == annotation.Hash(gs) &&
		c != nil && c.Status == metav1.ConditionTrue && c.ObservedGeneration == gs.Generation
}

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
	retryAfter, _ := backoff.Asked(f.err)
	if f.err != nil {
		reason = failure.Reason(f.err, v1alpha1.ReasonGitUnreachable)
	}
	t.metrics.Resolved(string(reason), f.took)
	before := t.lastPoll
	t.lastPoll = f
	if f.err == nil {
		t.resolved = resolved{git: f.question.git, ref: f.desired, name: f.name, commit: f.commit, requestedAt: f.question.requestedAt}
	}
	// The ref is not at the commit that the request names, so the request is refused for good. If the ref was resolved to that commit before,
	// it has only moved since: the request is not refused, and the gateways keep what they run.
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
	t.schedule.end(reason, retryAfter, effective.PollingInterval(&gs.Spec.Polling), polled, t.now())
}

// Time limits of one poll, including the proof that a commit belongs to an allowed ref.
const (
	maxGitPoll  = 5 * time.Minute
	maxDownload = 30 * time.Minute // of a registry: the commit of an artifact follows from its layer
)

// pollLimit returns the time limit of a poll of a repository, and the error of one that takes longer.
func pollLimit(address string) (time.Duration, error) {
	if syntax.IsRegistry(address) {
		return maxDownload, failure.New(v1alpha1.ReasonGitTimeout, "the layer did not arrive within %s; trying again", maxDownload)
	}
	return maxGitPoll, failure.New(v1alpha1.ReasonGitTimeout, "git did not answer within %s; trying again", maxGitPoll)
}

// pollResult is the result of a poll.
type pollResult struct {
	question question
	// specCommit is the commit of spec.git.ref, if the request depends on it.
	specCommit string
	desired    string // the ref that was resolved
	name       string // its full name, "" for a commit
	commit     string
	wanted     string // the commit that the request names, if any
	refused    string // the value for status.request.refused if the ref resolves to another commit
	err        error
	took       time.Duration
	abandoned  bool // the resolution was canceled, because another ref is desired
}

// poller polls git.
type poller struct {
	connect func(*v1alpha1.GatewaySync) (*repo.Remote, error)
	store   *repo.Store

	git            string // spec.git of the remote
	remote         *repo.Remote
	allowedCommits map[string]bool // commits found in allowed refs
}

// poll resolves the desired ref of gs for all gateways with one ref advertisement.
func (p *poller) poll(ctx context.Context, gs *v1alpha1.GatewaySync, q question) pollResult {
	started := time.Now()
	limit, late := pollLimit(gs.Spec.Git.Repo)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, late)
	defer cancel()
	f := pollResult{question: q}
	f.err = p.ask(ctx, gs, &f)
	if f.err != nil && ctx.Err() != nil {
		f.err = context.Cause(ctx)
	}
	f.took = time.Since(started)
	return f
}

func (p *poller) ask(ctx context.Context, gs *v1alpha1.GatewaySync, f *pollResult) error {
	want, err := desiredref.Of(gs, "")
	if err != nil {
		return err
	}
	if want.RefusedCommit != "" && !want.ResolveSpec { // refused earlier: the same error, without asking git
		f.desired = want.Ref
		return want.CheckCommit(want.RefusedCommit)
	}
	if err := p.connectTo(gs); err != nil {
		return err
	}
	all, err := p.remote.Refs(ctx)
	if err != nil {
		return err
	}
	want, f.specCommit, err = desiredref.Resolve(gs, all.Commit)
	if err != nil {
		return err
	}
	f.desired, f.wanted = want.Ref, want.Commit
	if want.RefusedCommit != "" {
		return want.CheckCommit(want.RefusedCommit)
	}
	at, err := resolve(all, want.Ref)
	if err != nil {
		return err
	}
	if err := want.CheckCommit(at.Commit.String()); err != nil {
		f.refused = want.Refuse(at.Commit.String())
		return err
	}
	f.name, f.commit = at.Ref, at.Commit.String()
	if want.Override {
		return p.checkAllowed(ctx, gs, all, at)
	}
	return nil
}

func resolve(all *repo.Refs, name string) (repo.Resolution, error) {
	ref, err := repo.ParseRef(name)
	if err != nil {
		return repo.Resolution{}, err
	}
	return all.Resolve(ref)
}

// connectTo creates the remote, and replaces it if spec.git changed.
func (p *poller) connectTo(gs *v1alpha1.GatewaySync) error {
	git := gitOf(gs)
	if p.remote != nil && p.git == git {
		return nil
	}
	p.close()
	remote, err := p.connect(gs)
	if err != nil {
		return err
	}
	p.git, p.remote, p.allowedCommits = git, remote, map[string]bool{}
	return nil
}

func (p *poller) close() {
	if p.remote != nil {
		_ = p.remote.Close() // closes idle connections
		p.remote = nil
	}
}

// gitOf returns spec.git as one text, for comparison.
func gitOf(gs *v1alpha1.GatewaySync) string {
	b, err := json.Marshal(gs.Spec.Git)
	if err != nil {
		return "" // impossible: it was decoded from JSON
	}
	return string(b)
}

// checkAllowed checks a request against spec.git.allowedRefs. It remembers the commits that it found in them.
func (p *poller) checkAllowed(ctx context.Context, gs *v1alpha1.GatewaySync, all *repo.Refs, at repo.Resolution) error {
	commit := at.Commit.String()
	if at.Ref == "" && p.allowedCommits[commit] {
		return nil
	}
	if err := all.CheckAllowed(ctx, p.store, p.remote, gs.Spec.Git.RequestableRefs(), at); err != nil {
		return err
	}
	if at.Ref == "" {
		if len(p.allowedCommits) > 1000 {
			clear(p.allowedCommits)
		}
		p.allowedCommits[commit] = true
	}
	return nil
}
