// Package store keeps git objects on disk in a bare repository of packs with version 2 indexes, which git itself can read.
//
// A Store reads objects. A Transfer adds them. It writes the stream of a pack, or the objects of another directory, into a new
// pack beside the others, in one pass and in bounded memory. It publishes the pack when the pack is complete.
//
// The bytes of a repository are not trusted. The package checks every size that they claim against Limits before it spends memory
// or disk on them. A Store is a cache: if it is damaged, its owner fetches everything again.
package store

import (
	"crypto/rand"
	"errors"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Options configures a Store. Zero fields take the default.
type Options struct {
	Log    *slog.Logger // default: discard
	Limits Limits
	// MaxPacks is the number of packs after which the store counts as Grown; default 50.
	MaxPacks int
}

// Store is a bare repository of packs. Several goroutines may use it, also while a Transfer runs. Only one Transfer may publish
// at a time.
type Store struct {
	dir      string
	log      *slog.Logger
	limits   Limits
	maxPacks int
	scratch  scratchSizes
	readers  sync.Pool // of *reader
	packs    packSet

	opening sync.Mutex // guards lock
	lock    *os.File
	opened  atomic.Bool // the store has its lock and its packs
}

// New returns a store in a directory that nothing else uses. The first use opens it; after a failure, the next use tries again.
// Until then the store is empty, and Begin returns the error. So work that needs no git goes on without a usable directory.
func New(dir string, o Options) *Store {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.MaxPacks <= 0 {
		o.MaxPacks = 50
	}
	s := &Store{dir: dir, log: o.Log, limits: o.Limits.withDefaults(), maxPacks: o.MaxPacks}
	s.scratch = defaultScratch(s.limits)
	s.readers.New = func() any { return newReader(s.dir, s.scratch) }
	return s
}

// Open opens the directory of the store. It creates the repository if there is none, and removes what a crash left behind. It
// fails if another process has the store open.
func (s *Store) Open() error {
	if s.opened.Load() {
		return nil
	}
	s.opening.Lock()
	defer s.opening.Unlock()
	if s.opened.Load() {
		return nil
	}
	if s.packs.isClosed() {
		return errors.New("the repository's store is closed")
	}
	lock, err := lockStore(s.dir)
	if err != nil {
		return unusable(err)
	}
	err = s.load()
	if _, unreadable := errors.AsType[*DiskError](err); unreadable {
		s.log.Warn("unreadable git store; fetching it again", "dir", s.dir, "error", err)
		if moveErr := setAside(s.dir); moveErr != nil {
			err = errors.Join(err, moveErr)
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

// unusable adds a reason to the error of a store that cannot be opened.
func unusable(err error) error {
	if failure.Is(err, v1alpha1.ReasonNoSpace) {
		return err
	}
	return failure.New(v1alpha1.ReasonWriteFailed, "the cache of git objects cannot be opened: %w", err)
}

// Close closes the files and releases the lock. A read that is under way keeps its packs until it ends. The caller must close
// every Transfer first.
func (s *Store) Close() error {
	s.opening.Lock()
	defer s.opening.Unlock()
	s.opened.Store(false)
	if wasOpen := s.packs.close(); !wasOpen || s.lock == nil {
		return nil
	}
	return errors.Join(unlockFile(s.lock), s.lock.Close())
}

// Partial reports whether the store has trees but lacks some of their blobs.
func (s *Store) Partial() bool {
	_ = s.Open()
	return s.packs.partial()
}

// Damaged reports whether a read or a transfer found the store damaged. The next transfer must fetch everything.
func (s *Store) Damaged() bool { return s.packs.isDamaged() }

// NoteDamage marks the store as damaged if err reports damage or a missing object; IsDamaged is then true for the result. Other
// errors stay as they are. It is for reads of objects that the store must have: those of a fetched commit.
func (s *Store) NoteDamage(err error) error {
	if err == nil || (!s.noteFileDamage(err) && !IsNotFound(err)) {
		return err
	}
	s.packs.markDamaged()
	return failure.New(v1alpha1.ReasonGitUnreachable, "%w: %w", errDamaged, err)
}

var errDamaged = errors.New("the cache of git objects is damaged, and the next fetch replaces it")

// IsDamaged reports whether an error says that the store is damaged. After another fetch, the read may succeed.
func IsDamaged(err error) bool { return errors.Is(err, errDamaged) }

// noteFileDamage marks the store as damaged if err says that its files cannot be read or have wrong content. It reports whether
// err does. Unlike for NoteDamage, a missing object is not damage.
func (s *Store) noteFileDamage(err error) bool {
	_, unreadable := errors.AsType[*DiskError](err)
	if !unreadable && !errors.Is(err, ErrCorrupt) {
		return false
	}
	if s.packs.markDamaged() {
		s.log.Warn("damaged git store; fetching it again", "dir", s.dir, "error", err)
	}
	return true
}

// acquire is packSet.acquire for a store that may have to be opened first.
func (s *Store) acquire() []*pack {
	_ = s.Open() // a store that cannot be opened is empty; Begin returns the reason
	return s.packs.acquire()
}

// asDiskError marks an error of the store's own directory: NoSpace if nothing can be written, else a DiskError.
func asDiskError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EROFS), errors.Is(err, syscall.EFBIG):
		return failure.New(v1alpha1.ReasonNoSpace,
			"the repository's store cannot be written: %w; free some space, or use another directory", err)
	}
	return &DiskError{err}
}

// DiskError is an error of the store's own directory. Received data did not cause it.
type DiskError struct{ err error }

func (e *DiskError) Error() string { return "the repository's store: " + e.err.Error() }
func (e *DiskError) Unwrap() error { return e.err }

// createTemp creates a file with a random name in dir. If a crash leaves the file behind, the next Open removes it.
func createTemp(root *os.Root, dir, suffix string) (*os.File, string, error) {
	name := dir + "/" + tempPrefix + rand.Text() + suffix
	f, err := root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	return f, name, asDiskError(err)
}

// createUnnamed creates a temporary file and removes its name, so that closing the file frees its space.
func createUnnamed(root *os.Root, dir string) (*os.File, error) {
	f, name, err := createTemp(root, dir, ".scratch")
	if err != nil {
		return nil, err
	}
	if err := root.Remove(name); err != nil {
		_ = f.Close()
		return nil, asDiskError(err)
	}
	return f, nil
}

// syncDir makes created, renamed and removed names of a directory durable.
func syncDir(root *os.Root, dir string) error {
	d, err := root.Open(dir)
	if err != nil {
		return asDiskError(err)
	}
	defer func() { _ = d.Close() }()
	return asDiskError(d.Sync())
}
