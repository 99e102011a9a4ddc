package store

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"

	"stoker.io/stoker/agent/plan"
)

// Condition says what the next transfer must fetch.
type Condition int

// The conditions of a store.
const (
	Ready   Condition = iota // what changed since Store.Tip
	Empty                    // everything, because the store has no pack
	Grown                    // everything, because the store has grown too much
	Damaged                  // everything, because a part of the store cannot be read
)

// Transfer is a fetch under way. It receives packs beside those of the store, and publishes at most one of them. One goroutine at
// a time may use it.
type Transfer struct {
	Commit plan.ID // the object to fetch, usually a commit
	// Base is a commit of the store that a received pack may build on; zero if there is none.
	Base plan.ID
	// TreesOnly means that received packs lack the blobs. Publishing one makes the store Partial.
	TreesOnly bool
	// Bytes is the size of all packs received so far. MaxBytes is its limit; zero means no limit.
	Bytes, MaxBytes int64

	store     *Store
	root      *os.Root
	condition Condition
}

// Received is a pack that is complete on disk, but not yet part of the store.
type Received struct {
	Objects int

	temp string // name without extension
	name string // name after Publish, without extension
}

// Begin starts a transfer of a commit. The caller must close it.
func (s *Store) Begin(commit plan.ID) (*Transfer, error) {
	if err := s.Open(); err != nil {
		return nil, err
	}
	root, err := openRoot(s.dir)
	if err != nil {
		return nil, err
	}
	return &Transfer{Commit: commit, store: s, root: root, condition: s.packs.condition(root, s.maxPacks)}, nil
}

// Close closes the transfer. Received packs that were not published stay on disk until Drop or the next Open of the store.
func (t *Transfer) Close() { _ = t.root.Close() }

// Condition returns the condition of the store at the start of the transfer.
func (t *Transfer) Condition() Condition { return t.condition }

// Limits returns the limits of the store.
func (t *Transfer) Limits() Limits { return t.store.limits }

// Scratch creates a temporary file without a name in the store's directory.
func (t *Transfer) Scratch() (*os.File, error) { return createUnnamed(t.root, packDir) }

// Tip returns the commit of the last transfer, or zero if the store does not have all of it.
func (s *Store) Tip() plan.ID {
	tip := s.packs.lastTip()
	if tip.IsZero() || !s.Complete(tip) {
		return plan.ID{}
	}
	return tip
}

// SetTip makes Commit the tip of the store.
func (t *Transfer) SetTip() error {
	if !t.store.packs.setTip(t.Commit) && readTip(t.root) == t.Commit {
		return nil
	}
	return writeTip(t.root, t.Commit)
}

// Receive writes the pack in stream to disk. If Base is set, the pack may be thin.
func (t *Transfer) Receive(ctx context.Context, stream io.Reader) (*Received, error) {
	return t.newPack(func(file *os.File, sc *scratch) (packContents, error) {
		limits, err := t.limits()
		if err != nil {
			return packContents{}, err
		}
		if t.MaxBytes > 0 {
			limits.PackBytes = min(limits.PackBytes, t.MaxBytes-t.Bytes)
		}
		r := &receiver{limits: limits, scratch: sc, external: func(id plan.ID) (kind, *scratchObject, error) {
			if t.Base.IsZero() {
				return 0, nil, NotFound(id)
			}
			k, c, err := t.store.readIntoScratch(id, sc)
			if t.store.noteFileDamage(err) {
				err = NotFound(id)
			}
			return k, c, err
		}}
		order, trailer, err := r.run(ctx, stream, file)
		t.Bytes += r.stream.n
		return packContents{r.recs, order, trailer}, err
	})
}

// limits returns the limits of the next pack.
func (t *Transfer) limits() (Limits, error) {
	limits := t.store.limits
	if limits.DiskBytes <= 0 {
		return limits, nil
	}
	entries, err := fs.ReadDir(t.root.FS(), packDir)
	if err != nil {
		return limits, asDiskError(err)
	}
	var used int64
	for _, e := range entries {
		if info, err := e.Info(); err == nil { // it may have been removed meanwhile
			used += info.Size()
		}
	}
	return limits.within(used), nil
}

// packContents describes a new pack, for its index.
type packContents struct {
	recs    []record
	order   []int32
	trailer [packTrailerSize]byte
}

// newPack creates a pack file, calls write to fill it, writes its index, and makes both durable.
func (t *Transfer) newPack(write func(*os.File, *scratch) (packContents, error)) (*Received, error) {
	file, name, err := createTemp(t.root, packDir, packExt)
	if err != nil {
		return nil, err
	}
	in := &Received{temp: name[:len(name)-len(packExt)]}
	err = t.writePack(in, file, write)
	if err = errors.Join(err, file.Close()); err != nil {
		t.Drop(in)
		return nil, err
	}
	return in, nil
}

