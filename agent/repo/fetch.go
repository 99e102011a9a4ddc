package repo

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/store"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// FetchKind says how a Fetch got its commit.
type FetchKind string

// The kinds of a Fetch.
const (
	FetchNone        FetchKind = "none"        // nothing: the store had the commit
	FetchFirst       FetchKind = "first"       // everything, into an empty store
	FetchIncremental FetchKind = "incremental" // what changed since the last commit
	FetchRenewed     FetchKind = "renewed"     // everything, because the store had grown
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
// there is none. If the server does not serve the commit by its id, Fetch first searches the history of ref. After FetchRenewed
// and FetchRepaired, older commits are no longer in the store.
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
	if f.kind == FetchIncremental && s.Partial() {
		f.kind = FetchRenewed // an increment would lack the missing blobs
	}
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
	if f.kind == FetchIncremental && packs.Complete(f.Commit) {
		f.kind = FetchNone
		return f.SetTip()
	}
	if f.kind == FetchIncremental {
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

type (
	// StoreOptions configures a Store.
	StoreOptions = store.Options
	// Limits bounds the cost of a repository.
	Limits = store.Limits
	// Objects reads objects of git. One goroutine at a time may use it.
	Objects = store.Objects
	packs   = store.Store
)

// IsNotFound reports whether an error says that an object is not in a store.
func IsNotFound(err error) bool { return store.IsNotFound(err) }

// OpenReadOnly opens the objects of the store in a directory that another process may have open; see store.OpenReadOnly.
func OpenReadOnly(ctx context.Context, dir string, limits Limits) (*Objects, error) {
	return store.OpenReadOnly(ctx, dir, limits)
}

// IsDamaged reports whether an error says that the store is damaged. After another Fetch, the read may succeed.
func IsDamaged(err error) bool { return store.IsDamaged(err) }

// Store fetches commits and keeps them on disk. It is a cache: if it is damaged or has grown too much, the next Fetch fetches
// everything into a new pack, which replaces the old ones. Several goroutines may use it, also while a Fetch runs.
type Store struct {
	*packs // with the methods that read objects
	log    *slog.Logger
	now    func() time.Time

	fetching  mutex // one Fetch at a time
	searching mutex // one Reaches, CommitText or Verify at a time

	lastMiss miss // guarded by searching
	promisor promisor
}

// New returns a store in a directory that nothing else uses. The first use opens it. Until that succeeds, the store is empty, and
// each Fetch tries again and returns the error.
func New(dir string, o StoreOptions) *Store {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Store{packs: store.New(dir, o), log: o.Log, now: time.Now, fetching: make(mutex, 1), searching: make(mutex, 1)}
}

// Open is New, but opens the store at once and returns the error.
func Open(dir string, o StoreOptions) (*Store, error) {
	s := New(dir, o)
	if err := s.Open(); err != nil {
		return nil, err
	}
	return s, nil
}

// Close waits for the end of a Fetch, and closes the files.
func (s *Store) Close() error {
	for _, m := range []mutex{s.fetching, s.searching} {
		m <- struct{}{}
		defer m.unlock()
	}
	return s.packs.Close()
}

// WriteBlob implements plan.Objects. After FetchTrees, it fetches a missing blob.
func (s *Store) WriteBlob(w io.Writer, id plan.ID) (int64, error) {
	n, err := s.ReadBlob(w, id)
	if !store.IsNotFound(err) || !s.Partial() {
		return n, s.NoteDamage(err)
	}
	if err := s.fetchMissing(id); err != nil {
		return 0, err
	}
	return s.ReadBlob(w, id)
}

var _ plan.Objects = (*Store)(nil)

// mutex is a mutex whose lock a context can cancel. Its capacity is one.
type mutex chan struct{}

func (m mutex) lock(ctx context.Context) error {
	if ctx.Err() == nil {
		select {
		case m <- struct{}{}:
			return nil
		case <-ctx.Done():
		}
	}
	cause := context.Cause(ctx)
	if errors.Is(cause, context.DeadlineExceeded) {
		return failure.New(v1alpha1.ReasonGitTimeout, "another fetch took all of the time; trying again: %w", cause)
	}
	return cause
}

func (m mutex) unlock() { <-m }
