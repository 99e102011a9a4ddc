package store

import (
	"bytes"
	"context"
	"io"
	"os"

	"stoker.io/stoker/agent/plan"
)

// Importer makes git objects of content that does not come in a pack. One that NewHasher returns computes only their ids. One of Transfer.Import
// also writes them. It bounds the number, the sizes and the sum of what it takes. One goroutine at a time may use it.
type Importer struct {
	ctx      context.Context //nolint:containedctx // lives for one import
	limits   Limits
	hasher   *objectHasher
	buf      []byte
	objects  int
	inflated int64

	// Only to write.
	to      *Transfer
	out     *packWriter
	scratch *scratch
	recs    []record
	seen    map[plan.ID]struct{}
}

// NewHasher returns an Importer that computes the ids of objects and writes nothing.
func NewHasher(ctx context.Context, limits Limits) *Importer {
	return newImporter(ctx, limits.withDefaults())
}

func newImporter(ctx context.Context, limits Limits) *Importer {
	return &Importer{ctx: ctx, limits: limits, hasher: newObjectHasher(), buf: make([]byte, 64<<10)}
}

// Import writes the objects that build adds into a new pack. If Base is set, it leaves out what the store has. build must add a commit with
// the id Commit after everything that belongs to it.
func (t *Transfer) Import(ctx context.Context, build func(*Importer) error) (*Received, error) {
	return t.newPack(func(file *os.File, sc *scratch) (packContents, error) {
		limits, err := t.limits()
		if err != nil {
			return packContents{}, err
		}
		i := newImporter(ctx, limits)
		i.to, i.out, i.scratch, i.seen = t, newPackWriter(file, packHeaderSize), sc, map[plan.ID]struct{}{}
		if err := build(i); err != nil {
			return packContents{}, err
		}
		end, err := i.out.finish()
		if err != nil {
			return packContents{}, err
		}
		t.Bytes += end
		order, err := sortByID(i.recs)
		if err != nil {
			return packContents{}, err
		}
		trailer, err := finishPack(file, i.recs, end, true)
		return packContents{i.recs, order, trailer}, err
	})
}

// Blob adds a blob of size bytes, which it reads from r, and returns its id.
func (i *Importer) Blob(size int64, r io.Reader) (plan.ID, error) {
	if size > i.limits.DeltaBytes {
		return plan.ID{}, OverLimit("a file has %d bytes, more than %d", size, i.limits.DeltaBytes)
	}
	return i.add(kindBlob, size, r)
}

// Tree adds a tree with this content.
func (i *Importer) Tree(content []byte) (plan.ID, error) {
	return i.add(kindTree, int64(len(content)), bytes.NewReader(content))
}

// Commit adds a commit with this content.
func (i *Importer) Commit(content []byte) (plan.ID, error) {
	return i.add(kindCommit, int64(len(content)), bytes.NewReader(content))
}

func (i *Importer) add(k kind, size int64, r io.Reader) (plan.ID, error) {
	if err := i.count(k, size); err != nil {
		return plan.ID{}, err
	}
	hash := i.hasher.start(k, size)
	if i.out == nil {
		if _, err := io.CopyBuffer(hash, exactly(r, size), i.buf); err != nil {
			return plan.ID{}, err
		}
		return i.hasher.id()
	}
	content, err := i.scratch.alloc(size)
	if err != nil {
		return plan.ID{}, err
	}
	defer content.free()
	if _, err := io.CopyBuffer(io.MultiWriter(content, hash), exactly(r, size), i.buf); err != nil {
		return plan.ID{}, err
	}
	id, err := i.hasher.id()
	if err != nil || !i.needed(id) {
		return id, err
	}
	rec, err := i.out.add(id, k, size, func(w io.Writer) error { return content.copyTo(w, 0, size, i.buf) })
	if err != nil {
		return id, err
	}
	i.recs = append(i.recs, rec)
	if i.out.position() > i.limits.PackBytes {
		return id, OverLimit("the content has more than %d packed bytes", i.limits.PackBytes)
	}
	return id, nil
}

// count checks and adds what one more object costs.
func (i *Importer) count(k kind, size int64) error {
	if err := i.ctx.Err(); err != nil {
		return context.Cause(i.ctx)
	}
	if err := i.limits.checkSize(k, size); err != nil {
		return err
	}
	if i.objects++; i.objects > i.limits.Objects {
		return OverLimit("the content has more than %d objects", i.limits.Objects)
	}
	most := min(i.limits.InflatedBytes, i.limits.PackBytes)
	if i.inflated += size; i.inflated > most {
		return OverLimit("the content has more than %d bytes", most)
	}
	return nil
}

// needed reports whether an object must be written, and marks it as seen.
func (i *Importer) needed(id plan.ID) bool {
	if _, ok := i.seen[id]; ok {
		return false
	}
	i.seen[id] = struct{}{}
	return i.to.Base.IsZero() || !i.to.store.Has(id)
}

// exactly reads size bytes of r. If r ends before, it returns io.ErrUnexpectedEOF. It hides that r may write itself to a writer.
func exactly(r io.Reader, size int64) io.Reader { return &exactReader{r, size} }