func (t *Transfer) writePack(in *Received, file *os.File, write func(*os.File, *scratch) (packContents, error)) error {
	sc := newScratch(t.Scratch, t.store.scratch)
	defer sc.close()
	p, err := write(file, sc)
	if err != nil {
		return err
	}
	in.name, in.Objects = packPrefix+hex.EncodeToString(p.trailer[:]), len(p.recs)
	if err := file.Sync(); err != nil {
		return asDiskError(err)
	}
	idx, err := t.root.OpenFile(in.temp+indexExt, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return asDiskError(err)
	}
	err = writeIndex(idx, p.recs, p.order, p.trailer)
	if err == nil {
		err = asDiskError(idx.Sync())
	}
	return errors.Join(err, idx.Close())
}

// Drop removes a received pack.
func (t *Transfer) Drop(in *Received) {
	for _, ext := range []string{packExt, indexExt} {
		_ = t.root.Remove(in.temp + ext)
	}
}

// CheckObjects returns nil if a received pack has all of the objects. If one is missing, IsNotFound holds for the error.
func (t *Transfer) CheckObjects(in *Received, ids ...plan.ID) error {
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
	k, text, err := t.readReceived(in)
	if err == nil {
		_, err = rootTreeID(t.Commit, k, text)
	}
	return text, err
}

// TagText is CommitText for a transfer whose Commit is the id of an annotated tag.
func (t *Transfer) TagText(in *Received) ([]byte, error) {
	k, text, err := t.readReceived(in)
	if err == nil && k != kindTag {
		err = corrupt("object %s is a %s, not a %s", t.Commit, k, kindTag)
	}
	return text, err
}

func (t *Transfer) readReceived(in *Received) (kind, []byte, error) {
	p, err := openPack(t.root, in.temp)
	if err != nil {
		return 0, nil, err
	}
	defer p.release()
	return t.readFrom(p)
}

// readFrom returns the kind and the bytes of Commit in a pack.
func (t *Transfer) readFrom(p *pack) (kind, []byte, error) {
	off, found, err := p.find(t.Commit)
	if err != nil {
		return 0, nil, err
	}
	if !found {
		return 0, nil, NotFound(t.Commit)
	}
	r := newReader(t.store.dir, t.store.scratch)
	defer r.scratch.close()
	o, err := p.locate(r.inflate, off, &t.store.limits)
	if err != nil {
		return 0, nil, err
	}
	var b bytes.Buffer
	err = o.writeTo(&b, r.inflate, r.scratch, &t.store.limits)
	return o.kind, b.Bytes(), err
}

// HasCommit reports whether a received pack has Commit, and the pack has the root tree or, if Base is set, the store has it.
func (t *Transfer) HasCommit(in *Received) (bool, error) {
	p, err := openPack(t.root, in.temp)
	if err != nil {
		return false, err
	}
	defer p.release()
	k, text, err := t.readFrom(p)
	if IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	tree, err := rootTreeID(t.Commit, k, text)
	if err != nil {
		return false, err
	}
	if _, ok, err := p.find(tree); ok || err != nil {
		return ok, err
	}
	return !t.Base.IsZero() && t.store.Has(tree), nil
}

// Publish makes a received pack part of the store, and Commit the tip. If replace is true, the pack replaces all others. If
// Publish fails, the pack may be part of the store.
func (t *Transfer) Publish(in *Received, replace bool) error {
	if err := t.rename(in); err != nil {
		return err
	}
	p, err := openPack(t.root, in.name)
	if err != nil {
		return err
	}
	var errs []error
	for _, q := range t.store.packs.add(p, replace) {
		if q.name != p.name {
			errs = append(errs, removePack(t.root, q.name))
		}
		q.release()
	}
	if replace {
		errs = append(errs, removeUnknownPacks(t.root, &t.store.packs))
	}
	return errors.Join(append(errs, t.SetTip())...)
}

// rename gives a received pack its final name, the index last. If it fails before that, it removes the mark of a partial pack: the mark
// would make a complete pack with the same name partial.
func (t *Transfer) rename(in *Received) error {
	mark, index := in.name+partialExt, in.name+indexExt
	marked, indexed := t.exists(mark), t.exists(index)
	err := t.renameFiles(in)
	if err != nil && t.TreesOnly && !marked && (indexed || !t.exists(index)) { // a new index may need the mark
		err = errors.Join(err, remove(t.root, mark))
	}
	if err != nil {
		return err
	}
	return syncDir(t.root, packDir)
}

func (t *Transfer) renameFiles(in *Received) error {
	if t.TreesOnly {
		if err := asDiskError(t.root.WriteFile(in.name+partialExt, nil, 0o600)); err != nil {
			return err
		}
		if err := syncDir(t.root, packDir); err != nil { // after a crash, a pack without this file would count as complete
			return err
		}
	}
	for _, ext := range []string{packExt, indexExt} {
		if err := asDiskError(t.root.Rename(in.temp+ext, in.name+ext)); err != nil {
			return err
		}
	}
	return nil
}

// exists reports whether there is a file. It returns true if that cannot be determined.
func (t *Transfer) exists(name string) bool {
	_, err := t.root.Lstat(name)
	return !errors.Is(err, fs.ErrNotExist)
}
