package sync

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
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
func (f *files) review(ctx context.Context, changes *plan.Changes, staged bool) error {
	w, h := f.conn.Webhook, f.dir.Manifest().Header()
	if w == nil || !f.delivery().NeedsReview() {
		return nil
	}
	req := f.reviewRequest(changes, h.Commit)
	if len(req.Files) == 0 {
		return nil
	}
	last := &f.lastReview
	same := last.uid == req.UID && last.url == w.URL
	if !same && !staged {
		return nil
	}
	switch {
	case same && last.err == nil:
		return nil
	case same && f.Now().Before(last.retryAt) && last.force == f.t.Force:
		f.r.RetryAt = last.retryAt
		return last.err
	}
	*last = reviewResult{url: w.URL, uid: req.UID, force: f.t.Force}
	defer f.step("review")()
	answer, err := w.Send(ctx, req)
	switch {
	case err != nil && ctx.Err() != nil:
		*last = reviewResult{}
		return ctx.Err()
	case err != nil && w.IgnoreFailure:
		f.note("changed without the consent of the validation webhook (failurePolicy Ignore): %v", err)
	case err != nil:
		last.err = failure.New(v1alpha1.ReasonValidationUnavailable, "the validation webhook was not asked, and nothing was written: %w", err)
	case !*answer.Allowed:
		last.retryAt = f.Now().Add(minReviewPause + rand.N(maxReviewPause-minReviewPause)).Truncate(time.Second)
		f.r.RetryAt = last.retryAt
		last.err = failure.New(v1alpha1.ReasonValidationDenied, "the validation webhook denies %s: %s; it is asked again at %s, or now: %s",
			f.t.Commit.Short(), denialReason(answer), last.retryAt.UTC().Format(time.RFC3339), f.t.ask("sync", "--force", v1alpha1.AnnotationForceSync, "a new value"))
	}
	return last.err
}

func denialReason(a review.Answer) string {
	if a.Message == "" {
		return "it gives no reason"
	}
	return failure.Quote(a.Message)
}

// reviewRequest describes a plan. The UID covers the content of all files, also of those that are not listed.
func (f *files) reviewRequest(changes *plan.Changes, from plan.ID) review.Request {
	req := review.Request{
		Namespace: f.t.Facts.Namespace, GatewaySync: f.t.Facts.CRName, Gateway: f.t.Facts.GatewayName, Profile: f.t.Profile.Profile,
		Ref: f.t.Ref, Commit: f.t.Commit.String(), FromCommit: from.String(), Files: []review.File{},
	}
	sum := sha256.New()
	_ = json.NewEncoder(sum).Encode(req) // neither fails
	fmt.Fprintln(sum, f.rules.Fingerprint())
	room := review.MaxRequest - 8<<10
	for _, c := range changes.List {
		action := actionOf(c.Op)
		if action == "" {
			continue
		}
		fmt.Fprintf(sum, "%q %s %s\n", c.Path, action, c.ID)
		if req.Truncated {
			continue
		}
		file := review.File{Path: c.Path, Action: action}
		b, _ := json.Marshal(file)
		if room -= len(b) + 1; room < 0 {
			req.Truncated = true
			continue
		}
		req.Files = append(req.Files, file)
	}
	req.UID = hex.EncodeToString(sum.Sum(nil)[:16])
	return req
}
