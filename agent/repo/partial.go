package repo

import (
	"bytes"
	"context"
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/store"
	"stoker.io/stoker/agent/repo/wire"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/failure"
)

// If the store is lost but the data directory is not, most files of the commit are in the data directory already. So the store
// fetches only the trees, and then the requested blobs. It is partial until a plain Fetch completes it.
//
// A shallow fetch of the tip would be simpler, but costs eighty times the bytes: 57.5 MB instead of 0.7 MB for one changed file
// in a repository of size M (make bench, "store lost, one file changed"), for each gateway of a fleet that restarts with empty
// caches.

// maxWanted is the maximum number of blobs in one request. If more are missing, FetchBlobs fetches everything.
const maxWanted = 10_000

// FetchTrees makes sure that the store has a commit with all its trees. FetchBlobs then fetches many of its blobs at
// once, and, until ctx ends, WriteBlob fetches a missing one. If the store has a commit with all its blobs, or if the server cannot leave
// out blobs, FetchTrees is Fetch.
func (s *Store) FetchTrees(ctx context.Context, r *Remote, commit plan.ID, ref string) (FetchStats, error) {
	if err := s.fetching.lock(ctx); err != nil {
		return FetchStats{}, err
	}
	defer s.fetching.unlock()
	f, err := s.begin(r, commit, ref)
	if err != nil {
		return FetchStats{}, err
	}
	defer f.Close()
	if (f.kind == FetchRenewed || f.kind == FetchIncremental) && !s.Partial() {
		return s.fetchAll(ctx, r, commit, ref)
	}
	f.TreesOnly = true
	err = f.run(ctx)
	if wire.IsRefused(err) {
		s.log.Debug("server cannot omit blobs; fetching everything", "error", err)
		stats, err := s.fetchAll(ctx, r, commit, ref)
		stats.Bytes += f.Bytes
		return stats, err
	}
	if err != nil {
		return f.stats(), err
	}
	if f.kind != FetchNone {
		f.kind = FetchTreesOnly
	}
	p := &promise{ctx: ctx, remote: r, commit: commit, ref: ref}
	if last := s.promisor.get(); last != nil && last.commit == commit {
		p.blobPrefixes = last.blobPrefixes
	} else if p.blobPrefixes, err = s.blobPrefixes(commit); err != nil {
		return f.stats(), err
	}
	s.promisor.set(p)
	return f.stats(), nil
}

// FetchBlobs makes sure that the store has those of the blobs that belong to the commit of the last FetchTrees. It requests all
// missing blobs at once. If these are too many, or if the server refuses, it fetches everything. If the store has all blobs, it
// does nothing.
func (s *Store) FetchBlobs(ctx context.Context, ids []plan.ID) (FetchStats, error) {
	if err := s.fetching.lock(ctx); err != nil {
		return FetchStats{}, err
	}
	defer s.fetching.unlock()
	none := FetchStats{Kind: FetchNone}
	p := s.promisor.get()
	if p == nil {
		return none, nil
	}
	var missing []plan.ID
	for _, id := range ids {
		if p.mayContain(id) && !s.Has(id) {
			missing = append(missing, id)
		}
	}
	slices.SortFunc(missing, func(a, b plan.ID) int { return bytes.Compare(a[:], b[:]) })
	missing = slices.Compact(missing)
	switch n := len(missing); {
	case n == 0:
		return none, nil
	case n > maxWanted:
		return s.fetchAll(ctx, p.remote, p.commit, p.ref)
	}
	stats, err := s.fetchBlobs(ctx, p, missing)
	if err != nil && (wire.IsRefused(err) || store.IsNotFound(err)) {
		s.log.Debug("server does not serve blobs; fetching everything", "error", err)
		all, err := s.fetchAll(ctx, p.remote, p.commit, p.ref)
		all.Bytes += stats.Bytes
		return all, err
	}
	return stats, err
}

// fetchBlobs requests blobs. The caller holds the lock fetching.
func (s *Store) fetchBlobs(ctx context.Context, p *promise, ids []plan.ID) (FetchStats, error) {
	f, err := s.begin(p.remote, p.commit, p.ref)
	if err != nil {
		return FetchStats{}, err
	}
	defer f.Close()
	f.kind = FetchIncremental
	in, err := p.remote.source.Blobs(ctx, f.Transfer, ids)
	if err != nil {
		return f.stats(), err
	}
	f.objects = in.Objects
	if err = f.CheckObjects(in, ids...); err == nil {
		err = f.Publish(in, false)
	}
	if err != nil {
		f.Drop(in)
		return f.stats(), err
	}
	s.log.Debug("fetched blobs", "commit", p.commit, "wanted", len(ids), "bytes", f.Bytes)
	return f.stats(), nil
}

// promisor has the promise for the missing blobs of a partial store, as in a partial clone of git.
type promisor struct {
	mu      sync.Mutex
	promise *promise        // nil if there is none
	limit   context.Context //nolint:containedctx // of the last LimitFetches, nil if there is none
}

