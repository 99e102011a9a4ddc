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
	// Client sends the requests. Its CA is set from CA for each request.
	Client outbound.Client
	// CA returns certificates, as PEM; nil for those of the system alone.
	CA func() ([]byte, error)
	// Key returns the key that requests are signed with; nil for no signature.
	Key func() (secret.String, error)
	// Ignore makes a change go on if the service cannot be asked.
	Ignore bool
}

// ReviewRequest is what a Webhook is asked. docs/how-to/validation.md describes it.
type ReviewRequest struct {
	// UID identifies the plan: the same plan has the same one when it is asked for again.
	UID         string       `json:"uid"`
	Namespace   string       `json:"namespace"`
	GatewaySync string       `json:"gatewaySync"`
	Gateway     string       `json:"gateway"`
	Profile     string       `json:"profile"`
	Ref         string       `json:"ref"`
	Commit      string       `json:"commit"`
	FromCommit  string       `json:"fromCommit"`
	Files       []ReviewFile `json:"files"`
	// Truncated reports that Files has not all files, because the request would be too large.
	Truncated bool `json:"truncated"`
}

// ReviewFile is a file that a plan changes.
type ReviewFile struct {
	Path   string `json:"path"`
	Action string `json:"action"` // added, modified or deleted
}

// ReviewAnswer is what a Webhook answers.
type ReviewAnswer struct {
	UID     string `json:"uid"`
	Allowed *bool  `json:"allowed"`
	Message string `json:"message"`
}

const (
	maxReview       = 1 << 20 // bytes of a request
	maxReviewAnswer = 64 << 10
	// A denied plan is asked for again within this range, so that the gateways of a fleet do not ask at the same time.
	minReviewPause, maxReviewPause = time.Minute, 5 * time.Minute
)

// reviewed is the last question to a Webhook. The answer to it holds for the same plan of the same rules.
type reviewed struct {
	by    string // the URL
	uid   string
	err   error     // ValidationDenied or ValidationUnavailable; nil if the plan is allowed
	again time.Time // until then a denied plan is not asked for again
}

// review asks the Webhook whether the plan may be applied. staged says whether its files were staged, and so validated: the first
// question about a plan comes after that, and later ones before, so that no file is written again while the sync waits.
//
// It does not ask about the first sync of a gateway, nor about what brings back what was delivered, or an operator wants back.
func (f *files) review(ctx context.Context, changes *plan.Changes, staged bool) error {
	w, h := f.conn.Webhook, f.dir.Manifest().Header()
	if w == nil || f.t.Rollback || h.Commit.IsZero() || h.Commit == f.t.Commit && h.Rules == f.rules.Fingerprint() {
		return nil
	}
	q := f.question(changes, h.Commit)
	if len(q.Files) == 0 {
		return nil
	}
	last := &f.verdict
	same := last.uid == q.UID && last.by == w.URL
	if !same && !staged {
		return nil
	}
	switch {
	case same && last.err == nil:
		return nil
	case same && f.Now().Before(last.again):
		f.r.Again = last.again
		return last.err
	}
	*last = reviewed{by: w.URL, uid: q.UID}
	defer f.step("review")()
	answer, err := w.ask(ctx, q)
	switch {
	case err != nil && ctx.Err() != nil:
		*last = reviewed{}
		return ctx.Err()
	case err != nil && w.Ignore:
		f.note("changed without the consent of the validation webhook (failurePolicy Ignore): %v", err)
	case err != nil:
		last.err = failure.New(v1alpha1.ReasonValidationUnavailable, "the validation webhook was not asked, and nothing was written: %w", err)
	case !*answer.Allowed:
		last.again = f.Now().Add(minReviewPause + rand.N(maxReviewPause-minReviewPause))
		f.r.Again = last.again
		last.err = failure.New(v1alpha1.ReasonValidationDenied, "the validation webhook denies %s: %s", f.t.Commit.Short(), reasonOf(answer))
	}
	return last.err
}

func reasonOf(a ReviewAnswer) string {
	if a.Message == "" {
		return "it gives no reason"
	}
	return failure.Quote(a.Message)
}

// question describes a plan. The UID covers the content of all files, also of those that are not listed.
func (f *files) question(changes *plan.Changes, from plan.ID) ReviewRequest {
	q := ReviewRequest{
		Namespace: f.t.Facts.Namespace, GatewaySync: f.t.Facts.CRName, Gateway: f.t.Facts.GatewayName, Profile: f.t.Profile.Profile,
		Ref: f.t.Ref, Commit: f.t.Commit.String(), FromCommit: from.String(), Files: []ReviewFile{},
	}
	sum := sha256.New()
	_ = json.NewEncoder(sum).Encode(q) // neither fails
	fmt.Fprintln(sum, f.rules.Fingerprint())
	room := maxReview - 8<<10
	for _, c := range changes.List {
		action := actionOf(c.Op)
		if action == "" {
			continue
		}
		fmt.Fprintf(sum, "%q %s %s\n", c.Path, action, c.ID)
		if q.Truncated {
			continue
		}
		file := ReviewFile{c.Path, action}
		b, _ := json.Marshal(file)
		if room -= len(b) + 1; room < 0 {
			q.Truncated = true
			continue
		}
		q.Files = append(q.Files, file)
	}
	q.UID = hex.EncodeToString(sum.Sum(nil)[:16])
	return q
}

// ask sends a question and returns the answer to it, with Allowed set. The error never holds the path or the query of the URL.
func (w *Webhook) ask(ctx context.Context, q ReviewRequest) (answer ReviewAnswer, err error) {
	body, err := json.Marshal(q)
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
	case answer.UID != q.UID:
		return answer, errors.New("its answer has the uid of another request")
	}
	return answer, nil
}
