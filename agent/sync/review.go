package sync

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/outbound"
	"stoker.io/stoker/internal/secret"
)

// Webhook is the service that spec.validation.webhook names. It allows or denies the plan of a gateway.
type Webhook struct {
	URL string
	// Client sends the requests, with the certificates of CA instead of its own.
	Client outbound.Client
	// CA returns certificates as PEM; nil means only those of the system.
	CA func() ([]byte, error)
	// Key returns the key that signs requests; nil for no signature.
	Key func() (secret.String, error)
	// IgnoreFailure lets a change through if the service does not answer.
	IgnoreFailure bool
}

// ReviewRequest is the body of a request to a Webhook. docs/how-to/validation.md describes it.
type ReviewRequest struct {
	// UID identifies the plan. Repeated requests about the same plan have the same UID.
	UID         string       `json:"uid"`
	Namespace   string       `json:"namespace"`
	GatewaySync string       `json:"gatewaySync"`
	Gateway     string       `json:"gateway"`
	Profile     string       `json:"profile"`
	Ref         string       `json:"ref"`
	Commit      string       `json:"commit"`
	FromCommit  string       `json:"fromCommit"`
	Files       []ReviewFile `json:"files"`
	// Truncated reports that Files lacks some files, because the request would be too large.
	Truncated bool `json:"truncated"`
}

// ReviewFile is a file that a plan changes.
type ReviewFile struct {
	Path   string `json:"path"`
	Action string `json:"action"` // added, modified or deleted
}

// ReviewAnswer is the body of a Webhook's answer.
type ReviewAnswer struct {
	UID     string `json:"uid"`
	Allowed *bool  `json:"allowed"`
	Message string `json:"message"`
}

const (
	maxReview       = 1 << 20 // bytes of a request
	maxReviewAnswer = 64 << 10
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
//
// The first sync of a gateway, a repair, a requested rollback, and a new volume that gets what was delivered before, need no review.
func (f *files) review(ctx context.Context, changes *plan.Changes, staged bool) error {
	w, h := f.conn.Webhook, f.dir.Manifest().Header()
	if w == nil || f.t.RequestedRollback || h.Commit.IsZero() || h.Commit == f.t.Commit && (h.Rules == f.rules.Fingerprint() || !h.Complete && (f.t.BeforeStart || f.t.NewVolume)) {
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
	case same && f.Now().Before(last.retryAt) && last.force == f.t.ForceID:
		f.r.RetryAt = last.retryAt
		return last.err
	}
	*last = reviewResult{url: w.URL, uid: req.UID, force: f.t.ForceID}
	defer f.step("review")()
	answer, err := w.send(ctx, req)
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

func denialReason(a ReviewAnswer) string {
	if a.Message == "" {
		return "it gives no reason"
	}
	return failure.Quote(a.Message)
}

// reviewRequest describes a plan. The UID covers the content of all files, also of those that are not listed.
func (f *files) reviewRequest(changes *plan.Changes, from plan.ID) ReviewRequest {
	req := ReviewRequest{
		Namespace: f.t.Facts.Namespace, GatewaySync: f.t.Facts.CRName, Gateway: f.t.Facts.GatewayName, Profile: f.t.Profile.Profile,
		Ref: f.t.Ref, Commit: f.t.Commit.String(), FromCommit: from.String(), Files: []ReviewFile{},
	}
	sum := sha256.New()
	_ = json.NewEncoder(sum).Encode(req) // neither fails
	fmt.Fprintln(sum, f.rules.Fingerprint())
	room := maxReview - 8<<10
	for _, c := range changes.List {
		action := actionOf(c.Op)
		if action == "" {
			continue
		}
		fmt.Fprintf(sum, "%q %s %s\n", c.Path, action, c.ID)
		if req.Truncated {
			continue
		}
		file := ReviewFile{c.Path, action}
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

// send sends a request and returns its answer, with Allowed set. The error never contains the path or the query of the URL.
func (w *Webhook) send(ctx context.Context, req ReviewRequest) (answer ReviewAnswer, err error) {
	body, err := json.Marshal(req)
	if err != nil {
		return answer, err
	}
	header := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json"}}
	if w.Key != nil {
		key, err := w.Key()
		if err != nil {
			return answer, err
		}
		outbound.Sign(header, key, body)
	}
	c := w.Client
	c.MaxAnswer = maxReviewAnswer
	if w.CA != nil {
		if c.CA, err = w.CA(); err != nil {
			return answer, err
		}
	}
	res, err := c.Do(ctx, http.MethodPost, w.URL, header, body)
	switch {
	case err != nil:
		return answer, err
	case res.Status != http.StatusOK:
		return answer, fmt.Errorf("it answers HTTP %d instead of 200", res.Status)
	case json.Unmarshal(res.Body, &answer) != nil || answer.Allowed == nil:
		return answer, errors.New(`its answer is not {"uid": …, "allowed": …} as JSON`)
	case answer.UID != req.UID:
		return answer, errors.New("its answer has the uid of another request")
	}
	return answer, nil
}
