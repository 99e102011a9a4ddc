package wire

import (
	"bytes"
	"context"
	"crypto/sha1"
	"errors"
	"io"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/store"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/failure"
)

// maxReport is the maximum size of the answer to a push, in bytes. Most of it is the output of hooks.
const maxReport = 4 << 20

// maxHookOutput is how much of the output of hooks is kept until the secrets are removed from it, in bytes.
const maxHookOutput = 4 << 10

// IsStale reports whether a push failed because the ref no longer had the old value.
func IsStale(err error) bool {
	_, ok := errors.AsType[*staleError](err)
	return ok
}

// staleError means that a ref no longer has the old value of a push. Client.stale makes a complete message of it.
type staleError struct{ ref, value string }

func (e *staleError) Error() string { return "it is " + e.value + " now" }

// errUpToDate ends a push that has nothing to do.
var errUpToDate = errors.New("the ref has that value already")

// update is one command of a push, with the objects that it needs.
type update struct {
	ref          string
	oldID, newID plan.ID // zero for no ref
	pack         [][]byte
}

// updateRequest is an encoded update.
type updateRequest struct {
	head     []byte // the command and the capabilities
	pack     [][]byte
	sideband bool // the answer is a sideband stream
}

// PushRefs returns the refs that git-receive-pack advertises. Some servers advertise other refs than for a fetch. If it fails
// with AuthFailed, the credentials may not push.
func (c *Client) PushRefs(ctx context.Context) (*Refs, error) {
	ctx, dog, stop := c.watch(ctx, c.opts.Advertise)
	defer stop()
	a, err := c.advertise(ctx, dog, receivePack)
	if err != nil {
		return nil, err
	}
	return a.refs, nil
}

// Push moves ref, a full name, from oldID to newID. A zero oldID creates the ref, and a zero newID deletes it. pack has the
// objects that the server lacks, in pieces; it may be empty. If the ref is newID already, Push does nothing.
//
// The server changes the ref only if it is still oldID. Otherwise IsStale holds for the error. If the connection breaks, the
// outcome is unknown: the caller can read the ref with PushRefs, or push again.
func (c *Client) Push(ctx context.Context, ref string, oldID, newID plan.ID, pack [][]byte) error {
	u := update{ref: ref, oldID: oldID, newID: newID, pack: pack}
	if err := u.validate(); err != nil {
		return err
	}
	ctx, dog, stop := c.watch(ctx, c.opts.Total)
	defer stop()
	x := &exchange{dog: dog, service: receivePack}
	report, hookOutput, err := c.update(ctx, x, u)
	secrets, err := x.outcome(err)
	if errors.Is(err, errUpToDate) {
		return nil
	}
	if stale, ok := errors.AsType[*staleError](err); ok {
		return c.stale(stale)
	}
	if err != nil {
		err = Explain(ctx, c.url, err, secrets)
		if refused, ok := errors.AsType[*refusedError](err); ok {
			return failure.New(v1alpha1.ReasonPushRejected, "%s declines the push of %s: %w", c.url, failure.Quote(ref), Foreign(refused, nil)) // Explain has removed the secrets
		}
		return err
	}
	return c.reportError(ctx, dog, u, report, hookOutput, secrets)
}

func (u update) validate() error {
	problem := syntax.RefProblem(u.ref)
	if problem == "" && !strings.HasPrefix(u.ref, "refs/") {
		problem = "a push needs a full name, as in refs/heads/main"
	}
	if problem != "" {
		return failure.New(v1alpha1.ReasonPushRejected, "%s is not a ref that can be pushed: %s", failure.Quote(u.ref), problem)
	}
	if u.oldID.IsZero() && u.newID.IsZero() {
		return errors.New("a push needs an old or a new commit")
	}
	return nil
}

// update sends u. It returns the report of the server and the output of its hooks.
func (c *Client) update(ctx context.Context, x *exchange, u update) (*packp.ReportStatus, string, error) {
	var sent *updateRequest
	answer, err := c.transport.push(ctx, x, func(a *advertisement) (*updateRequest, error) {
		if err := c.checkRefCount(a); err != nil {
			return nil, err
		}
		var err error
		sent, err = u.encode(a, c.url)
		return sent, err
	})
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = answer.Close() }()
	hookOutput := textBuffer{limit: maxHookOutput}
	var stream io.Reader = answer
	if sent.sideband {
		stream = newSideband(answer, &hookOutput, x.quote)
	}
	report := packp.NewReportStatus()
	err = report.Decode(stream)
	return report, hookOutput.String(), err
}

