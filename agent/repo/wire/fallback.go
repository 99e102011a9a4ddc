package wire

import (
	"context"
	"errors"
	"io"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/store"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// step is one way to ask for a commit.
type step struct {
	want  plan.ID
	more  []plan.ID // other wanted commits
	depth int       // commits of history, 0 for all
	base  plan.ID   // if set, a commit of the store that a thin pack may build on
	trees bool      // without blobs
}

// Fetch receives the commit of t. ref is the name by which the commit was found, "" if there is none. Fetch asks for as little
// as possible, and for more if the server refuses:
//
//   - what changed since t.Base, as a thin pack with depth 1. Without "deepen 1", a merge of an older branch brings the whole
//     history before the base; without a thin pack, a shallow client gets the whole tree;
//   - the whole tree of the commit;
//   - the whole history of the commit;
//   - the history of ref, with growing depth, then that of all branches and tags.
//
// It clears t.Base if the pack does not build on it.
func (c *Client) Fetch(ctx context.Context, t *store.Transfer, ref string) (*store.Received, error) {
	ctx, dog, stop := watch(ctx, c.opts.Total, c.opts.StallBytes, c.opts.StallWindow)
	defer stop()
	a, err := c.advertised(ctx, dog)
	if err != nil {
		return nil, err
	}
	if len(a.refs.ByName) == 0 {
		return nil, failure.New(v1alpha1.ReasonRefNotFound, "the repository %s is empty; commit %s cannot be in it", c.url, t.Commit)
	}
	refusal := errors.New("what it sent does not hold it")
	for _, s := range a.steps(t) {
		in, _, err := c.attempt(ctx, dog, a, t, s)
		if in != nil && t.TreesOnly {
			c.last.put(a) // for the blobs that follow
		}
		if in != nil || err != nil && !Refused(err) {
			return in, err
		}
		c.opts.Log.Debug("the git server refused; asking for more", "depth", s.depth, "incremental", !s.base.IsZero(), "error", err)
		if err != nil {
			refusal = err
		}
	}
	if t.TreesOnly {
		return nil, &refusedError{refusal.Error()}
	}
	return c.search(ctx, dog, a, t, ref, refusal)
}

// steps lists the ways to ask for a commit, the cheapest first.
func (a *advertisement) steps(t *store.Transfer) []step {
	shallow := a.caps.Supports(capability.Shallow)
	if t.TreesOnly && (!shallow || !a.caps.Supports(capability.Filter)) {
		return nil // the trees of a whole history cost more than the blobs of one commit
	}
	var s []step
	if !t.Base.IsZero() && a.caps.Supports(capability.ThinPack) {
		depth := 0
		if shallow {
			depth = 1
		}
		s = append(s, step{want: t.Commit, depth: depth, base: t.Base, trees: t.TreesOnly})
	}
	if shallow {
		s = append(s, step{want: t.Commit, depth: 1, trees: t.TreesOnly})
	}
	if t.TreesOnly {
		return s
	}
	return append(s, step{want: t.Commit})
}

// attempt makes one request. If the answer does not have the commit, it returns no pack and no error; whole then says whether the
// answer had the whole history.
func (c *Client) attempt(ctx context.Context, dog *watchdog, a *advertisement, t *store.Transfer, s step) (in *store.Received, whole bool, err error) {
	t.Base = s.base
	in, whole, err = c.receive(ctx, dog, a, t, a.request(s))
	if err != nil {
		return nil, false, err
	}
	found, err := t.HasCommit(in)
	if err != nil || !found {
		t.Drop(in)
	}
	switch {
	case err != nil:
		return nil, false, Explain(ctx, c.url, err, nil)
	case !found:
		return nil, whole, nil
	}
	return in, whole, nil
}

// receive makes one request and receives the pack of the answer; whole says that the answer has the whole history. The error has
// its reason.
func (c *Client) receive(ctx context.Context, dog *watchdog, a *advertisement, t *store.Transfer, req *packp.UploadPackRequest) (in *store.Received, whole bool, err error) {
	x := &exchange{dog: dog}
	in, whole, err = c.exchange(ctx, x, a, t, req)
	secrets, known := x.outcome()
	if known != nil {
		err = known
	}
	if err == nil {
		return in, whole, nil
	}
	if in != nil {
		t.Drop(in)
	}
	return nil, false, Explain(ctx, c.url, err, secrets)
}

func (c *Client) exchange(ctx context.Context, x *exchange, a *advertisement, t *store.Transfer, req *packp.UploadPackRequest) (*store.Received, bool, error) {
	res, err := c.transport.upload(ctx, x, a, req)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = res.Close() }()
	var stream io.Reader = res
	if req.Capabilities.Supports(capability.Sideband64k) || req.Capabilities.Supports(capability.Sideband) {
		stream = newSideband(res)
	}
	in, err := t.Receive(ctx, stream)
	return in, req.Depth.IsZero() || len(res.Shallows) == 0, err
}

// request returns the upload-pack request of a step.
func (a *advertisement) request(s step) *packp.UploadPackRequest {
	req := packp.NewUploadPackRequestFromCapabilities(a.caps)
	set := func(c capability.Capability) {
		if a.caps.Supports(c) {
			_ = req.Capabilities.Set(c) // fails for arguments only
		}
	}
	set(capability.NoProgress)
	req.Capabilities.Delete(capability.ThinPack)
	req.Wants = []plumbing.Hash{plumbing.Hash(s.want)}
	for _, id := range s.more {
		req.Wants = append(req.Wants, plumbing.Hash(id))
	}
	if s.depth > 0 {
		set(capability.Shallow)
		req.Depth = packp.DepthCommits(s.depth)
	}
	if s.trees {
		set(capability.Filter)
		req.Filter = packp.FilterBlobNone()
	}
	if !s.base.IsZero() {
		set(capability.ThinPack)
		req.Haves = []plumbing.Hash{plumbing.Hash(s.base)}
		if s.depth > 0 {
			req.Shallows = []plumbing.Hash{plumbing.Hash(s.base)}
		}
	}
	return req
}

// Blobs receives blobs by their ids.
func (c *Client) Blobs(ctx context.Context, t *store.Transfer, ids []plan.ID) (*store.Received, error) {
	ctx, dog, stop := watch(ctx, c.opts.Total, c.opts.StallBytes, c.opts.StallWindow)
	defer stop()
	a, err := c.advertised(ctx, dog)
	if err != nil {
		return nil, err
	}
	req := a.request(step{})
	req.Wants = req.Wants[:0]
	for _, id := range ids {
		req.Wants = append(req.Wants, plumbing.Hash(id))
	}
	in, _, err := c.receive(ctx, dog, a, t, req)
	if err != nil {
		return nil, err
	}
	c.last.put(a)
	return in, nil
}
