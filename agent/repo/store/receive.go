package store

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha1"
	"errors"
	"io"
	"os"

	"stoker.io/stoker/agent/plan"
)

// receiver turns the stream of a pack into a pack on disk and the records of its index, as git index-pack does: in one pass and
// in bounded memory, which is a record for each object and two objects of a chain of deltas.
type receiver struct {
	limits Limits
	// external returns an object that a thin pack leaves out because the store has it, or errNotFound.
	external func(plan.ID) (kind, *content, error)
	scratch  *scratch

	file     *os.File
	in       *stored
	br       *bufio.Reader
	inflate  *inflater
	name     *namer
	recs     []record
	bases    []plan.ID // of kindRef entries
	end      int64     // of the entries, where the trailer starts
	inflated int64
	thin     []plan.ID // bases that came from external
}

// stored writes everything that is read through it to a file. It keeps errors of the network and errors of the disk apart.
type stored struct {
	r   io.Reader
	w   io.Writer
	sum trailerHasher
	n   int64
	max int64
	err error // first error of either side
}

func (s *stored) Read(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.r.Read(p)
	if n > 0 {
		s.n += int64(n)
		if s.n > s.max {
			s.err = OverLimit("what the server sends is more than %d bytes", s.max)
			return 0, s.err
		}
		if _, e := s.w.Write(p[:n]); e != nil {
			s.err = onDisk(e)
			return 0, s.err
		}
		_, _ = s.sum.Write(p[:n])
	}
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// run receives the pack that stream holds into file, which then is a complete pack. It returns the order of its records by id.
func (r *receiver) run(ctx context.Context, stream io.Reader, file *os.File) (order []int32, trailer [20]byte, err error) {
	r.file, r.inflate, r.name = file, newInflater(), newNamer()
	r.in = &stored{r: stream, w: file, sum: trailerHasher{sum: sha1.New()}, max: r.limits.PackBytes}
	r.br = bufio.NewReaderSize(r.in, 64<<10)
	if err := r.scan(ctx); err != nil {
		return nil, trailer, r.cause(err)
	}
	if err := r.resolve(ctx); err != nil {
		return nil, trailer, err
	}
	if order, err = byName(r.recs); err != nil {
		return nil, trailer, err
	}
	before := len(r.recs)
	if err := r.complete(order); err != nil {
		return nil, trailer, err
	}
	if len(r.recs) > before {
		if order, err = byName(r.recs); err != nil {
			return nil, trailer, err
		}
	}
	trailer, err = finishPack(file, r.recs, r.end, len(r.recs) > before)
	return order, trailer, err
}

// cause returns the error of the connection or the disk in place of the error that the parser made of it.
func (r *receiver) cause(err error) error {
	if r.in.err != nil {
		return r.in.err
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return corrupt("the pack ended early, after %d bytes", r.in.n)
	}
	return err
}

// scan reads the stream to its end, makes a record of each entry, and computes the ids of those that are not deltas.
func (r *receiver) scan(ctx context.Context) error {
	var head [packHeaderSize]byte
	if _, err := io.ReadFull(r.br, head[:]); err != nil {
		return err
	}
	n, err := packObjects(head[:])
	if err != nil {
		return err
	}
	if n > int64(r.limits.Objects) {
		return OverLimit("the pack has %d objects, more than %d", n, r.limits.Objects)
	}
	// The header may lie: beyond a quarter of a million records, memory grows with what arrives, not with what is announced.
	r.recs = make([]record, 0, min(n, 1<<18))
	for i := range n {
		if i%1024 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := r.scanEntry(); err != nil {
			return err
		}
	}
	r.end = r.position()
	var trailer [packTrailerSize]byte
	if _, err := io.ReadFull(r.br, trailer[:]); err != nil {
		return err
	}
	if _, err := r.br.ReadByte(); !errors.Is(err, io.EOF) {
		if err == nil {
			err = corrupt("something follows after the pack")
		}
		return err
	}
	if !bytes.Equal(r.in.sum.sum.Sum(nil), trailer[:]) {
		return corrupt("the checksum of the pack is wrong")
	}
	return nil
}

func (r *receiver) position() int64 { return r.in.n - int64(r.br.Buffered()) }

func (r *receiver) scanEntry() error {
	rec := record{off: r.position()}
	e, err := readEntry(r.br)
	if err != nil {
		return err
	}
	if err := r.limits.size(e.kind, e.size); err != nil {
		return err
	}
	if err := r.spend(e.size); err != nil {
		return err
	}
	rec.as = e.kind
	w := io.Discard
	switch e.kind {
	case kindOffset:
		if rec.base = rec.off - e.back; e.back <= 0 || rec.base < packHeaderSize {
			return corrupt("the base of a delta lies outside its pack")
		}
	case kindRef:
		rec.base = int64(len(r.bases))
		r.bases = append(r.bases, e.baseID)
	default:
		rec.kind = e.kind
		w = r.name.start(e.kind, e.size)
	}
	if err := r.inflate.copyContent(w, r.br, e.size); err != nil {
		return err
	}
	if !e.kind.delta() {
		if rec.id, err = r.name.id(); err != nil {
			return err
		}
	}
	r.recs = append(r.recs, rec)
	return nil
}

// spend adds inflated bytes and checks their limit.
func (r *receiver) spend(n int64) error {
	r.inflated += n
	if r.inflated > r.limits.InflatedBytes {
		return OverLimit("the pack inflates to more than %d bytes", r.limits.InflatedBytes)
	}
	return nil
}

// complete appends the bases that a thin pack left out, so that the pack is self-contained and git can read it.
func (r *receiver) complete(order []int32) error {
	out := newPackWriter(r.file, r.end)
	for _, id := range r.thin {
		if i, ok := findName(r.recs[:len(order)], order, id); ok {
			// The pack has the base after all, possibly as a delta of an object that builds on it.
			if err := r.checkChain(order, i); err != nil {
				return err
			}
			continue
		}
		k, c, err := r.external(id)
		if err != nil {
			return err
		}
		rec, err := out.add(id, k, c.size, func(w io.Writer) error { return c.copyTo(w, 0, c.size, r.inflate.buf) })
		c.free()
		if err != nil {
			return err
		}
		r.recs = append(r.recs, rec)
	}
	var err error
	r.end, err = out.finish()
	return err
}

// checkChain follows the deltas from record i down and fails if they do not end.
func (r *receiver) checkChain(order []int32, i int32) error {
	for range r.limits.DeltaDepth + 1 {
		rec := &r.recs[i]
		var ok bool
		switch rec.as {
		case kindOffset:
			i, ok = findOffset(r.recs, rec.base)
		case kindRef:
			if i, ok = findName(r.recs[:len(order)], order, r.bases[rec.base]); !ok {
				return nil // the base is appended as a whole object
			}
		default:
			return nil
		}
		if !ok {
			return corrupt("the base of a delta is missing")
		}
	}
	return corrupt("deltas go round in a circle")
}
