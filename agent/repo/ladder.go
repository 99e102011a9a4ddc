package repo

import (
	"context"
	"errors"
	"io"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// step is one way to ask for a commit.
type step struct {
	want  plan.ID
	more  []plan.ID // further wants
	depth int       // commits of history, 0 for all
	base  plan.ID   // a commit that we have, zero for none; the pack is thin then
	trees bool      // without blobs
}

// fetch asks for as little as possible, and for more where the server refuses:
//
//   - what changed since the last commit, as a thin pack. It needs both: without "deepen 1" a merge of an older branch
//     brings the whole history before our commit, and without a thin pack a shallow client gets the whole tree;
//   - the whole tree of the commit;
//   - the whole history of the commit;
//   - the history of the ref in which the commit was found, with growing depth, then that of all branches and tags.
func (w *smart) fetch(ctx context.Context, f *fetch) (*incoming, error) {
	ctx, dog, stop := watch(ctx, w.opts.Total, w.opts.StallBytes, w.opts.StallWindow)
	defer stop()
	a, err := w.advertised(ctx, dog)
	if err != nil {
		return nil, err
	}
	if len(a.refs.byName) == 0 {
		return nil, failure.New(v1alpha1.ReasonRefNotFound, "the repository %s is empty; commit %s cannot be in it", w.url, f.commit)
	}
	refusal := errors.New("what it sent does not hold it")
	for _, s := range a.steps(f) {
		in, _, err := w.attempt(ctx, dog, a, f, s)
		if in != nil && f.trees {
			w.last.put(a) // for the blobs that follow
		}
		if in != nil || !refused(err) {
			return in, err
		}
		w.opts.Log.Debug("the git server refused; asking for more", "depth", s.depth, "incremental", !s.base.IsZero(), "error", err)
		if err != nil {
			refusal = err
		}
	}
	if f.trees {
		return nil, &refusedError{refusal.Error()}
	}
	return w.search(ctx, dog, a, f, refusal)
}

// steps lists the ways to ask for a commit, the cheapest first.
func (a *advert) steps(f *fetch) []step {
	shallow := a.caps.Supports(capability.Shallow)
	if f.trees && (!shallow || !a.caps.Supports(capability.Filter)) {
		return nil // the trees of a whole history are no bargain
	}
	var s []step
	if !f.base.IsZero() && a.caps.Supports(capability.ThinPack) {
		depth := 0
		if shallow {
			depth = 1
		}
		s = append(s, step{want: f.commit, depth: depth, base: f.base, trees: f.trees})
	}
	if shallow {
		s = append(s, step{want: f.commit, depth: 1, trees: f.trees})
	}
	if f.trees {
		return s
	}
	return append(s, step{want: f.commit})
}

// refused reports whether another step may have more luck.
func refused(err error) bool {
	_, words := errors.AsType[*refusedError](err)
	_, base := errors.AsType[*missingBaseError](err)
	return err == nil || words || base
}

// attempt makes one request. It returns no pack and no error where the answer does not hold the commit; whole says that
// the answer then held all the history there is.
func (w *smart) attempt(ctx context.Context, dog *watchdog, a *advert, f *fetch, s step) (in *incoming, whole bool, err error) {
	f.base = s.base
	x := &exchange{dog: dog}
	in, whole, err = w.exchange(ctx, x, a, f, a.request(s))
	secrets, known := x.outcome()
	if known != nil {
		err = known
	}
	if err != nil {
		return nil, false, explain(ctx, w.url, err, secrets)
	}
	found, err := f.check(in)
	if err != nil || !found {
		f.drop(in)
	}
	switch {
	case err != nil:
		return nil, false, explain(ctx, w.url, err, secrets)
	case !found:
		return nil, whole, nil
	}
	return in, whole, nil
}

func (w *smart) exchange(ctx context.Context, x *exchange, a *advert, f *fetch, req *packp.UploadPackRequest) (*incoming, bool, error) {
	res, err := w.wire.upload(ctx, x, a, req)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = res.Close() }()
	var stream io.Reader = res
	if req.Capabilities.Supports(capability.Sideband64k) || req.Capabilities.Supports(capability.Sideband) {
		stream = newBand(res)
	}
	in, err := f.receive(ctx, stream)
	return in, req.Depth.IsZero() || len(res.Shallows) == 0, err
}

// request is the upload-pack request of a step.
func (a *advert) request(s step) *packp.UploadPackRequest {
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

// blobs asks for blobs by their ids.
func (w *smart) blobs(ctx context.Context, f *fetch, ids []plan.ID) (*incoming, error) {
	ctx, dog, stop := watch(ctx, w.opts.Total, w.opts.StallBytes, w.opts.StallWindow)
	defer stop()
	a, err := w.advertised(ctx, dog)
	if err != nil {
		return nil, err
	}
	req := a.request(step{})
	req.Wants = req.Wants[:0]
	for _, id := range ids {
		req.Wants = append(req.Wants, plumbing.Hash(id))
	}
	x := &exchange{dog: dog}
	in, _, err := w.exchange(ctx, x, a, f, req)
	secrets, known := x.outcome()
	if known != nil {
		err = known
	}
	if err != nil {
		return nil, explain(ctx, w.url, err, secrets)
	}
	w.last.put(a)
	return in, nil
}
