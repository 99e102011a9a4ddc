package repo

import (
	"context"
	"encoding/binary"
	"slices"
	"time"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/pace"
)

// A store that was lost beside a data directory that was not needs little: of most files the right bytes lie there
// already. So it takes the trees alone, and then the blobs that are asked for. What it has then is partial: no increment
// that brings blobs builds on it, and a plain Fetch makes it whole.

const (
	maxWanted = 10_000 // blobs in one request; who wants more takes all
	maxSingle = 8      // blobs that are fetched one by one; who wants more takes all
)

// promise is what a store that holds only the trees of a commit can still get.
type promise struct {
	ctx    context.Context //nolint:containedctx // of the caller who made it, and who may end it
	remote *Remote
	commit plan.ID
	ref    string
	blobs  []uint64 // the heads of the ids of all blobs of the commit, sorted: a blob that is in none is not asked for
	single int

	failed   error // why the last blob that somebody read could not be had, nil where it could
	failures int   // in a row
	late     int   // of them, how often the time of who read was not enough
	until    time.Time
}

// Partial reports whether the store holds trees whose blobs are not all there.
func (s *Store) Partial() bool {
	_ = s.open()
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.ContainsFunc(s.packs, func(p *pack) bool { return p.partial })
}

// FetchTrees makes sure that the store has a commit with all its trees, and can get its blobs: FetchBlobs brings many at
// once, and WriteBlob one that is missing, with ctx. It is Fetch where the store is whole already, or where the server
// cannot leave out blobs.
func (s *Store) FetchTrees(ctx context.Context, r *Remote, commit plan.ID, ref string) (FetchStats, error) {
	if err := s.fetching.take(ctx); err != nil {
		return FetchStats{}, err
	}
	defer s.fetching.give()
	f, err := s.begin(r, commit, ref)
	if err != nil {
		return FetchStats{}, err
	}
	defer f.end()
	switch kind := f.stats.Kind; {
	case kind == FetchRenewed, kind == FetchIncremental && !s.Partial():
		return s.fetchAll(ctx, r, commit, ref)
	}
	f.trees = true
	err = f.run(ctx)
	if refused(err) && err != nil {
		s.log.Debug("the git server does not leave out blobs; everything is fetched", "error", err)
		stats, err := s.fetchAll(ctx, r, commit, ref)
		stats.Bytes += f.stats.Bytes
		return stats, err
	}
	if err != nil {
		return f.stats, err
	}
	if f.stats.Kind != FetchNone {
		f.stats.Kind = FetchedTrees
	}
	p := &promise{ctx: ctx, remote: r, commit: commit, ref: ref}
	if last := s.promised(); last != nil && last.commit == commit {
		p.blobs = last.blobs
	} else if err := s.list(p); err != nil {
		return f.stats, err
	}
	s.setPromise(p)
	return f.stats, nil
}

// Promises reports whether the store can still get blobs of a commit from a remote, by an earlier FetchTrees.
func (s *Store) Promises(r *Remote, commit plan.ID) bool {
	p := s.promised()
	return p != nil && p.remote == r && p.commit == commit && p.ctx.Err() == nil
}

// Hasten is for who reads blobs and cannot wait long for those that have to be fetched: they are not any more once ctx has
// ended, until off is called. What was not enough time once is not tried again soon.
func (s *Store) Hasten(ctx context.Context) (off func()) {
	set := func(ctx context.Context) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.hasty = ctx
	}
	set(ctx)
	return func() { set(nil) }
}

