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

// step is one way to request objects.
type step struct {
	wants       []plan.ID
	depth       int     // commits of history; 0 for all
	base        plan.ID // commit of the store that a thin pack may build on; zero if there is none
	treesOnly   bool    // leave out blobs
	commitsOnly bool    // leave out trees and blobs, if the server can
}

// fetch is a series of requests for the commit of a transfer, with one advertisement.
type fetch struct {
	client *Client
	ad     *advertisement
	t      *store.Transfer
	dog    *watchdog
}

// startFetch returns a fetch whose time and progress a watchdog limits. It uses the last advertisement if that is recent. If it
// succeeds, the caller must use the returned context and call stop.
func (c *Client) startFetch(ctx context.Context, t *store.Transfer) (_ context.Context, f *fetch, stop func(), err error) {
	ctx, dog, stop := c.watch(ctx, c.opts.Total)
	a := c.cache.take()
	if a == nil {
		if a, err = c.advertise(ctx, dog, uploadPack); err != nil {
			stop()
			return nil, nil, nil, err
		}
	}
	return ctx, &fetch{c, a, t, dog}, stop, nil
}

// Fetch receives the commit of t. ref is the name by which the commit was found, "" if there is none. Fetch requests as little as
// possible, and more if the server refuses:
//
//   - what changed since t.Base, as a thin pack, with depth 1 if the server can. Without "deepen 1", a merge of an older branch brings
//     the whole history before the base; without a thin pack, a shallow client gets the whole tree;
//   - the whole tree of the commit;
//   - the whole history of the commit;
//   - the history of ref, with growing depth, then that of all branches and tags.
//
// With t.TreesOnly, Fetch requests no blobs and tries only the first two. If the server refuses both, or cannot omit blobs, Fetch
// returns a refusal.
//
// Fetch clears t.Base if the pack does not build on it.
func (c *Client) Fetch(ctx context.Context, t *store.Transfer, ref string) (*store.Received, error) {
	ctx, f, stop, err := c.startFetch(ctx, t)
	if err != nil {
		return nil, err
	}
	defer stop()
	if len(f.ad.refs.ByName) == 0 {
		return nil, failure.New(v1alpha1.ReasonRefNotFound, "the repository %s is empty; commit %s cannot be in it", c.url, t.Commit)
	}
	steps := f.ad.steps(t)
	refusal := errors.New("the pack that it sent lacks the commit")
	for _, s := range steps {
		in, _, err := f.attempt(ctx, s)
		if in != nil && t.TreesOnly {
			c.cache.put(f.ad) // for the blobs that follow
		}
		if in != nil || err != nil && !IsRefused(err) {
			return in, err
		}
		c.opts.Log.Debug("the git server refused; asking for more", "depth", s.depth, "incremental", !s.base.IsZero(), "error", err)
		if err != nil {
			refusal = err
		}
	}
	switch {
	case !t.TreesOnly:
		return f.search(ctx, ref, refusal)
	case len(steps) == 0:
		return nil, &refusedError{"without the capabilities shallow and filter"}
	case IsRefused(refusal):
		return nil, refusal
	}
	return nil, &refusedError{"with a pack that lacks the commit"}
}

// steps lists the ways to request the commit of t, the cheapest first.
func (a *advertisement) steps(t *store.Transfer) []step {
	shallow := a.caps.Supports(capability.Shallow)
	if t.TreesOnly && (!shallow || !a.caps.Supports(capability.Filter)) {
		return nil // the trees of a whole history cost more than the blobs of one commit
	}
	depth := 0
	if shallow {
		depth = 1
	}
	var steps []step
	wants := []plan.ID{t.Commit}
	if !t.Base.IsZero() && a.caps.Supports(capability.ThinPack) {
		steps = append(steps, step{wants: wants, depth: depth, base: t.Base, treesOnly: t.TreesOnly})
	}
	if shallow {
		steps = append(steps, step{wants: wants, depth: depth, treesOnly: t.TreesOnly})
	}
	if t.TreesOnly {
		return steps
	}
	return append(steps, step{wants: wants})
}

// attempt makes one request. If the answer does not have the commit, it returns no pack and no error; whole then reports whether
// the answer had the whole history.
func (f *fetch) attempt(ctx context.Context, s step) (in *store.Received, whole bool, err error) {
	f.t.Base = s.base
	in, whole, err = f.receive(ctx, s)
	if err != nil {
		return nil, false, err
	}
	found, err := f.t.HasCommit(in)
	if found && err == nil {
		return in, whole, nil
	}
	f.t.Drop(in)
	if err != nil {
		return nil, false, Explain(ctx, f.client.url, err, nil)
	}
	return nil, whole, nil
}

// receive makes one request and receives the pack of the answer. whole reports whether the answer has the whole history.
func (f *fetch) receive(ctx context.Context, s step) (in *store.Received, whole bool, err error) {
	x := &exchange{dog: f.dog}
	in, whole, err = f.requestPack(ctx, x, f.ad.request(s))
	secrets, err := x.outcome(err)
	if err == nil {
		return in, whole, nil
	}
	if in != nil {
		f.t.Drop(in)
	}
	return nil, false, Explain(ctx, f.client.url, err, secrets)
}

func (f *fetch) requestPack(ctx context.Context, x *exchange, req *packp.UploadPackRequest) (*store.Received, bool, error) {
	res, err := f.client.transport.upload(ctx, x, f.ad, req)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = res.Close() }()
	var stream io.Reader = res
	if req.Capabilities.Supports(capability.Sideband64k) || req.Capabilities.Supports(capability.Sideband) {
		stream = newSideband(res, nil, x.quote)
	}
	in, err := f.t.Receive(ctx, stream)
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
	for _, id := range s.wants {
		req.Wants = append(req.Wants, plumbing.Hash(id))
	}
	if s.depth > 0 {
		set(capability.Shallow)
		req.Depth = packp.DepthCommits(s.depth)
	}
	switch {
	case s.treesOnly:
		set(capability.Filter)
		req.Filter = packp.FilterBlobNone()
	case s.commitsOnly && a.caps.Supports(capability.Filter):
		set(capability.Filter)
		req.Filter = packp.FilterTreeDepth(0)
	}
	if !s.base.IsZero() {
		set(capability.ThinPack)
		req.Haves = []plumbing.Hash{plumbing.Hash(s.base)}
		if s.depth > 0 {
			req.Shallows = req.Haves
		}
	}
	return req
}

// Blobs receives blobs by their ids.
func (c *Client) Blobs(ctx context.Context, t *store.Transfer, ids []plan.ID) (*store.Received, error) {
	ctx, f, stop, err := c.startFetch(ctx, t)
	if err != nil {
		return nil, err
	}
	defer stop()
	in, _, err := f.receive(ctx, step{wants: ids})
	if err != nil {
		return nil, err
	}
	c.cache.put(f.ad)
	return in, nil
}
