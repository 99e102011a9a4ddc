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
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// maxReport bounds the answer to a push, in bytes. Most of it is what hooks of the server print.
const maxReport = 4 << 20

// Stale reports whether a push failed because the ref no longer had the old value.
func Stale(err error) bool {
	_, ok := errors.AsType[*staleError](err)
	return ok
}

// staleError is the failure of a push to a ref that has changed.
type staleError struct{ ref, value string }

func (e *staleError) Error() string { return "it is " + e.value + " now" }

// errUpToDate ends a push that has nothing to do.
var errUpToDate = errors.New("the ref has that value already")

// update is one command of a push, with the objects that it needs.
type update struct {
	ref      string
	old, new plan.ID // zero if there is no such ref
	pack     []byte
}

// updateRequest is an encoded update.
type updateRequest struct {
	head     []byte // command and capabilities
	pack     []byte
	sideband bool // the answer is a sideband stream
}

// PushRefs asks for all refs of the service that accepts pushes. Some servers advertise other refs there, and it shows whether the
// credentials may push. A Fetch never uses this advertisement.
func (c *Client) PushRefs(ctx context.Context) (*Refs, error) {
	ctx, dog, stop := watch(ctx, c.opts.Advertise, c.opts.StallBytes, c.opts.StallWindow)
	defer stop()
	a, err := c.advertise(ctx, dog, receivePack)
	if err != nil {
		return nil, err
	}
	return a.refs, nil
}

// Push moves ref, a full name, from one commit to another. A zero from creates the ref, and a zero to deletes it. pack has the objects that
// the server lacks; it may be empty. If the ref has the commit to already, Push does nothing.
//
// The server changes the ref only if it still has the commit from; otherwise Stale reports true for the error. If the connection breaks,
// the outcome is unknown: the caller can read it with PushRefs, or push again.
func (c *Client) Push(ctx context.Context, ref string, from, to plan.ID, pack []byte) error {
	u := update{ref: ref, old: from, new: to, pack: pack}
	if err := u.validate(); err != nil {
		return err
	}
	ctx, dog, stop := watch(ctx, c.opts.Total, c.opts.StallBytes, c.opts.StallWindow)
	defer stop()
	x := &exchange{dog: dog, service: receivePack}
	report, said, err := c.update(ctx, x, u)
	secrets, known := x.outcome()
	if known != nil {
		err = known
	}
	if errors.Is(err, errUpToDate) {
		return nil
	}
	if stale, ok := errors.AsType[*staleError](err); ok {
		return c.stale(stale)
	}
	if err != nil {
		err = Explain(ctx, c.url, err, secrets)
		if refused, ok := errors.AsType[*refusedError](err); ok {
			return failure.New(v1alpha1.ReasonPushRejected, "%s declines the push of %s: %w", c.url, failure.Quote(ref), Foreign(refused, nil))
		}
		return err
	}
	return c.judge(ctx, dog, u, report, said, secrets)
}

func (u update) validate() error {
	problem := v1alpha1.RefProblem(u.ref)
	if problem == "" && !strings.HasPrefix(u.ref, "refs/") {
		problem = "a push needs a full name, as in refs/heads/main"
	}
	if problem != "" {
		return failure.New(v1alpha1.ReasonPushRejected, "%s is not a ref that can be pushed: %s", failure.Quote(u.ref), problem)
	}
	if u.old.IsZero() && u.new.IsZero() {
		return errors.New("a push needs an old or a new commit")
	}
	return nil
}

// update sends u and reads the report of the server, and what its hooks say.
func (c *Client) update(ctx context.Context, x *exchange, u update) (*packp.ReportStatus, string, error) {
	var asked *updateRequest
	answer, err := c.transport.push(ctx, x, func(a *advertisement) (*updateRequest, error) {
		if err := c.bounded(a); err != nil {
			return nil, err
		}
		var err error
		asked, err = u.request(a, c.url)
		return asked, err
	})
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = answer.Close() }()
	var said textBuffer
	var stream io.Reader = answer
	if asked.sideband {
		in := newSideband(answer)
		in.progress = &said
		stream = in
	}
	report := packp.NewReportStatus()
	err = report.Decode(stream)
	return report, said.String(), err
}

