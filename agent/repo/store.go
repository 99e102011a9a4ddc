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

// Store fetches commits and keeps them on disk. It is a cache: if it is damaged, the next Fetch fetches everything into a new pack,
// which replaces the old ones. If it has grown too much, the next Fetch of a commit that it lacks does that. Several goroutines may use it,
// also while a Fetch runs.
type Store struct {
	*packs // with the methods that read objects
	log    *slog.Logger
	now    func() time.Time

	fetching  mutex // held during Fetch, FetchTrees and FetchBlobs
	searching mutex // held during the transfers of Reaches, CommitText and Verify

	lastMiss miss // guarded by searching
	promisor promisor
}

// New returns a store in a directory that nothing else uses. The first use opens it. Until that succeeds, the store is empty, each
// use tries again, and Fetch returns the error.
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

// Close waits until no fetch and no search is running, and closes the files.
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
