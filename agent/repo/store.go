package repo

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// StoreOptions configures a Store.
type StoreOptions struct {
	Log    *slog.Logger // default: discard
	Limits Limits
	// MaxPacks is how many packs gather before the store is made anew from the tip; default 50.
	MaxPacks int
}

// Store keeps fetched commits as packs in a bare repository that git can read. It is a cache: what is damaged or has grown
// too much is fetched again into a new pack, and the old packs go when the new one is there. All methods may be called
// from several goroutines; readers are not disturbed by a Fetch.
type Store struct {
	dir      string
	log      *slog.Logger
	limits   Limits
	maxPacks int
	scratch  scratchSizes
	readers  sync.Pool // *reader
	now      func() time.Time

	fetching turn // one Fetch at a time
	looking  turn // and one Reaches

	unreached unreached // guarded by looking

	opening sync.Mutex // guards lock
	lock    *os.File
	opened  atomic.Bool // it has its lock, and knows its packs

	mu      sync.RWMutex    // guards what follows
	packs   []*pack         // never changed in place; oldest first
	tip     plan.ID         // the commit of the last Fetch, zero where it is not known
	damaged bool            // the next Fetch fetches everything
	promise *promise        // what can be had beside the packs, nil for nothing
	hasty   context.Context //nolint:containedctx // of who cannot wait long for it, see Hasten; nil for nobody
	closed  bool
}

// turn is had by one at a time.
type turn chan struct{}

