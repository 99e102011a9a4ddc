package store

import (
	"bytes"
	"context"
	"io"
	"os"

	"stoker.io/stoker/agent/plan"
)

// Importer makes git objects of content that does not come in a pack. NewHasher returns one that only computes their ids; that of
// Transfer.Import also writes them. It bounds the number of objects, their sizes and the sum. One goroutine at a time may use it.
type Importer struct {
	ctx      context.Context //nolint:containedctx // lives for one import
	limits   Limits
	hasher   *objectHasher
	buf      []byte
	objects  int
	inflated int64

	// The fields below are set only by Transfer.Import.
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

// exactly returns a reader of size bytes of r. If r ends before, it fails with io.ErrUnexpectedEOF. It hides a method WriteTo of r.
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
