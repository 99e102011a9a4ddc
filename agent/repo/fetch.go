package repo

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"os"

	"stoker.io/stoker/agent/plan"
)

// FetchKind says how a Fetch came by its commit.
type FetchKind string

// The kinds of a Fetch.
const (
	FetchNone        FetchKind = "none"        // the commit was there
	FetchFirst       FetchKind = "first"       // everything, into an empty store
	FetchIncremental FetchKind = "incremental" // what changed since the last commit
	FetchRenewed     FetchKind = "renewed"     // everything, because the store had grown
	FetchRepaired    FetchKind = "repaired"    // everything, because the store was damaged
	FetchedTrees     FetchKind = "trees"       // the trees alone; blobs follow as they are asked for
)

// FetchStats says what a Fetch cost.
type FetchStats struct {
	Kind    FetchKind
	Bytes   int64 // of the packs that were received, also those that were of no use
	Objects int   // that were stored
}

// Fetch makes sure that the store has a commit with all its trees and blobs. ref is the name by which the commit was
// found ("" if it was asked for by its id): where a server does not give a commit by its id, it is looked for there.
//
// After FetchRenewed and FetchRepaired older commits are no longer in the store.
func (s *Store) Fetch(ctx context.Context, r *Remote, commit plan.ID, ref string) (FetchStats, error) {
	if err := s.fetching.take(ctx); err != nil {
		return FetchStats{}, err
	}
	defer s.fetching.give()
	return s.fetchAll(ctx, r, commit, ref)
}

// fetchAll is Fetch for who holds the lock.
func (s *Store) fetchAll(ctx context.Context, r *Remote, commit plan.ID, ref string) (FetchStats, error) {
	f, err := s.begin(r, commit, ref)
	if err != nil {
		return FetchStats{}, err
	}
	defer f.end()
	if f.stats.Kind == FetchIncremental && s.Partial() {
		f.stats.Kind = FetchRenewed // an increment would build on blobs that are not there
	}
	if err := f.run(ctx); err != nil {
		return f.stats, err
	}
	if f.stats.Kind != FetchNone {
		s.setPromise(nil)
	}
	return f.stats, nil
}

// begin prepares a Fetch.
func (s *Store) begin(r *Remote, commit plan.ID, ref string) (*fetch, error) {
	if s.isClosed() {
		return nil, errors.New("the repository's store is closed")
	}
	if err := s.open(); err != nil {
		return nil, err
	}
	root, err := s.openRoot()
	if err != nil {
		return nil, err
	}
	return &fetch{store: s, root: root, remote: r, commit: commit, ref: ref, stats: FetchStats{Kind: s.needs(root)}}, nil
}

func (f *fetch) end() { _ = f.root.Close() }

// run receives what is missing and makes it part of the store.
func (f *fetch) run(ctx context.Context) error {
	s := f.store
	if f.stats.Kind == FetchIncremental && s.complete(f.commit) {
		f.stats.Kind = FetchNone
		return s.setTip(f.root, f.commit)
	}
	if f.stats.Kind == FetchIncremental {
		f.base = s.base()
	}
	in, err := f.remote.fetch(ctx, f)
	if err != nil {
		return err
	}
	f.stats.Objects += in.objects
	if f.stats.Kind == FetchIncremental && f.base.IsZero() {
		f.stats.Kind = FetchRenewed // the server gave no increment
		if s.isDamaged() {
			f.stats.Kind = FetchRepaired // and could not, because its base cannot be read
		}
	}
	if err := s.publish(in, f); err != nil {
		f.drop(in)
		return err
	}
	s.log.Debug("fetched", "commit", f.commit, "kind", f.stats.Kind, "trees", f.trees, "bytes", f.stats.Bytes, "objects", f.stats.Objects)
	return nil
}

// fetch is one Fetch under way.
type fetch struct {
	store  *Store
	root   *os.Root
	remote *Remote
	commit plan.ID
	ref    string
	base   plan.ID // a commit that the store has, zero for none
	trees  bool    // no blobs
	cap    int64   // of stats.Bytes, 0 for none
	stats  FetchStats
}

// incoming is a pack that was received and is not yet part of the store.
type incoming struct {
	temp    string // name without extension
	name    string // to be
	objects int
}

func (s *Store) isClosed() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.closed
}

func (s *Store) isDamaged() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.damaged
}

// needs decides how the store wants to be fed.
func (s *Store) needs(root *os.Root) FetchKind {
	s.mu.Lock()
	defer s.mu.Unlock()
	total, largest := int64(0), int64(0)
	for _, p := range s.packs {
		if _, err := root.Stat(p.name + packExt); err != nil {
			s.damaged = true
		}
		if _, err := root.Stat(p.name + indexExt); err != nil {
			s.damaged = true
		}
		total, largest = total+p.size, max(largest, p.size)
	}
	switch {
	case s.damaged:
		return FetchRepaired
	case len(s.packs) == 0:
		return FetchFirst
	case len(s.packs) > s.maxPacks, total > 2*largest+smallStore:
		return FetchRenewed
	}
	return FetchIncremental
}

// smallStore is a size in bytes below which no store is worth making anew for its size.
const smallStore = 4 << 20

// complete reports whether the store has a commit and its tree. The rest is there too, but for the blobs where the store is
// Partial: packs are published whole.
func (s *Store) complete(commit plan.ID) bool {
	tree, err := s.RootTree(commit)
	return err == nil && s.Has(tree)
}

