// Package review asks the service of spec.validation.webhook whether a plan may be applied. docs/how-to/validation.md describes the
// protocol.
package review

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/internal/httpclient"
	"stoker.io/stoker/internal/secret"
)

// Webhook is the service that spec.validation.webhook names. It allows or denies the plan of a gateway.
type Webhook struct {
	URL string
	// Client sends the requests. If CA is set, its certificates replace Client.CA.
	Client httpclient.Client
	// CA returns certificates as PEM, to trust beside those of the system; nil leaves Client as it is.
	CA func() ([]byte, error)
	// Key returns the key that signs requests; nil for no signature.
	Key func() (secret.String, error)
	// IgnoreFailure lets a change through if the service does not answer.
	IgnoreFailure bool
}

// Request is the body of a request to a Webhook.
type Request struct {
	// UID identifies the plan. Repeated requests about the same plan have the same UID.
	UID         string `json:"uid"`
	Namespace   string `json:"namespace"`
	GatewaySync string `json:"gatewaySync"`
	Gateway     string `json:"gateway"`
	Profile     string `json:"profile"`
	Ref         string `json:"ref"`
	Commit      string `json:"commit"`
	FromCommit  string `json:"fromCommit"`
	Files       []File `json:"files"`
	// Truncated reports that Files lacks some files, because the request would be too large.
	Truncated bool `json:"truncated"`
}

// About returns a request with the files that a plan changes, as far as there is room, and the UID. The UID covers r, rules
// (plan.Rules.Fingerprint), and the path, the action and the blob id of all files, also of those that are not listed.
func (r Request) About(changes *plan.Changes, rules string) Request {
	r.Files = []File{}
	sum := sha256.New()
	_ = json.NewEncoder(sum).Encode(r) // cannot fail
	fmt.Fprintln(sum, rules)
	room := MaxRequest - 8<<10 // for the other fields
	for _, c := range changes.List {
		action := c.Op.Action()
		if action == "" {
			continue
		}
		fmt.Fprintf(sum, "%q %s %s\n", c.Path, action, c.ID)
		if r.Truncated {
			continue
		}
		file := File{Path: c.Path, Action: action}
		b, _ := json.Marshal(file)
		if room -= len(b) + 1; room < 0 {
			r.Truncated = true
			continue
		}
		r.Files = append(r.Files, file)
	}
	r.UID = hex.EncodeToString(sum.Sum(nil)[:16])
	return r
}

// File is a file that a plan changes.
type File struct {
	Path   string `json:"path"`
	Action string `json:"action"` // added, modified or deleted
}

// Answer is the body of a Webhook's answer.
type Answer struct {
	UID     string `json:"uid"`
	Allowed *bool  `json:"allowed"`
	Message string `json:"message"`
}

const (
	// MaxRequest bounds the bytes of a request.
	MaxRequest = 1 << 20
	maxAnswer  = 64 << 10
)

// Send sends a request and returns its answer, with Allowed set. The error never contains the path or the query of the URL.
func (w *Webhook) Send(ctx context.Context, req Request) (answer Answer, err error) {
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
		httpclient.Sign(header, key, body)
	}
	c := w.Client
	c.MaxAnswer = maxAnswer
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
