package follow

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/agent/audit"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
)

// specReader reads the GatewaySync when the target names another generation or other requests, and every checkEvery, because an API server that was
// restored from a backup counts generations again.
type specReader struct {
	objects *kube.Objects[v1alpha1.GatewaySync]
	name    string // of the GatewaySync
	volume  volume
	log     *slog.Logger
	now     func() time.Time
	// onOtherGeneration is called with a GatewaySync whose generation is not the target's.
	onOtherGeneration func(*v1alpha1.GatewaySync)

	gs        *v1alpha1.GatewaySync // the last one that matched a target; nil before
	owner     types.UID             // in the target for which gs was read
	check     time.Time             // when to read gs again
	confirmed confirmed             // what gs has confirmed of a target
	rollback  plan.ID               // the commit that the request goes back to; zero if it goes back to none
	request   audit.Request         // who requested the ref
	asked     *v1alpha1.GatewaySync // the last copy whose requests a target confirmed; nil before
	newest    *v1alpha1.GatewaySync // the last copy of all, whose approvals and status count for gates; nil before
	question  question              // see refresh

	attempt          attempt   // the last failed one
	err              error     // why it failed
	failures         int       // in a row
	retry            time.Time // when to repeat attempt; zero for never
	due              time.Time // when the next attempt is due; zero if none is needed
	unconfirmedSince time.Time // when the GatewaySync began not to confirm the target; zero if it does
}

// confirmed is what the GatewaySync must confirm of a target.
type confirmed struct {
	ref, hash string
	commit    plan.ID
}

func (in *instruction) toConfirm() confirmed { return confirmed{in.Ref, in.hash, in.Commit} }

// attempt is the part of an instruction that decides whether to read the GatewaySync again after a failure.
type attempt struct {
	generation int64
	confirmed  confirmed
	owner      types.UID
	problem    problem
}

var errGone = errors.New("the GatewaySync is gone")

const (
	// getTimeout is the time limit of a read that follows no failure.
	getTimeout = 10 * time.Second
	// maxGet is the longest pause between two attempts to read the GatewaySync.
	maxGet = time.Minute
	// unconfirmedGrace is how long the GatewaySync may fail to confirm the target until that is reported, while an order is in force.
	unconfirmedGrace = 30 * time.Second
)

// readTimeout returns the time limit of a read after n failures in a row: it doubles with each, up to kube.RequestTimeout.
func readTimeout(n int) time.Duration { return min(getTimeout<<min(n, 10), kube.RequestTimeout) }

// fetch returns the GatewaySync at the target's generation. Otherwise the error is errGone, a failure of class working if a
// retry may help, or one of class stalled or held: the GatewaySync is invalid, or the target has a problem that an operator must solve.
// changed makes fetch repeat a failed attempt at once.
func (s *specReader) fetch(ctx context.Context, in instruction, changed bool) (*v1alpha1.GatewaySync, error) {
	if s.gs != nil && s.gs.Generation == in.Generation && s.owner == in.owner && s.confirms(&in) {
		s.unconfirmedSince, s.confirmed = time.Time{}, in.toConfirm()
		if s.now().Before(s.check) {
			return s.gs, nil
		}
		switch gs, _, _, err := s.read(ctx, &in); {
		case err == nil:
			s.accept(gs, &in)
			return s.gs, nil
		case failure.Is(err, v1alpha1.ReasonProgressing): // the GatewaySync cannot be read now
			s.check = s.now().Add(backoff.Jitter(maxGet))
			return s.gs, nil
		}
		// The GatewaySync is gone, or asks for something else: nothing confirms the target any more. No target has this hash; some have "".
		s.confirmed = confirmed{hash: "none"}
	}
	if in.Generation == 0 { // the target changes when there is something to read
		return nil, failure.New(v1alpha1.ReasonWaitingForLead, "the lead of GatewaySync %s has not resolved its ref yet", s.name)
	}
	this := attempt{in.Generation, in.toConfirm(), in.owner, in.problem}
	if s.err != nil && s.attempt == this && !changed && (s.retry.IsZero() || s.now().Before(s.retry)) {
		s.due = s.retry
		return nil, s.err
	}
	gs, unconfirmed, ahead, err := s.read(ctx, &in)
	s.attempt, s.err, s.retry = this, err, time.Time{}
	switch {
	case !unconfirmed:
		s.unconfirmedSince = time.Time{}
	case s.unconfirmedSince.IsZero():
		s.unconfirmedSince = s.now()
		s.log.Warn("SyncTarget not followed", "error", err, "generation", in.Generation)
	}
	if err != nil {
		if !ahead {
			s.failures++
			s.retry = s.now().Add(backoff.Retry(s.failures, maxGet))
			s.due = s.retry
		}
		return nil, err
	}
	s.failures = 0
	s.accept(gs, &in)
	return s.gs, nil
}

