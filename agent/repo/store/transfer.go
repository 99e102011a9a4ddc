package store

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"os"

	"stoker.io/stoker/agent/plan"
)

// Condition says what the next transfer has to bring.
type Condition int

// The conditions of a store.
const (
	Ready   Condition = iota // what changed since Store.Base
	Empty                    // everything, because nothing is there
	Grown                    // everything, because the store has grown too much
	Damaged                  // everything, because a part of the store cannot be read
)

// Transfer is one fetch under way: it receives packs beside those of the store, and publishes one of them.
type Transfer struct {
	Commit plan.ID // the commit to bring
	// Base is a commit of the store that a received pack may build on; zero if there is none.
	Base plan.ID
	// TreesOnly leaves out the blobs. A published pack makes the store Partial.
	TreesOnly bool
	// Bytes is the size of all packs that were received so far; MaxBytes is its limit, 0 for none.
	Bytes, MaxBytes int64

	store     *Store
	root      *os.Root
	condition Condition
}

// Received is a pack that is complete on disk and not yet part of the store.
type Received struct {
	Objects int

	temp string // its name without extension
	name string // its name once it is published
}

// Begin starts a transfer that brings a commit. The caller closes it.
func (s *Store) Begin(commit plan.ID) (*Transfer, error) {
	if s.isClosed() {
		return nil, errors.New("the repository's store is closed")
	}
	if err := s.Open(); err != nil {
		return nil, err
	}
	root, err := s.openRoot()
	if err != nil {
		return nil, err
	}
	return &Transfer{Commit: commit, store: s, root: root, condition: s.condition(root)}, nil
}

// Close releases what Begin opened. Packs that were received stay until Drop or the next Open.
func (t *Transfer) Close() { _ = t.root.Close() }

// Condition returns the condition of the store at the start of the transfer.
func (t *Transfer) Condition() Condition { return t.condition }

// Limits returns the limits of the store.
func (t *Transfer) Limits() Limits { return t.store.limits }

// Scratch creates a temporary file without a name in the store's directory.
func (t *Transfer) Scratch() (*os.File, error) { return anonymous(t.root, packDir) }

// smallStore is the size in bytes up to which a store never counts as grown because of its size.
const smallStore = 4 << 20

func (s *Store) condition(root *os.Root) Condition {
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
		return Damaged
	case len(s.packs) == 0:
		return Empty
	case len(s.packs) > s.maxPacks, total > 2*largest+smallStore:
		return Grown
	}
	return Ready
}

// Tip returns the commit of the last transfer if an increment can start from it, and zero if not.
func (s *Store) Tip() plan.ID {
	s.mu.RLock()
	tip := s.tip
	s.mu.RUnlock()
	if tip.IsZero() || !s.Complete(tip) {
		return plan.ID{}
	}
	return tip
}

// SetTip makes Commit the tip of the store, from which the next increment starts.
func (t *Transfer) SetTip() error {
	s := t.store
	s.mu.Lock()
	same := s.tip == t.Commit
	s.tip = t.Commit
	s.mu.Unlock()
	if same && readTip(t.root) == t.Commit {
		return nil
	}
	return writeTip(t.root, t.Commit)
}

// Receive stores the pack that stream holds.
func (t *Transfer) Receive(ctx context.Context, stream io.Reader) (*Received, error) {
	return t.newPack(func(file *os.File, sc *scratch) (packed, error) {
		limits := t.store.limits
		if t.MaxBytes > 0 {
			limits.PackBytes = min(limits.PackBytes, t.MaxBytes-t.Bytes)
		}
		r := &receiver{limits: limits, scratch: sc, external: func(id plan.ID) (kind, *content, error) {
			if t.Base.IsZero() {
				return 0, nil, NotFound(id)
			}
			k, c, err := t.store.object(id, sc)
			if t.store.suspect(err) {
				err = NotFound(id)
			}
			return k, c, err
		}}
		order, trailer, err := r.run(ctx, stream, file)
		t.Bytes += r.in.n
		return packed{r.recs, order, trailer}, err
	})
}

// packed is the content of a new pack, ready for its index.
type packed struct {
	recs    []record
	order   []int32
	trailer [packTrailerSize]byte
}

// newPack creates a pack file, lets fill write it, writes its index, and makes both durable.
func (t *Transfer) newPack(fill func(*os.File, *scratch) (packed, error)) (*Received, error) {
	file, name, err := temporary(t.root, packDir, packExt)
	if err != nil {
		return nil, err
	}
	in := &Received{temp: name[:len(name)-len(packExt)]}
	err = t.fill(in, file, fill)
	if err = errors.Join(err, file.Close()); err != nil {
		t.Drop(in)
		return nil, err
	}
	return in, nil
}