type exactReader struct {
	r    io.Reader
	left int64
}

func (e *exactReader) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n, err := e.r.Read(p[:min(int64(len(p)), e.left)])
	e.left -= int64(n)
	if err == io.EOF && e.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// Copy copies objects into a new pack: blobs, or Commit with all its trees and blobs if blobs is empty. If Base is set, Copy
// leaves out the objects that the store has already.
func (t *Transfer) Copy(ctx context.Context, from *Objects, blobs []plan.ID) (*Received, error) {
	return t.newPack(func(file *os.File, _ *scratch) (packContents, error) {
		c := &copier{ctx: ctx, from: from, to: t, blobs: blobs, seen: map[plan.ID]struct{}{}}
		return c.run(file)
	})
}

// copier writes objects of another directory into a pack.
type copier struct {
	ctx      context.Context //nolint:containedctx // lives for one call
	from     *Objects
	to       *Transfer
	blobs    []plan.ID // if not empty, only these are copied
	out      *packWriter
	recs     []record
	seen     map[plan.ID]struct{}
	inflated int64
}

func (c *copier) run(file *os.File) (packContents, error) {
	c.out = newPackWriter(file, packHeaderSize)
	if err := c.copyAll(); err != nil {
		return packContents{}, err
	}
	end, err := c.out.finish()
	if err != nil {
		return packContents{}, err
	}
	c.to.Bytes += end
	order, err := sortByID(c.recs)
	if err != nil {
		return packContents{}, err
	}
	trailer, err := finishPack(file, c.recs, end, true)
	return packContents{c.recs, order, trailer}, err
}

// copyAll copies the requested blobs, or the commit with everything that belongs to it.
func (c *copier) copyAll() error {
	for _, id := range c.blobs {
		if err := c.copyBlob(id); err != nil {
			return err
		}
	}
	if len(c.blobs) > 0 {
		return nil
	}
	commit, err := c.copyAndRead(c.to.Commit, 0)
	if err != nil {
		return err
	}
	tree, err := rootTreeID(c.to.Commit, c.recs[0].kind, commit)
	if err != nil {
		return err
	}
	return c.copyTree(tree, 0)
}

// markNeeded reports whether an object must still be copied, and marks it as seen.
func (c *copier) markNeeded(id plan.ID) bool {
	if _, ok := c.seen[id]; ok {
		return false
	}
	c.seen[id] = struct{}{}
	return c.to.Base.IsZero() || !c.to.store.Has(id)
}

// copyTree copies a tree and everything below it. A store that has a tree has everything below it, too.
func (c *copier) copyTree(id plan.ID, depth int) error {
	if !c.markNeeded(id) {
		return nil
	}
	if depth > maxTreeDepth {
		return OverLimit("directories are nested deeper than %d", maxTreeDepth)
	}
	if err := c.ctx.Err(); err != nil {
		return err
	}
	b, err := c.copyAndRead(id, kindTree)
	if err != nil {
		return err
	}
	entries, err := parseTree(id, b)
	if err != nil {
		return err
	}
	for _, e := range entries {
		switch e.Mode {
		case plan.Directory:
			err = c.copyTree(e.ID, depth+1)
		case plan.Submodule:
			continue
		default:
			if !c.to.TreesOnly && c.markNeeded(e.ID) {
				err = c.copyBlob(e.ID)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// copyAndRead copies an object and returns its content.
func (c *copier) copyAndRead(id plan.ID, want kind) ([]byte, error) {
	var b bytes.Buffer
	err := c.copyObject(id, want, &b)
	return b.Bytes(), err
}

func (c *copier) copyBlob(id plan.ID) error { return c.copyObject(id, kindBlob, io.Discard) }

// copyObject copies an object, and also writes its content to w. Unless want is zero, an object of another kind is an error.
func (c *copier) copyObject(id plan.ID, want kind, w io.Writer) error {
	limits := &c.to.store.limits
	if len(c.recs) >= limits.Objects {
		return OverLimit("the commit has more than %d objects", limits.Objects)
	}
	o, err := c.from.find(id)
	if err != nil {
		return err
	}
	if want != 0 && o.kind != want {
		return corrupt("object %s is a %s, not a %s", id, o.kind, want)
	}
	if c.inflated += o.size; c.inflated > limits.InflatedBytes {
		return OverLimit("the commit has more than %d bytes", limits.InflatedBytes)
	}
	rec, err := c.out.add(id, o.kind, o.size, func(pack io.Writer) error {
		return o.write(io.MultiWriter(cancelCheck{c.ctx}, pack, w))
	})
	if err != nil {
		return err
	}
	c.recs = append(c.recs, rec)
	if c.out.position() > limits.PackBytes {
		return OverLimit("the commit has more than %d packed bytes", limits.PackBytes)
	}
	return nil
}

// cancelCheck is a writer that writes nothing, and fails when its context has ended.
type cancelCheck struct{ ctx context.Context } //nolint:containedctx // lives for one copy

func (u cancelCheck) Write(b []byte) (int, error) { return len(b), u.ctx.Err() }