// accept makes gs, which confirms a target, the last copy.
func (s *specReader) accept(gs *v1alpha1.GatewaySync, in *instruction) {
	s.asked, s.newest, s.check = gs, gs, s.now().Add(backoff.Jitter(checkEvery))
	d, bad := desiredref.Of(gs, "")
	s.rollback = plan.ID{}
	if bad == nil && d.GoesBack(in.Commit.String(), gs.Status.RanEverywhere, func(string) bool { return s.volume.ran(in.Commit) }) {
		s.rollback = in.Commit
	}
	s.request = audit.Request{By: desiredref.InputsOf(gs).By(), For: gs.Annotations[v1alpha1.AnnotationRequestedFor], At: gs.Annotations[v1alpha1.AnnotationRequestedAt]}
	// A pause by annotation comes through the target; in this copy it becomes stale.
	delete(gs.Annotations, v1alpha1.AnnotationPaused)
	if was := s.gs; was != nil && was.UID == gs.UID && was.Generation == gs.Generation && equality.Semantic.DeepEqual(&was.Spec, &gs.Spec) {
		gs = was // unchanged: keep its connections
	}
	s.gs, s.owner, s.confirmed = gs, in.owner, in.toConfirm()
}

// read reads the GatewaySync and compares it with the target. unconfirmed is set if it cannot be read, or does not ask for what the
// target says. ahead is set if it has a newer generation: the watch reports when the target follows, so no retry is needed.
func (s *specReader) read(ctx context.Context, in *instruction) (gs *v1alpha1.GatewaySync, unconfirmed, ahead bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout(s.failures))
	defer cancel()
	gs, err = s.objects.Get(ctx, s.name)
	switch _, undecodable := errors.AsType[*kube.UndecodableError](err); {
	case apierrors.IsNotFound(err):
		return nil, false, false, errGone
	case undecodable:
		return nil, false, false, failure.New(v1alpha1.ReasonProfilesInvalid, "%w", err)
	case err != nil:
		return nil, true, false, failure.New(v1alpha1.ReasonProgressing, "GatewaySync %s cannot be read; trying again: %w", s.name, err)
	case in.owner != "" && gs.UID != in.owner:
		return nil, false, false, failure.New(v1alpha1.ReasonWaitingForLead, "the SyncTarget belongs to an earlier GatewaySync %s: waiting for its lead", s.name)
	case gs.Generation == in.Generation:
		err = checkRequests(gs, in, s.volume)
		return gs, err != nil, false, err
	}
	s.onOtherGeneration(gs)
	err = failure.New(v1alpha1.ReasonWaitingForLead, "GatewaySync %s has generation %d and its target %d: waiting until they agree", s.name, gs.Generation, in.Generation)
	if p, ok := in.unresolved(gs.Generation); ok {
		err = failure.New(p.Reason, "%s", p.Message)
	}
	return nil, false, gs.Generation > in.Generation, err
}

// confirms reports whether the GatewaySync, as it was last read, asks for what a target says. A new commit of spec.git.ref needs no
// confirmation here, because admit checks it against git.
func (s *specReader) confirms(in *instruction) bool {
	r, last := in.toConfirm(), s.confirmed
	return r.hash == last.hash && (r.ref == "" || r.ref == s.gs.Spec.Git.Ref || r.ref == last.ref && r.commit == last.commit)
}

// requestsFor returns what the GatewaySync asks of a gateway whose target is commit. It uses the copy that the target confirmed, because the
// lead counts a report for the requests of its target.
func (s *specReader) requestsFor(gateway string, commit plan.ID) annotation.Requests {
	return annotation.RequestsFor(s.asked, gateway, commit.String())
}

// approvedBy returns who approved a commit: see annotation.Approvers.
func (s *specReader) approvedBy(commit plan.ID) string {
	if s.newest == nil {
		return ""
	}
	return annotation.Approvers(s.newest, commit.String())
}

// unconfirmedTooLong reports whether the GatewaySync has not confirmed the target for longer than unconfirmedGrace.
func (s *specReader) unconfirmedTooLong() bool {
	return !s.unconfirmedSince.IsZero() && s.now().Sub(s.unconfirmedSince) >= unconfirmedGrace
}

// current returns gs, the GatewaySync whose spec the target confirms, with the annotations and the status of the newest copy.
func (s *specReader) current(gs *v1alpha1.GatewaySync) *v1alpha1.GatewaySync {
	c := *gs
	c.Annotations, c.Status = s.newest.Annotations, s.newest.Status
	return &c
}

// question is what the copies of the GatewaySync so far did not confirm.
type question struct {
	what     string
	failures int
	retry    time.Time
}

// refresh reads the GatewaySync again because it may confirm something that the newest copy does not, with pauses. It reports whether there is
// a newer copy.
func (s *specReader) refresh(ctx context.Context, what string) bool {
	if s.question.what != what {
		s.question = question{what: what}
	}
	q, now := &s.question, s.now()
	if now.Before(q.retry) {
		s.due = earliest(s.due, q.retry)
		return false
	}
	get, cancel := context.WithTimeout(ctx, readTimeout(q.failures))
	defer cancel()
	gs, err := s.objects.Get(get, s.name)
	q.failures++
	q.retry = now.Add(backoff.Retry(q.failures, maxGet))
	s.due = earliest(s.due, q.retry)
	if err != nil && q.failures == 1 {
		s.log.Warn("GatewaySync not read again", "for", what, "error", err)
	}
	if err != nil || gs.UID != s.gs.UID {
		return false
	}
	s.newest = gs
	return true
}
