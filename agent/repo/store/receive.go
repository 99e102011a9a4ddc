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

// receiver turns the stream of a pack into a pack on disk and the records of its index, as git index-pack does. It reads the
// stream once. In memory it holds a record for each object, and the small objects of scratch.
type receiver struct {
	limits Limits
	// external returns an object that a thin pack may build on. If there is none, IsNotFound holds for the error.
	external func(plan.ID) (kind, *scratchObject, error)
	scratch  *scratch

	file      *os.File
	stream    *savingReader
	br        *bufio.Reader
	inflate   *inflater
	hasher    *objectHasher
	recs      []record
	baseIDs   []plan.ID // of kindRef entries
	end       int64     // offset after the last entry
	inflated  int64     // bytes so far
	thinBases []plan.ID // bases that came from external
}

// savingReader writes what is read through it to a file, and hashes it. It keeps the first error, which parsers above it wrap or
// hide.
type savingReader struct {
	r   io.Reader
	w   io.Writer
	sum trailerHasher
	n   int64 // bytes so far
	max int64 // limit of n
	err error // first error of r or w
}

func (s *savingReader) Read(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.r.Read(p)
	if n > 0 {
		s.n += int64(n)
		if s.n > s.max {
			s.err = OverLimit("the server sends more than %d bytes", s.max)
			return 0, s.err
		}
		if _, e := s.w.Write(p[:n]); e != nil {
			s.err = asDiskError(e)
			return 0, s.err
		}
		_, _ = s.sum.Write(p[:n])
	}
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// run writes the pack in stream to file and makes it complete. It returns the order of the records by id.
func (r *receiver) run(ctx context.Context, stream io.Reader, file *os.File) (order []int32, trailer [20]byte, err error) {
	r.file, r.inflate, r.hasher = file, newInflater(), newObjectHasher()
	r.stream = &savingReader{r: stream, w: file, sum: trailerHasher{sum: sha1.New()}, max: r.limits.PackBytes}
	r.br = bufio.NewReaderSize(r.stream, 64<<10)
	if err := r.scan(ctx); err != nil {
		return nil, trailer, r.streamError(err)
	}
	if err := r.resolve(ctx); err != nil {
		return nil, trailer, err
	}
	if order, err = sortByID(r.recs); err != nil {
		return nil, trailer, err
	}
	before := len(r.recs)
	if err := r.appendThinBases(order); err != nil {
		return nil, trailer, err
	}
	if len(r.recs) > before {
		if order, err = sortByID(r.recs); err != nil {
			return nil, trailer, err
		}
	}
	trailer, err = finishPack(file, r.recs, r.end, len(r.recs) > before)
	return order, trailer, err
}

// streamError returns the error of the connection or the disk that made scan fail with err, if there is one.
func (r *receiver) streamError(err error) error {
	if r.stream.err != nil {
		return r.stream.err
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return corrupt("the pack ended early, after %d bytes", r.stream.n)
	}
	return err
}

// scan reads the stream to its end, makes a record of each entry, and computes the ids of whole objects.
func (r *receiver) scan(ctx context.Context) error {
	var head [packHeaderSize]byte
	if _, err := io.ReadFull(r.br, head[:]); err != nil {
		return err
	}
	n, err := parsePackHeader(head[:])
	if err != nil {
		return err
	}
	if n > int64(r.limits.Objects) {
		return OverLimit("the pack has %d objects, more than %d", n, r.limits.Objects)
	}
	// The header may lie: above this number of records, memory grows with what arrives, not with what is announced.
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
			err = corrupt("there is data after the pack")
		}
		return err
	}
	if !bytes.Equal(r.stream.sum.sum.Sum(nil), trailer[:]) {
		return corrupt("the checksum of the pack is wrong")
	}
	return nil
}

// position returns the offset of the next entry.
func (r *receiver) position() int64 { return r.stream.n - int64(r.br.Buffered()) }

func (r *receiver) scanEntry() error {
	rec := record{off: r.position()}
	e, err := readEntry(r.br)
	if err != nil {
		return err
	}
	if err := r.limits.checkSize(e.kind, e.size); err != nil {
		return err
	}
	if err := r.countInflated(e.size); err != nil {
		return err
	}
	rec.entryKind = e.kind
	w := io.Discard
	switch e.kind {
	case kindOffset:
		if rec.base = rec.off - e.distance; e.distance <= 0 || rec.base < packHeaderSize {
			return corrupt("the base of a delta lies outside its pack")
		}
	case kindRef:
		rec.base = int64(len(r.baseIDs))
		r.baseIDs = append(r.baseIDs, e.baseID)
	default:
		rec.kind = e.kind
		w = r.hasher.start(e.kind, e.size)
	}
	if err := r.inflate.copyContent(w, r.br, e.size); err != nil {
		return err
	}
	if !e.kind.delta() {
		if rec.id, err = r.hasher.id(); err != nil {
			return err
		}
	}
	r.recs = append(r.recs, rec)
	return nil
}

// countInflated adds to the number of inflated bytes, and checks it.
func (r *receiver) countInflated(n int64) error {
	r.inflated += n
	if r.inflated > r.limits.InflatedBytes {
		return OverLimit("the pack inflates to more than %d bytes", r.limits.InflatedBytes)
	}
	return nil
}

// appendThinBases appends the bases that a thin pack leaves out, so that git can read the pack.
func (r *receiver) appendThinBases(order []int32) error {
	if len(r.thinBases) == 0 {
		return nil
	}
	out := newPackWriter(r.file, r.end)
	for _, id := range r.thinBases {
		if i, ok := findByID(r.recs[:len(order)], order, id); ok {
			// A later delta of the pack makes the base. The chain of that delta may lead back to this base.
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

// checkChain follows the bases of record i. It fails if they form a circle.
func (r *receiver) checkChain(order []int32, i int32) error {
	for range r.limits.DeltaDepth + 1 {
		rec := &r.recs[i]
		var ok bool
		switch rec.entryKind {
		case kindOffset:
			i, ok = findByOffset(r.recs, rec.base)
		case kindRef:
			if i, ok = findByID(r.recs[:len(order)], order, r.baseIDs[rec.base]); !ok {
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
