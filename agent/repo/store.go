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

type (
	// StoreOptions configures a Store.
	StoreOptions = store.Options
	// Limits bounds the cost of a repository.
	Limits = store.Limits
)

// IsDamaged reports whether an error says that the store is damaged: after another Fetch the read may succeed.
func IsDamaged(err error) bool { return store.IsDamaged(err) }

// Store fetches commits and keeps them on disk. It is a cache: if it is damaged or has grown too much, the next Fetch brings
// everything in a new pack, which replaces the old ones. All methods may be called from several goroutines; a Fetch does not
// disturb readers.
type Store struct {
	packs *store.Store
	log   *slog.Logger
	now   func() time.Time

	fetching mutex // one Fetch at a time
	looking  mutex // one Reaches at a time

	unreached unreached // guarded by looking
	promisor  promisor
}

// New returns a store in a directory of its own, which is opened on first use. Until it can be opened, the store is empty; Fetch
// returns the reason, and tries again.
func New(dir string, o StoreOptions) *Store {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Store{packs: store.New(dir, o), log: o.Log, now: time.Now, fetching: make(mutex, 1), looking: make(mutex, 1)}
}

// Open opens the store in a directory of its own, and creates it if there is none. It removes what a crash left behind.
func Open(dir string, o StoreOptions) (*Store, error) {
	s := New(dir, o)
	if err := s.packs.Open(); err != nil {
		return nil, err
	}
	return s, nil
}

// Close waits for a Fetch that is under way, and releases files and memory.
func (s *Store) Close() error {
	for _, m := range []mutex{s.fetching, s.looking} {
		m <- struct{}{}
		defer m.unlock()
	}
	return s.packs.Close()
}

// Dir returns the directory of the bare repository, as git --git-dir takes it.
func (s *Store) Dir() string { return s.packs.Dir() }

// Damaged reports whether a read or a fetch found the store damaged. Only this Store knows; one that opens the directory again does not.
func (s *Store) Damaged() bool { return s.packs.Damaged() }

// Has reports whether an object is in the store.
func (s *Store) Has(id plan.ID) bool { return s.packs.Has(id) }

// SortKey orders objects by their place on disk: reading many objects in the order of their keys reads each pack from front to
// back. An object that is not in the store has the key -1.
func (s *Store) SortKey(id plan.ID) int64 { return s.packs.SortKey(id) }

// RootTree returns the tree of a commit.
func (s *Store) RootTree(commit plan.ID) (plan.ID, error) { return s.packs.RootTree(commit) }

// Author returns the author of a commit, as name and mail.
func (s *Store) Author(commit plan.ID) (string, error) { return s.packs.Author(commit) }

// Tree implements plan.Objects.
func (s *Store) Tree(id plan.ID) ([]plan.Entry, error) { return s.packs.Tree(id) }

// WriteBlob implements plan.Objects. After FetchTrees it fetches a blob that is missing.
func (s *Store) WriteBlob(w io.Writer, id plan.ID) (int64, error) {
	n, err := s.packs.ReadBlob(w, id)
	if !store.IsNotFound(err) || !s.packs.Partial() {
		return n, s.packs.NoteDamage(err)
	}
	if err := s.fetchMissing(id); err != nil {
		return 0, err
	}
	return s.packs.ReadBlob(w, id)
}

var _ plan.Objects = (*Store)(nil)

// mutex is a mutex whose lock can be canceled by a context. Its capacity is one.
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
		return failure.New(v1alpha1.ReasonGitTimeout, "what is fetched already took all of the time; trying again: %w", cause)
	}
	return cause
}

func (m mutex) unlock() { <-m }