func (t *Transfer) fill(in *Received, file *os.File, fill func(*os.File, *scratch) (packed, error)) error {
	sc := newScratch(t.Scratch, t.store.scratch)
	defer sc.close()
	p, err := fill(file, sc)
	if err != nil {
		return err
	}
	in.name, in.Objects = packPrefix+hex.EncodeToString(p.trailer[:]), len(p.recs)
	if err := file.Sync(); err != nil {
		return onDisk(err)
	}
	idx, err := t.root.OpenFile(in.temp+indexExt, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return onDisk(err)
	}
	err = writeIndex(idx, p.recs, p.order, p.trailer)
	if err == nil {
		err = onDisk(idx.Sync())
	}
	return errors.Join(err, idx.Close())
}

// Drop removes a pack that was received.
func (t *Transfer) Drop(in *Received) {
	for _, ext := range []string{packExt, indexExt} {
		_ = t.root.Remove(in.temp + ext)
	}
}

// Contains returns nil if a received pack has all of the objects. If one is missing, IsNotFound holds for the error.
func (t *Transfer) Contains(in *Received, ids ...plan.ID) error {
	p, err := openPack(t.root, in.temp)
	if err != nil {
		return err
	}
	defer p.release()
	for _, id := range ids {
		if _, ok, err := p.find(id); err != nil {
			return err
		} else if !ok {
			return NotFound(id)
		}
	}
	return nil
}

// CommitText returns the bytes of Commit in a received pack. If the pack lacks it, IsNotFound holds for the error.
func (t *Transfer) CommitText(in *Received) ([]byte, error) {
	p, err := openPack(t.root, in.temp)
	if err != nil {
		return nil, err
	}
	defer p.release()
	text, _, err := t.commit(p)
	return text, err
}

// TagText returns the bytes of an annotated tag, whose id is Commit, in a received pack. If the pack lacks it, IsNotFound holds for the error.
func (t *Transfer) TagText(in *Received) ([]byte, error) {
	p, err := openPack(t.root, in.temp)
	if err != nil {
		return nil, err
	}
	defer p.release()
	k, text, err := t.text(p)
	if err == nil && k != kindTag {
		err = corrupt("object %s is a %s, where a %s belongs", t.Commit, k, kindTag)
	}
	return text, err
}

// commit returns the bytes of Commit in a pack, and its tree.
func (t *Transfer) commit(p *pack) (text []byte, tree plan.ID, err error) {
	k, text, err := t.text(p)
	if err != nil {
		return nil, plan.ID{}, err
	}
	tree, err = rootTree(t.Commit, k, text)
	return text, tree, err
}

// text returns the bytes of the object with the id Commit in a pack.
func (t *Transfer) text(p *pack) (kind, []byte, error) {
	off, found, err := p.find(t.Commit)
	if err != nil {
		return 0, nil, err
	}
	if !found {
		return 0, nil, NotFound(t.Commit)
	}
	r := t.store.newReader()
	defer r.scratch.close()
	o, err := p.locate(r.inflate, off, &t.store.limits)
	if err != nil {
		return 0, nil, err
	}
	var b bytes.Buffer
	err = o.writeTo(&b, r.inflate, r.scratch, &t.store.limits)
	return o.kind, b.Bytes(), err
}

// HasCommit reports whether a received pack has Commit, and the pack or the store has its tree.
func (t *Transfer) HasCommit(in *Received) (bool, error) {
	p, err := openPack(t.root, in.temp)
	if err != nil {
		return false, err
	}
	defer p.release()
	_, tree, err := t.commit(p)
	if IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if _, ok, err := p.find(tree); ok || err != nil {
		return ok, err
	}
	return !t.Base.IsZero() && t.store.Has(tree), nil
}

// Publish makes a received pack part of the store, and Commit the tip. With replace, the pack replaces all others.
func (t *Transfer) Publish(in *Received, replace bool) error {
	if err := t.rename(in); err != nil {
		return err
	}
	p, err := openPack(t.root, in.name)
	if err != nil {
		return err
	}
	s := t.store
	s.mu.Lock()
	old := s.packs
	var keep []*pack
	if !replace {
		keep, old = old, nil
	}
	if n := len(s.packs); n > 0 {
		p.seq = s.packs[n-1].seq + 1
	}
	s.packs = append(keep[:len(keep):len(keep)], p)
	if replace {
		s.damaged = false
	}
	s.mu.Unlock()

	var errs []error
	for _, q := range old {
		if q.name != p.name {
			errs = append(errs, removePack(t.root, q.name))
		}
		q.release()
	}
	if replace {
		errs = append(errs, s.sweep(t.root))
	}
	return errors.Join(append(errs, t.SetTip())...)
}

// rename moves a received pack into place, the index last.
func (t *Transfer) rename(in *Received) error {
	if t.TreesOnly {
		if err := onDisk(t.root.WriteFile(in.name+partialExt, nil, 0o600)); err != nil {
			return err
		}
		if err := syncDir(t.root, packDir); err != nil { // a pack without its mark would count as whole
			return err
		}
	}
	for _, ext := range []string{packExt, indexExt} {
		if err := onDisk(t.root.Rename(in.temp+ext, in.name+ext)); err != nil {
			return err
		}
	}
	return syncDir(t.root, packDir)
}
