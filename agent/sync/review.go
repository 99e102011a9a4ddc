package sync

import (
	"context"
	"math/rand/v2"
	"time"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/review"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

const (
	// The pause after a denial is random, so that the gateways of a fleet do not all ask at once.
	minReviewPause, maxReviewPause = time.Minute, 5 * time.Minute
)

// reviewResult is the result of the last request to a Webhook. It holds for the same plan of the same rules.
type reviewResult struct {
	url     string
	uid     string
	err     error     // ValidationDenied or ValidationUnavailable; nil if the plan is allowed
	retryAt time.Time // of a denied plan
	force   string    // the force-sync request at that time; another one asks at once
}

// review asks the Webhook whether the plan may be applied. staged says whether the plan's files were staged, and so
// validated. The first request about a plan follows the staging. Later requests precede it, so that the sync writes no file
// again while it waits.
func (g guard) review(ctx context.Context, changes *plan.Changes, staged bool) error {
	w, h := g.in.conn.Webhook, g.in.dir.Manifest().Header()
	if w == nil || !g.in.delivery().NeedsReview() {
		return nil
	}
	req := g.reviewRequest(changes, h.Commit)
	if len(req.Files) == 0 {
		return nil
	}
	last := &g.memory.review
	same := last.uid == req.UID && last.url == w.URL
	if !same && !staged {
		return nil
	}
	switch {
	case same && last.err == nil:
		return nil
	case same && g.in.Now().Before(last.retryAt) && last.force == g.in.t.Force:
		g.in.r.RetryAt = last.retryAt
		return last.err
	}
	*last = reviewResult{url: w.URL, uid: req.UID, force: g.in.t.Force}
	defer g.in.step("review")()
	answer, err := w.Send(ctx, req)
	switch {
	case err != nil && ctx.Err() != nil:
		*last = reviewResult{}
		return ctx.Err()
	case err != nil && w.IgnoreFailure:
		g.in.note("changed without the consent of the validation webhook (failurePolicy Ignore): %v", err)
	case err != nil:
		last.err = failure.New(v1alpha1.ReasonValidationUnavailable, "the validation webhook was not asked, and nothing was written: %w", err)
	case !*answer.Allowed:
		last.retryAt = g.in.Now().Add(minReviewPause + rand.N(maxReviewPause-minReviewPause)).Truncate(time.Second)
		g.in.r.RetryAt = last.retryAt
		last.err = failure.New(v1alpha1.ReasonValidationDenied, "the validation webhook denies %s: %s; it is asked again at %s, or now: %s",
			g.in.t.Commit.Short(), denialReason(answer), last.retryAt.UTC().Format(time.RFC3339), g.in.t.ask("sync", "--force", v1alpha1.AnnotationForceSync, "a new value"))
	}
	return last.err
}

func denialReason(a review.Answer) string {
	if a.Message == "" {
		return "it gives no reason"
	}
	return failure.Quote(a.Message)
}

// reviewRequest describes a plan.
func (g guard) reviewRequest(changes *plan.Changes, from plan.ID) review.Request {
	return review.Request{
		Namespace: g.in.t.Facts.Namespace, GatewaySync: g.in.t.Facts.CRName, Gateway: g.in.t.Facts.GatewayName, Profile: g.in.t.Profile.Profile,
		Ref: g.in.t.Ref, Commit: g.in.t.Commit.String(), FromCommit: from.String(),
	}.About(changes, g.in.rules.Fingerprint())
}
