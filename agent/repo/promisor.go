package repo

import (
	"context"
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/store"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/failure"
)

// promisor is the remote, if any, that promised the missing blobs of a partial store, as in a partial clone of git.
type promisor struct {
	mu      sync.Mutex
	promise *promise
	hasty   context.Context //nolint:containedctx // of the last Hasten, nil if there is none
}

// promise says from where the missing blobs of a commit can be fetched, in a store that holds only the commit's trees.
type promise struct {
	ctx    context.Context //nolint:containedctx // of the FetchTrees that made the promise; its end ends the promise
	remote *Remote
	commit plan.ID
	ref    string
	blobs  []uint64 // the first bytes of the ids of all blobs of the commit, sorted

	// The fields below are guarded by the mutex of promisor.
	single   int       // blobs that were fetched one by one
	failed   error     // the error of the last fetch of a missing blob, nil if it succeeded
	failures int       // in a row
	late     int       // of them, those in which the time of the reader was not enough
	until    time.Time // no fetch before this time after a failure
}

// maxSingle is the number of blobs that are fetched one by one. The next missing blob makes the store fetch all that
// are missing.
const maxSingle = 8

func (p *promisor) get() *promise {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.promise
}

func (p *promisor) set(to *promise) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.promise = to
}

// Promises reports whether the store can still fetch blobs of a commit from a remote, because of an earlier FetchTrees.
func (s *Store) Promises(r *Remote, commit plan.ID) bool {
	p := s.promisor.get()
	return p != nil && p.remote == r && p.commit == commit && p.ctx.Err() == nil
}

// Hasten is for a caller that reads blobs and cannot wait long for missing ones: when ctx has ended, no blob is fetched until the
// caller calls off. After a fetch that was too slow, the store waits before it tries again.
func (s *Store) Hasten(ctx context.Context) (off func()) {
	set := func(ctx context.Context) {
		s.promisor.mu.Lock()
		defer s.promisor.mu.Unlock()
		s.promisor.hasty = ctx
	}
	set(ctx)
	return func() { set(nil) }
}

// fetchMissing fetches a blob that a caller wants to read and the store does not have. The first maxSingle blobs are fetched one by one;
// then one fetch gets everything that is missing. For a while after a failure it returns the same error without asking the server again,
// because a caller reads many blobs and each failing request can take until its timeout.
func (s *Store) fetchMissing(id plan.ID) error {
	o := &s.promisor
	p := o.get()
	if p == nil || !p.has(id) {
		return store.NotFound(id)
	}
	o.mu.Lock()
	if p.failed != nil && s.now().Before(p.until) {
		defer o.mu.Unlock()
		return p.failed
	}
	hasty := o.hasty
	if hasty != nil && hasty.Err() != nil {
		defer o.mu.Unlock()
		return failure.New(v1alpha1.ReasonGitTimeout, "blob %s is not fetched: its reader has waited long enough for other blobs", id.Short())
	}
	p.single++
	alone := p.single <= maxSingle
	o.mu.Unlock()
	ctx, end := firstOf(p.ctx, hasty)
	err := s.fetchOne(ctx, p, id, alone)
	end()

	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case err == nil:
		p.failed, p.failures, p.late = nil, 0, 0
		return nil
	case alone && failure.Is(err, v1alpha1.ReasonLimitExceeded): // another blob may be within the limit
	case p.ctx.Err() == nil && hasty != nil && hasty.Err() != nil:
		p.failures++
		p.late++
		p.failed, p.until = err, s.now().Add(backoff.AfterTimeout(p.late))
	case p.ctx.Err() == nil:
		p.failures++
		asked, _ := RetryAfter(err)
		p.failed, p.until = err, s.now().Add(max(backoff.Retry(p.failures, backoff.MaxRetry), min(asked, backoff.MaxRetryAfter)))
	}
	p.single-- // the blob was not fetched
	return err
}

// firstOf returns a context that ends with the first of two contexts, of which the second may be nil. The caller calls end.
func firstOf(ctx, other context.Context) (_ context.Context, end func()) {
	if other == nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return ctx, func() { stop(); cancel(nil) }
}

// fetchOne fetches a blob, or everything.
func (s *Store) fetchOne(ctx context.Context, p *promise, id plan.ID, alone bool) error {
	if alone {
		_, err := s.FetchBlobs(ctx, []plan.ID{id})
		return err
	}
	if err := s.fetching.lock(ctx); err != nil {
		return err
	}
	defer s.fetching.unlock()
	if s.Has(id) {
		return nil // another goroutine has fetched it
	}
	_, err := s.fetchAll(ctx, p.remote, p.commit, p.ref)
	return err
}

// blobs returns the first bytes of the ids of all blobs of a commit, sorted.
func (s *Store) blobs(commit plan.ID) ([]uint64, error) {
	var heads []uint64
	if err := s.packs.WalkBlobs(commit, func(id plan.ID) { heads = append(heads, headOf(id)) }); err != nil {
		return nil, err
	}
	slices.Sort(heads)
	return slices.Clip(slices.Compact(heads)), nil
}

// has reports whether a blob may belong to the commit. A blob that does not is not requested.
func (p *promise) has(id plan.ID) bool {
	_, ok := slices.BinarySearch(p.blobs, headOf(id))
	return ok
}

func headOf(id plan.ID) uint64 { return binary.BigEndian.Uint64(id[:8]) }
