package repo

import (
	"context"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/store"
)

// FetchKind says how a Fetch got its commit.
type FetchKind string

// The kinds of a Fetch.
const (
	FetchNone        FetchKind = "none"        // nothing: the store had the commit
	FetchFirst       FetchKind = "first"       // everything, into an empty store
	FetchIncremental FetchKind = "incremental" // what changed since the last commit, or the blobs that FetchBlobs requested
	FetchRenewed     FetchKind = "renewed"     // everything, because the store had grown or lacked blobs, or the server sent no increment
	FetchRepaired    FetchKind = "repaired"    // everything, because the store was damaged
	FetchTreesOnly   FetchKind = "trees"       // only the trees; blobs follow on demand
)

var kinds = map[store.Condition]FetchKind{
	store.Ready: FetchIncremental, store.Empty: FetchFirst, store.Grown: FetchRenewed, store.Damaged: FetchRepaired,
}

// FetchStats has the cost of a Fetch.
type FetchStats struct {
	Kind    FetchKind
	Bytes   int64 // size of all received packs, including those without the commit
	Objects int   // number of stored objects
}

// Fetch makes sure that the store has a commit with all its trees and blobs. ref is the name by which the commit was found, "" if
// there is none. If a git server does not serve the commit by its id, Fetch searches the history of ref, then that of all branches and
// tags. After FetchRenewed and FetchRepaired, older commits are no longer in the store.
func (s *Store) Fetch(ctx context.Context, r *Remote, commit plan.ID, ref string) (FetchStats, error) {
	if err := s.fetching.lock(ctx); err != nil {
		return FetchStats{}, err
	}
	defer s.fetching.unlock()
	return s.fetchAll(ctx, r, commit, ref)
}

// fetchAll is Fetch for a caller that holds the lock fetching.
func (s *Store) fetchAll(ctx context.Context, r *Remote, commit plan.ID, ref string) (FetchStats, error) {
	f, err := s.begin(r, commit, ref)
	if err != nil {
		return FetchStats{}, err
	}
	defer f.Close()
	if err := f.run(ctx); err != nil {
		return f.stats(), err
	}
	if f.kind != FetchNone {
		s.promisor.set(nil)
	}
	return f.stats(), nil
}

// fetch is one Fetch under way.
type fetch struct {
	*store.Transfer
	store   *Store
	remote  *Remote
	ref     string
	kind    FetchKind
	objects int
}

// begin starts a fetch. The caller must close it.
func (s *Store) begin(r *Remote, commit plan.ID, ref string) (*fetch, error) {
	t, err := s.Begin(commit)
	if err != nil {
		return nil, err
	}
	return &fetch{Transfer: t, store: s, remote: r, ref: ref, kind: kinds[t.Condition()]}, nil
}

func (f *fetch) stats() FetchStats {
	return FetchStats{Kind: f.kind, Bytes: f.Bytes, Objects: f.objects}
}

// run receives the missing objects and publishes them.
func (f *fetch) run(ctx context.Context) error {
	packs := f.store.packs
	lacksBlobs := !f.TreesOnly && packs.Partial()
	switch intact := f.kind == FetchIncremental || f.kind == FetchRenewed; {
	case intact && !lacksBlobs && packs.Complete(f.Commit): // also if the store has grown, because git may be unreachable
		f.kind = FetchNone
		return f.SetTip()
	case intact && lacksBlobs:
		f.kind = FetchRenewed // an increment would lack the missing blobs
	case f.kind == FetchIncremental:
		f.Base = packs.Tip()
	}
	in, err := f.remote.source.Fetch(ctx, f.Transfer, f.ref)
	if err != nil {
		return err
	}
	f.objects = in.Objects
	if f.kind == FetchIncremental && f.Base.IsZero() {
		f.kind = FetchRenewed // the server sent no increment
		if packs.Damaged() {
			f.kind = FetchRepaired // there was no increment, because the base cannot be read
		}
	}
	if err := f.Publish(in, f.kind != FetchIncremental); err != nil {
		f.Drop(in)
		return err
	}
	f.store.log.Debug("fetched", "commit", f.Commit, "kind", f.kind, "trees", f.TreesOnly, "bytes", f.Bytes, "objects", f.objects)
	return nil
}