// take waits for its turn, no longer than ctx. Who has it calls give at the end.
func (t turn) take(ctx context.Context) error {
	if ctx.Err() == nil {
		select {
		case t <- struct{}{}:
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

func (t turn) give() { <-t }

// errNotFound says that an object is not in the store.
var errNotFound = errors.New("object is not in the store")

// IsNotFound reports whether an error says that an object is not in the store.
func IsNotFound(err error) bool { return errors.Is(err, errNotFound) }

// New makes a store in a directory of its own that is opened when it is needed first. While that fails nothing is in it;
// a Fetch says why, and tries again. So what needs no git goes on without a place for a cache.
func New(dir string, o StoreOptions) *Store {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.MaxPacks <= 0 {
		o.MaxPacks = 50
	}
	s := &Store{dir: dir, log: o.Log, limits: o.Limits.withDefaults(), maxPacks: o.MaxPacks, scratch: defaultScratch(), now: time.Now,
		fetching: make(turn, 1), looking: make(turn, 1)}
	s.readers.New = func() any { return s.newReader() }
	return s
}

// Open opens the store in a directory of its own, and makes it where there is none. What a crash left is cleared away.
// Packs that cannot be used are put aside; the next Fetch replaces them. Only one process may have a store open.
func Open(dir string, o StoreOptions) (*Store, error) {
	s := New(dir, o)
	if err := s.open(); err != nil {
		return nil, err
	}
	return s, nil
}

// open does what is left to do before the store can be used.
func (s *Store) open() error {
	if s.opened.Load() {
		return nil
	}
	s.opening.Lock()
	defer s.opening.Unlock()
	if s.opened.Load() {
		return nil
	}
	if s.isClosed() {
		return errors.New("the repository's store is closed")
	}
	lock, err := lockStore(s.dir)
	if err != nil {
		return unusable(err)
	}
	err = s.load()
	if _, bad := errors.AsType[*storeError](err); bad {
		s.log.Warn("the repository's store cannot be read; it is set aside, and fetched again", "dir", s.dir, "error", err)
		if aside := s.setAside(); aside != nil {
			err = errors.Join(err, aside)
		} else {
			err = s.load()
		}
	}
	if err != nil {
		_ = lock.Close()
		return unusable(err)
	}
	s.lock = lock
	s.opened.Store(true)
	return nil
}

// unusable gives a store that cannot be opened its reason.
func unusable(err error) error {
	if failure.Is(err, v1alpha1.ReasonNoSpace) {
		return err
	}
	return failure.New(v1alpha1.ReasonWriteFailed, "the cache of git objects cannot be opened: %w", err)
}

// Close gives files and memory back. Reads that are under way end first.
func (s *Store) Close() error {
	for _, t := range []turn{s.fetching, s.looking} {
		t <- struct{}{}
		defer t.give()
	}
	s.opening.Lock()
	defer s.opening.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	for _, p := range s.packs {
		p.release()
	}
	s.packs = nil
	if s.lock == nil {
		return nil
	}
	return errors.Join(unlockFile(s.lock), s.lock.Close())
}

// Has reports whether an object is in the store.
func (s *Store) Has(id plan.ID) bool {
	packs := s.acquire()
	defer releaseAll(packs)
	_, _, err := find(packs, id)
	s.suspect(err)
	return err == nil
}

// SortKey orders objects as they lie on disk: reading many in the order of their keys reads each pack from front to back.
// An object that is not in the store has the key -1.
func (s *Store) SortKey(id plan.ID) int64 {
	packs := s.acquire()
	defer releaseAll(packs)
	p, off, err := find(packs, id)
	if err != nil {
		return -1
	}
	return p.seq<<40 | off
}

// RootTree returns the tree of a commit. An error for which IsNotFound holds means that the store does not have the
// commit, or does not have it any more.
func (s *Store) RootTree(commit plan.ID) (plan.ID, error) {
	var b bytes.Buffer
	k, _, err := s.read(&b, commit, 0)
	if err != nil {
		if !IsNotFound(err) {
			err = s.noticed(err)
		}
		return plan.ID{}, err
	}
	return rootTree(commit, k, b.Bytes())
}

// Tree implements plan.Objects.
func (s *Store) Tree(id plan.ID) ([]plan.Entry, error) {
	var b bytes.Buffer
	if _, _, err := s.read(&b, id, kindTree); err != nil {
		return nil, s.noticed(err)
	}
	return parseTree(id, b.Bytes())
}

// WriteBlob implements plan.Objects.
func (s *Store) WriteBlob(w io.Writer, id plan.ID) (int64, error) {
	_, n, err := s.read(w, id, kindBlob)
	if !IsNotFound(err) || !s.Partial() {
		return n, s.noticed(err)
	}
	if err := s.keepPromise(id); err != nil {
		return 0, err
	}
	_, n, err = s.read(w, id, kindBlob)
	return n, err
}

// noticed remembers damage: a tree or blob that belongs to a fetched commit must be there and readable.
func (s *Store) noticed(err error) error {
	if err == nil || (!s.suspect(err) && !errors.Is(err, errNotFound)) {
		return err
	}
	s.mu.Lock()
	s.damaged = true
	s.mu.Unlock()
	return failure.New(v1alpha1.ReasonGitUnreachable, "%w: %w", errDamaged, err)
}

// errDamaged is in the chain of an error of a read that found the store damaged.
var errDamaged = errors.New("the cache of git objects is damaged, and the next fetch replaces it")

// IsDamaged reports whether an error says that the store turned out to be damaged: after another Fetch the read may succeed.
func IsDamaged(err error) bool { return errors.Is(err, errDamaged) }

// suspect reports whether an error says that the store's files are not what they were, and remembers it.
func (s *Store) suspect(err error) bool {
	_, ours := errors.AsType[*storeError](err)
	if !ours && !errors.Is(err, errCorrupt) {
		return false
	}
	s.mu.Lock()
	first := !s.damaged && !s.closed
	s.damaged = true
	s.mu.Unlock()
	if first {
		s.log.Warn("the repository's store is damaged; it is fetched again", "dir", s.dir, "error", err)
	}
	return true
}

// acquire returns the packs as they are now. They stay open until releaseAll.
func (s *Store) acquire() []*pack {
	_ = s.open() // what cannot be opened has nothing; the next Fetch says why
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, p := range s.packs {
		p.retain()
	}
	return s.packs
}

func releaseAll(packs []*pack) {
	for _, p := range packs {
		p.release()
	}
}

// find looks for an object, in the newest pack first.
func find(packs []*pack, id plan.ID) (*pack, int64, error) {
	for i := len(packs) - 1; i >= 0; i-- {
		off, ok, err := packs[i].find(id)
		if err != nil {
			return nil, 0, err
		}
		if ok {
			return packs[i], off, nil
		}
	}
	return nil, 0, notFound(id)
}

func notFound(id plan.ID) error { return &missingError{id} }

// missingError names an object that is not there.
type missingError struct{ id plan.ID }

func (e *missingError) Error() string { return "object " + e.id.String() + " is not in the store" }
func (e *missingError) Is(target error) bool {
	return target == errNotFound
}

// rootTree reads the first line of a commit.
func rootTree(id plan.ID, k kind, b []byte) (plan.ID, error) {
	if k != kindCommit {
		return plan.ID{}, failure.New(v1alpha1.ReasonRefNotFound,
			"%s is a %s and no commit; ask for a branch, a tag of a commit, or a commit id", id, k)
	}
	const prefix = "tree "
	if len(b) > len(prefix)+40 && string(b[:len(prefix)]) == prefix && b[len(prefix)+40] == '\n' {
		if tree, err := plan.ParseID(string(b[len(prefix) : len(prefix)+40])); err == nil {
			return tree, nil
		}
	}
	return plan.ID{}, failure.New(v1alpha1.ReasonUnsupportedRepository,
		"commit %s of the repository is malformed: it names no tree; see what git fsck says of the repository", id)
}

var _ plan.Objects = (*Store)(nil)