// base returns the last commit, where an increment can start from it.
func (s *Store) base() plan.ID {
	s.mu.RLock()
	tip := s.tip
	s.mu.RUnlock()
	if tip.IsZero() || !s.complete(tip) {
		return plan.ID{}
	}
	return tip
}

// receive stores the pack that stream holds beside the store's packs.
func (f *fetch) receive(ctx context.Context, stream io.Reader) (*incoming, error) {
	return f.newPack(func(file *os.File, sc *scratch) (packed, error) {
		limits := f.store.limits
		if f.cap > 0 {
			limits.PackBytes = min(limits.PackBytes, f.cap-f.stats.Bytes)
		}
		r := &receiver{limits: limits, scratch: sc, external: func(id plan.ID) (kind, *content, error) {
			if f.base.IsZero() {
				return 0, nil, notFound(id)
			}
			k, c, err := f.store.object(id, sc)
			if f.store.suspect(err) {
				err = notFound(id)
			}
			return k, c, err
		}}
		order, trailer, err := r.run(ctx, stream, file)
		f.stats.Bytes += r.in.n
		return packed{r.recs, order, trailer}, err
	})
}

// packed is the content of a new pack, ready for its index.
type packed struct {
	recs    []record
	order   []int32
	trailer [packTrailerSize]byte
}

// newPack makes a pack file, lets fill write it, writes its index, and makes both durable.
func (f *fetch) newPack(fill func(*os.File, *scratch) (packed, error)) (*incoming, error) {
	file, name, err := temporary(f.root, packDir, packExt)
	if err != nil {
		return nil, err
	}
	in := &incoming{temp: name[:len(name)-len(packExt)]}
	err = f.fill(in, file, fill)
	if err = errors.Join(err, file.Close()); err != nil {
		f.drop(in)
		return nil, err
	}
	return in, nil
}

func (f *fetch) fill(in *incoming, file *os.File, fill func(*os.File, *scratch) (packed, error)) error {
	sc := newScratch(func() (*os.File, error) { return anonymous(f.root, packDir) }, f.store.scratch)
	defer sc.close()
	p, err := fill(file, sc)
	if err != nil {
		return err
	}
	in.name, in.objects = packPrefix+hex.EncodeToString(p.trailer[:]), len(p.recs)
	if err := file.Sync(); err != nil {
		return onDisk(err)
	}
	idx, err := f.root.OpenFile(in.temp+indexExt, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return onDisk(err)
	}
	err = writeIndex(idx, p.recs, p.order, p.trailer)
	if err == nil {
		err = onDisk(idx.Sync())
	}
	return errors.Join(err, idx.Close())
}

func (f *fetch) drop(in *incoming) {
	for _, ext := range []string{packExt, indexExt} {
		_ = f.root.Remove(in.temp + ext)
	}
}

// check opens a received pack and insists that the commit is in it, with its tree there or in the store.
func (f *fetch) check(in *incoming) (found bool, err error) {
	p, err := openPack(f.root, in.temp)
	if err != nil {
		return false, err
	}
	defer p.release()
	off, found, err := p.find(f.commit)
	if err != nil || !found {
		return false, err
	}
	r := f.store.newReader()
	defer r.scratch.close()
	o, err := p.locate(r.inflate, off, &f.store.limits)
	if err != nil {
		return false, err
	}
	var b bytes.Buffer
	if err := o.writeTo(&b, r.inflate, r.scratch, &f.store.limits); err != nil {
		return false, err
	}
	tree, err := rootTree(f.commit, o.kind, b.Bytes())
	if err != nil {
		return false, err
	}
	if _, ok, err := p.find(tree); ok || err != nil {
		return ok, err
	}
	return !f.base.IsZero() && f.store.Has(tree), nil
}

// publish renames a received pack into place, the index last, and adds it to the store. Where it stands for itself, the
// older packs go.
func (s *Store) publish(in *incoming, f *fetch) error {
	if f.trees {
		if err := onDisk(f.root.WriteFile(in.name+partialExt, nil, 0o600)); err != nil {
			return err
		}
		if err := syncDir(f.root, packDir); err != nil { // a pack without its mark would count as whole
			return err
		}
	}
	if err := onDisk(f.root.Rename(in.temp+packExt, in.name+packExt)); err != nil {
		return err
	}
	if err := onDisk(f.root.Rename(in.temp+indexExt, in.name+indexExt)); err != nil {
		return err
	}
	if err := syncDir(f.root, packDir); err != nil {
		return err
	}
	p, err := openPack(f.root, in.name)
	if err != nil {
		return err
	}
	whole := f.stats.Kind != FetchIncremental
	s.mu.Lock()
	old := s.packs
	var keep []*pack
	if !whole {
		keep, old = old, nil
	}
	if n := len(s.packs); n > 0 {
		p.seq = s.packs[n-1].seq + 1
	}
	s.packs = append(keep[:len(keep):len(keep)], p)
	if whole {
		s.damaged = false
	}
	s.mu.Unlock()

	var errs []error
	for _, q := range old {
		if q.name != p.name {
			errs = append(errs, removePack(f.root, q.name))
		}
		q.release()
	}
	if whole {
		errs = append(errs, s.sweep(f.root))
	}
	return errors.Join(append(errs, s.setTip(f.root, f.commit))...)
}