// request encodes u for a server that advertises a. It fails if the ref has another value than u.old, so that the pack is not sent
// in vain. The server compares the value again when it changes the ref.
func (u update) request(a *advertisement, url URL) (*updateRequest, error) {
	switch now := a.refs.ByName[u.ref]; {
	case now == u.new:
		return nil, errUpToDate
	case now != u.old:
		return nil, newStale(u.ref, now)
	case !a.caps.Supports(capability.ReportStatus):
		return nil, failure.New(v1alpha1.ReasonUnsupportedRepository, "%s does not report the result of a push (report-status)", url)
	case u.new.IsZero() && !a.caps.Supports(capability.DeleteRefs):
		return nil, failure.New(v1alpha1.ReasonPushRejected, "%s does not let clients delete branches (delete-refs): delete %s there", url, failure.Quote(u.ref))
	}
	req := packp.NewReferenceUpdateRequestFromCapabilities(a.caps) // report-status and agent
	for _, optional := range []capability.Capability{capability.Sideband64k, capability.Atomic} {
		if a.caps.Supports(optional) {
			_ = req.Capabilities.Set(optional) // fails for arguments only
		}
	}
	req.Commands = []*packp.Command{{Name: plumbing.ReferenceName(u.ref), Old: plumbing.Hash(u.old), New: plumbing.Hash(u.new)}}
	var head bytes.Buffer
	if err := req.Encode(&head); err != nil {
		return nil, err
	}
	out := &updateRequest{head: head.Bytes(), pack: u.pack, sideband: req.Capabilities.Supports(capability.Sideband64k)}
	switch {
	case u.new.IsZero():
		out.pack = nil // a server reads no pack after a deletion
	case len(u.pack) == 0:
		out.pack = emptyPack()
	}
	return out, nil
}

// emptyPack is a pack of version 2 without objects.
func emptyPack() []byte {
	head := []byte("PACK\x00\x00\x00\x02\x00\x00\x00\x00")
	sum := sha1.Sum(head)
	return append(head, sum[:]...)
}

// judge returns the error that a report amounts to.
func (c *Client) judge(ctx context.Context, dog *watchdog, u update, report *packp.ReportStatus, said string, secrets []string) error {
	words := func(status string) error {
		if said != "" {
			status += "; " + said
		}
		return Foreign(errors.New(status), secrets)
	}
	if report.UnpackStatus != "ok" {
		return failure.New(v1alpha1.ReasonGitUnreachable, "%s did not store the objects of a push; trying again: %w", c.url, words(report.UnpackStatus))
	}
	for _, s := range report.CommandStatuses {
		switch {
		case string(s.ReferenceName) != u.ref:
		case s.Error() == nil:
			return nil
		default:
			return c.rejected(ctx, dog, u, words(s.Status))
		}
	}
	return failure.New(v1alpha1.ReasonGitUnreachable, "%s does not say whether it accepted the push of %s; trying again", c.url, failure.Quote(u.ref))
}

// rejected returns the error for a command that the server declined. The texts of servers differ, so the value of the ref decides
// whether the ref has changed meanwhile.
func (c *Client) rejected(ctx context.Context, dog *watchdog, u update, words error) error {
	declined := failure.New(v1alpha1.ReasonPushRejected, "%s declines the push of %s: %w", c.url, failure.Quote(u.ref), words)
	a, err := c.advertise(ctx, dog, receivePack)
	if err != nil {
		c.opts.Log.Debug("refs not read after a declined push", "repo", c.url, "error", err)
		return declined
	}
	switch now := a.refs.ByName[u.ref]; now {
	case u.old:
		return declined
	case u.new:
		return nil // another request of this client was faster
	default:
		return c.stale(newStale(u.ref, now))
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