// encode encodes u for a server that advertises a. It fails if the ref has another value than u.oldID, so that the pack is not sent
// in vain. The server compares the value again when it changes the ref.
func (u update) encode(a *advertisement, url URL) (*updateRequest, error) {
	switch value := a.refs.ByName[u.ref]; {
	case value == u.newID:
		return nil, errUpToDate
	case value != u.oldID:
		return nil, newStale(u.ref, value)
	case !a.caps.Supports(capability.ReportStatus):
		return nil, failure.New(v1alpha1.ReasonUnsupportedRepository, "%s does not report the result of a push (report-status)", url)
	case u.newID.IsZero() && !a.caps.Supports(capability.DeleteRefs):
		return nil, failure.New(v1alpha1.ReasonPushRejected, "%s does not let clients delete branches (delete-refs): delete %s there", url, failure.Quote(u.ref))
	}
	req := packp.NewReferenceUpdateRequestFromCapabilities(a.caps) // report-status and agent
	out := &updateRequest{pack: u.pack, sideband: a.caps.Supports(capability.Sideband64k)}
	if out.sideband {
		_ = req.Capabilities.Set(capability.Sideband64k) // fails for arguments only
	}
	req.Commands = []*packp.Command{{Name: plumbing.ReferenceName(u.ref), Old: plumbing.Hash(u.oldID), New: plumbing.Hash(u.newID)}}
	var head bytes.Buffer
	if err := req.Encode(&head); err != nil {
		return nil, err
	}
	out.head = head.Bytes()
	switch {
	case u.newID.IsZero():
		out.pack = nil // a server reads no pack after a deletion
	case len(u.pack) == 0:
		out.pack = [][]byte{emptyPack()}
	}
	return out, nil
}

func emptyPack() []byte {
	header := store.PackHeader(0)
	sum := sha1.Sum(header)
	return append(header, sum[:]...)
}

// reportError turns the report of the server into an error. If the server declined the update, it reads the refs again. It
// returns nil if the ref has the new value. GitUnreachable makes the caller try again.
func (c *Client) reportError(ctx context.Context, dog *watchdog, u update, report *packp.ReportStatus, hookOutput string, secrets []string) error {
	serverText := func(status string) error {
		if hookOutput != "" {
			status += "; " + hookOutput
		}
		return Foreign(errors.New(status), secrets)
	}
	if report.UnpackStatus != "ok" {
		return failure.New(v1alpha1.ReasonGitUnreachable, "%s did not store the objects of a push; trying again: %w", c.url, serverText(report.UnpackStatus))
	}
	for _, s := range report.CommandStatuses {
		if string(s.ReferenceName) != u.ref {
			continue
		}
		if s.Error() == nil {
			return nil
		}
		return c.declineError(ctx, dog, u, serverText(s.Status))
	}
	return failure.New(v1alpha1.ReasonGitUnreachable, "%s does not say whether it accepted the push of %s; trying again", c.url, failure.Quote(u.ref))
}

// declineError returns the error for an update that the server declined. The texts of servers differ, so it reads the refs to
// find out whether another client has changed the ref.
func (c *Client) declineError(ctx context.Context, dog *watchdog, u update, serverText error) error {
	declined := failure.New(v1alpha1.ReasonPushRejected, "%s declines the push of %s: %w", c.url, failure.Quote(u.ref), serverText)
	a, err := c.advertise(ctx, dog, receivePack)
	if err != nil {
		c.opts.Log.Debug("refs not read after a declined push", "repo", c.url, "error", err)
		return declined
	}
	switch value := a.refs.ByName[u.ref]; value {
	case u.oldID:
		return declined
	case u.newID:
		return nil // the ref has the new value, whichever request set it
	default:
		return c.stale(newStale(u.ref, value))
	}
}

func newStale(ref string, now plan.ID) *staleError {
	if now.IsZero() {
		return &staleError{ref, "deleted"}
	}
	return &staleError{ref, now.String()}
}

func (c *Client) stale(e *staleError) error {
	return failure.New(v1alpha1.ReasonPushRejected, "%s changed at %s before the push: %w", failure.Quote(e.ref), c.url, e)
}