// FetchBlobs makes sure that the store has those of the blobs that belong to the commit of the last FetchTrees. It asks
// for all that are missing in one request; where that is too many, or the server refuses, it is a Fetch. In a store that
// is whole it does nothing.
func (s *Store) FetchBlobs(ctx context.Context, ids []plan.ID) (FetchStats, error) {
	if err := s.fetching.take(ctx); err != nil {
		return FetchStats{}, err
	}
	defer s.fetching.give()
	none := FetchStats{Kind: FetchNone}
	p := s.promised()
	if p == nil {
		return none, nil
	}
	var missing []plan.ID
	for _, id := range ids {
		if p.has(id) && !s.Has(id) {
			missing = append(missing, id)
		}
	}
	slices.SortFunc(missing, compareIDs)
	missing = slices.Compact(missing)
	switch n := len(missing); {
	case n == 0:
		return none, nil
	case n > maxWanted:
		return s.fetchAll(ctx, p.remote, p.commit, p.ref)
	}
	stats, err := s.fetchBlobs(ctx, p, missing)
	if err != nil && (refused(err) || IsNotFound(err)) {
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
	defer f.end()
	f.stats.Kind = FetchIncremental
	in, err := p.remote.source.blobs(ctx, f, ids)
	if err != nil {
		return f.stats, err
	}
	f.stats.Objects = in.objects
	if err = f.holds(in, ids); err == nil {
		err = s.publish(in, f)
	}
	if err != nil {
		f.drop(in)
		return f.stats, err
	}
	s.log.Debug("fetched blobs", "commit", p.commit, "wanted", len(ids), "bytes", f.stats.Bytes)
	return f.stats, nil
}

// holds insists that a received pack has all that was asked for.
func (f *fetch) holds(in *incoming, ids []plan.ID) error {
	p, err := openPack(f.root, in.temp)
	if err != nil {
		return err
	}
	defer p.release()
	for _, id := range ids {
		if _, ok, err := p.find(id); err != nil {
			return err
		} else if !ok {
			return notFound(id)
		}
	}
	return nil
}

// keepPromise fetches a blob that somebody reads and that is not there: alone, and after some such everything. Where that
// fails, whoever reads another one soon after is told the same, and nobody is asked: one reads many, and each try may take as
// long as a server has to answer.
func (s *Store) keepPromise(id plan.ID) error {
	p := s.promised()
	if p == nil || !p.has(id) {
		return notFound(id)
	}
	s.mu.Lock()
	if p.failed != nil && s.now().Before(p.until) {
		defer s.mu.Unlock()
		return p.failed
	}
	hasty := s.hasty
	if hasty != nil && hasty.Err() != nil {
		defer s.mu.Unlock()
		return failure.New(v1alpha1.ReasonGitTimeout, "blob %s is not fetched: whoever reads it has waited for others already", id.Short())
	}
	p.single++
	alone := p.single <= maxSingle
	s.mu.Unlock()
	ctx, end := both(p.ctx, hasty)
	err := s.get(ctx, p, id, alone)
	end()

	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		p.failed, p.failures, p.late = nil, 0, 0
		return nil
	case alone && failure.Is(err, v1alpha1.ReasonLimitExceeded): // that says nothing of another blob
	case p.ctx.Err() == nil && hasty != nil && hasty.Err() != nil:
		p.failures++
		p.late++
		p.failed, p.until = err, s.now().Add(pace.TooSlow(p.late))
	case p.ctx.Err() == nil:
		p.failures++
		asked, _ := RetryAfter(err)
		p.failed, p.until = err, s.now().Add(max(pace.Retry(p.failures, pace.MaxRetry), min(asked, pace.MaxAsked)))
	}
	p.single-- // it was not fetched
	return err
}

// both ends with the first of two contexts, of which the second may be nil, and with end.
func both(ctx, other context.Context) (_ context.Context, end func()) {
	if other == nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return ctx, func() { stop(); cancel(nil) }
}

// get fetches a blob, or everything.
func (s *Store) get(ctx context.Context, p *promise, id plan.ID, alone bool) error {
	if alone {
		_, err := s.FetchBlobs(ctx, []plan.ID{id})
		return err
	}
	if err := s.fetching.take(ctx); err != nil {
		return err
	}
	defer s.fetching.give()
	if s.Has(id) {
		return nil // somebody else was faster
	}
	_, err := s.fetchAll(ctx, p.remote, p.commit, p.ref)
	return err
}

func (s *Store) promised() *promise {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.promise
}

func (s *Store) setPromise(p *promise) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.promise = p
}

// list notes which blobs the trees of a commit name.
func (s *Store) list(p *promise) error {
	root, err := s.RootTree(p.commit)
	if err != nil {
		return err
	}
	seen := map[plan.ID]struct{}{}
	var walk func(id plan.ID, depth int) error
	walk = func(id plan.ID, depth int) error {
		if _, ok := seen[id]; ok {
			return nil
		}
		seen[id] = struct{}{}
		if depth > maxTreeDepth {
			return overLimit("directories are nested deeper than %d", maxTreeDepth)
		}
		if len(p.blobs) > s.limits.Objects {
			return overLimit("the commit has more than %d files", s.limits.Objects)
		}
		entries, err := s.Tree(id)
		if err != nil {
			return err
		}
		for _, e := range entries {
			switch e.Mode {
			case plan.Directory:
				if err := walk(e.ID, depth+1); err != nil {
					return err
				}
			case plan.Submodule:
			default:
				p.blobs = append(p.blobs, headOf(e.ID))
			}
		}
		return nil
	}
	if err := walk(root, 0); err != nil {
		return err
	}
	slices.Sort(p.blobs)
	p.blobs = slices.Clip(slices.Compact(p.blobs))
	return nil
}

func (p *promise) has(id plan.ID) bool {
	_, ok := slices.BinarySearch(p.blobs, headOf(id))
	return ok
}

func headOf(id plan.ID) uint64 { return binary.BigEndian.Uint64(id[:8]) }
