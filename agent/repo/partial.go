package repo

import (
	"bytes"
	"context"
	"slices"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/store"
	"stoker.io/stoker/agent/repo/wire"
)

// If the store is lost and the data directory is not, most files of the commit are in the data directory already. So the store
// fetches only the trees, and then the blobs that are requested. Until then the store is partial: an increment with blobs does not
// build on it, and a plain Fetch completes it.
//
// A shallow fetch of the tip would be simpler, and costs eighty times the bytes: 54.8 MB instead of 0.7 MB for one changed file in a
// repository of size M (make bench, "store lost, one file changed"), for each gateway of a fleet that restarts with empty caches.

// maxWanted is the number of blobs in one request. If more are missing, everything is fetched.
const maxWanted = 10_000

// Partial reports whether the store holds trees whose blobs are not all there.
func (s *Store) Partial() bool { return s.packs.Partial() }

// FetchTrees makes sure that the store has a commit with all its trees, and can get its blobs: FetchBlobs fetches many at once, and
// WriteBlob fetches a missing one, until ctx is done. If the store has all blobs already, or the server cannot leave out blobs,
// FetchTrees is Fetch.
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
	if (f.kind == FetchRenewed || f.kind == FetchIncremental) && !s.packs.Partial() {
		return s.fetchAll(ctx, r, commit, ref)
	}
	f.TreesOnly = true
	err = f.run(ctx)
	if wire.IsRefused(err) {
		s.log.Debug("the git server does not leave out blobs; everything is fetched", "error", err)
		stats, err := s.fetchAll(ctx, r, commit, ref)
		stats.Bytes += f.Bytes
		return stats, err
	}
	if err != nil {
		return f.stats(), err
	}
	if f.kind != FetchNone {
		f.kind = FetchedTrees
	}
	p := &promise{ctx: ctx, remote: r, commit: commit, ref: ref}
	if last := s.promisor.get(); last != nil && last.commit == commit {
		p.blobs = last.blobs
	} else if p.blobs, err = s.blobs(commit); err != nil {
		return f.stats(), err
	}
	s.promisor.set(p)
	return f.stats(), nil
}

// FetchBlobs makes sure that the store has those of the blobs that belong to the commit of the last FetchTrees. It requests all
// missing blobs at once. If they are too many, or the server refuses, FetchBlobs is Fetch. If the store has all blobs already, it
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
		if p.has(id) && !s.Has(id) {
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
		s.log.Debug("the git server does not give blobs by their ids; everything is fetched", "error", err)
		all, err := s.fetchAll(ctx, p.remote, p.commit, p.ref)
		all.Bytes += stats.Bytes
		return all, err
	}
	return stats, err
}

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
	if err = f.Contains(in, ids...); err == nil {
		err = f.Publish(in, false)
	}
	if err != nil {
		f.Drop(in)
		return f.stats(), err
	}
	s.log.Debug("fetched blobs", "commit", p.commit, "wanted", len(ids), "bytes", f.Bytes)
	return f.stats(), nil
}