// promise says where to fetch the missing blobs of a commit.
type promise struct {
	ctx          context.Context //nolint:containedctx // of the FetchTrees that made the promise; single blobs are fetched until it ends
	remote       *Remote
	commit       plan.ID
	ref          string
	blobPrefixes []uint64 // idPrefix of all blobs of the commit, sorted

	// The mutex of promisor guards the fields below.
	fetchedSingly int       // blobs that were fetched one by one
	lastErr       error     // the error of the last fetch of a missing blob, nil if it succeeded
	failures      int       // in a row
	timeouts      int       // failures since the last success because the limit ended
	retryAt       time.Time // no fetch before this time after a failure
}

// maxSingle is the number of blobs that fetchMissing fetches one by one. For the next one, it fetches everything that is missing.
const maxSingle = 8

func (p *promisor) get() *promise {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.promise
}

func (p *promisor) set(next *promise) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.promise = next
}

// CanFetchBlobs reports whether the store can fetch missing blobs of a commit from r: after a FetchTrees whose context has not
// ended.
func (s *Store) CanFetchBlobs(r *Remote, commit plan.ID) bool {
	p := s.promisor.get()
	return p != nil && p.remote == r && p.commit == commit && p.ctx.Err() == nil
}

// LimitFetches is for a caller that cannot wait long for missing blobs. After ctx has ended, WriteBlob does not fetch them until
// the caller calls remove. After a fetch that took too long, the store pauses before it tries again. There is one limit at a
// time.
func (s *Store) LimitFetches(ctx context.Context) (remove func()) {
	set := func(ctx context.Context) {
		s.promisor.mu.Lock()
		defer s.promisor.mu.Unlock()
		s.promisor.limit = ctx
	}
	set(ctx)
	return func() { set(nil) }
}

// fetchMissing fetches a missing blob for a caller of WriteBlob. For a while after a failure, it returns the same error without a
// request: callers read many blobs, and each failing request can take until its timeout.
func (s *Store) fetchMissing(id plan.ID) error {
	p := s.promisor.get()
	if p == nil || !p.mayContain(id) {
		return store.NotFound(id)
	}
	s.promisor.mu.Lock()
	if p.lastErr != nil && s.now().Before(p.retryAt) {
		defer s.promisor.mu.Unlock()
		return p.lastErr
	}
	limit := s.promisor.limit
	if limit != nil && limit.Err() != nil {
		defer s.promisor.mu.Unlock()
		return failure.New(v1alpha1.ReasonGitTimeout, "blob %s is not fetched: its reader has waited long enough for other blobs", id.Short())
	}
	p.fetchedSingly++
	single := p.fetchedSingly <= maxSingle
	s.promisor.mu.Unlock()
	ctx, cancel := mergeContexts(p.ctx, limit)
	err := s.fetchOne(ctx, p, id, single)
	cancel()

	s.promisor.mu.Lock()
	defer s.promisor.mu.Unlock()
	switch {
	case err == nil:
		p.lastErr, p.failures, p.timeouts = nil, 0, 0
		return nil
	case single && failure.Is(err, v1alpha1.ReasonLimitExceeded): // another blob may be within the limit
	case p.ctx.Err() == nil && limit != nil && limit.Err() != nil:
		p.failures++
		p.timeouts++
		p.lastErr, p.retryAt = err, s.now().Add(backoff.AfterTimeout(p.timeouts))
	case p.ctx.Err() == nil:
		p.failures++
		asked, _ := backoff.Asked(err)
		p.lastErr, p.retryAt = err, s.now().Add(max(backoff.Retry(p.failures, backoff.MaxRetry), asked))
	}
	p.fetchedSingly-- // the blob was not fetched
	return err
}

// mergeContexts returns a context that ends when the first of two contexts ends. other may be nil. The caller must call cancel.
func mergeContexts(ctx, other context.Context) (_ context.Context, cancel func()) {
	if other == nil {
		return ctx, func() {}
	}
	ctx, cancelCause := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { cancelCause(context.Cause(other)) })
	return ctx, func() { stop(); cancelCause(nil) }
}

// fetchOne fetches a blob, or everything if single is false.
func (s *Store) fetchOne(ctx context.Context, p *promise, id plan.ID, single bool) error {
	if single {
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

// blobPrefixes returns idPrefix of all blobs of a commit, sorted.
func (s *Store) blobPrefixes(commit plan.ID) ([]uint64, error) {
	var prefixes []uint64
	if err := s.WalkBlobs(commit, func(id plan.ID) { prefixes = append(prefixes, idPrefix(id)) }); err != nil {
		return nil, err
	}
	slices.Sort(prefixes)
	return slices.Clip(slices.Compact(prefixes)), nil
}

// mayContain reports whether a blob may belong to the commit. Two blobs with the same idPrefix are unlikely.
func (p *promise) mayContain(id plan.ID) bool {
	_, ok := slices.BinarySearch(p.blobPrefixes, idPrefix(id))
	return ok
}

// idPrefix returns the first bytes of an id. A list of all blobs takes less memory with prefixes than with ids.
func idPrefix(id plan.ID) uint64 { return binary.BigEndian.Uint64(id[:8]) }
