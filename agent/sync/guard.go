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

// guard holds a plan that must not be applied now.
type guard struct {
	in     *scope
	state  gatewayState // of the gateway, before the first file moves
	memory *memory
}

// memory is what the Engine remembers of the last plan that was held, and of the last one that the Webhook reviewed.
type memory struct {
	hold   hold
	review reviewResult
}

// hold identifies a plan that was staged and checked and then held. Its reason is the Held.Message of the plan, or "" if an
// open Designer holds it. While the same plan is held, its files are not staged again.
type hold struct {
	commit plan.ID
	rules  string
	reason string
}

func (g guard) holdFor(reason string) hold {
	return hold{g.in.task.Commit, g.in.rules.Fingerprint(), reason}
}

// checkProposals returns an error if the plan would replace changes that were made on the gateway and are still being
// proposed to git. A forced sync replaces them.
func (g guard) checkProposals(changes *plan.Changes) error {
	p := g.in.task.Proposals
	if p == nil || g.in.force {
		return nil
	}
	var paths []string
	for _, c := range changes.List {
		if c.Conflict && p.Watches(c.Path) {
			paths = append(paths, c.Path)
		}
	}
	if len(paths) == 0 {
		return nil
	}
	return p.Replace(paths)
}

const (
	// The pause after a denial is random, so that the gateways of a fleet do not all ask at the same time.
	minReviewPause, maxReviewPause = time.Minute, 5 * time.Minute
)

// reviewResult is the result of the last request to a Webhook. It is valid for the same plan under the same rules.
type reviewResult struct {
	url     string
	uid     string
	err     error     // ValidationDenied or ValidationUnavailable; nil if the plan may be applied
	retryAt time.Time // when to ask again about a denied plan
	force   string    // the force-sync request at that time; after another one, the sync does not wait for retryAt
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
	case same && g.in.Now().Before(last.retryAt) && last.force == g.in.task.Force:
		g.in.report.RetryAt = last.retryAt
		return last.err
	}
	*last = reviewResult{url: w.URL, uid: req.UID, force: g.in.task.Force}
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
		g.in.report.RetryAt = last.retryAt
		last.err = failure.New(v1alpha1.ReasonValidationDenied, "the validation webhook denies %s: %s; it is asked again at %s, or now: %s",
			g.in.task.Commit.Short(), denialReason(answer), last.retryAt.UTC().Format(time.RFC3339), g.in.task.ask("sync", "--force", v1alpha1.AnnotationForceSync, "a new value"))
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
		Namespace: g.in.task.Facts.Namespace, GatewaySync: g.in.task.Facts.CRName, Gateway: g.in.task.Facts.GatewayName, Profile: g.in.task.Profile.Profile,
		Ref: g.in.task.Ref, Commit: g.in.task.Commit.String(), FromCommit: from.String(),
	}.About(changes, g.in.rules.Fingerprint())
}
