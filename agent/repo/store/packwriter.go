package store

import (
	"bufio"
	"crypto/sha1"
	"hash"
	"hash/crc32"
	"io"
	"os"
	"slices"

	"github.com/klauspost/compress/zlib"

	"stoker.io/stoker/agent/plan"
)

// packWriter appends whole objects, never deltas, to a pack file. It buffers: call finish before you read the file.
type packWriter struct {
	start  int64 // offset in the file
	buf    *bufio.Writer
	out    countingWriter // counts the bytes written to buf
	zw     *zlib.Writer
	hasher *objectHasher
}

// newPackWriter returns a packWriter that appends to f from the offset start on.
func newPackWriter(f *os.File, start int64) *packWriter {
	zw, err := zlib.NewWriterLevel(nil, zlib.BestSpeed)
	if err != nil { // a constant level is valid
		panic(err)
	}
	buf := bufio.NewWriterSize(diskWriter{io.NewOffsetWriter(f, start)}, 64<<10)
	return &packWriter{start, buf, countingWriter{w: buf}, zw, newObjectHasher()}
}

// position returns the offset after the last entry.
func (p *packWriter) position() int64 { return p.start + p.out.n }

// add appends an object whose content write writes: exactly size bytes. If the content does not hash to id, add fails, and the
// caller must discard the pack.
func (p *packWriter) add(id plan.ID, k kind, size int64, write func(io.Writer) error) (record, error) {
	rec := record{id: id, off: p.position(), kind: k, entryKind: k}
	if _, err := p.out.Write(EntryHeader(k, size)); err != nil {
		return rec, err
	}
	p.zw.Reset(&p.out)
	if err := write(io.MultiWriter(p.zw, p.hasher.start(k, size))); err != nil {
		return rec, err
	}
	if err := p.zw.Close(); err != nil {
		return rec, err
	}
	got, err := p.hasher.id()
	if err == nil && got != id {
		err = corrupt("object %s has the content of %s", id, got)
	}
	return rec, err
}

// finish flushes the buffer and returns the offset after the last entry.
func (p *packWriter) finish() (int64, error) { return p.position(), p.buf.Flush() }

// diskWriter marks the errors of a file with asDiskError.
type diskWriter struct{ io.Writer }

func (d diskWriter) Write(p []byte) (int, error) {
	n, err := d.Writer.Write(p)
	return n, asDiskError(err)
}

// finishPack reads a pack from front to back, sets the CRC-32 of each record, and returns the trailer. If entries were appended,
// it also writes a new header and trailer. recs are in pack order; end is the offset after the last entry.
func finishPack(f *os.File, recs []record, end int64, appended bool) ([packTrailerSize]byte, error) {
	var trailer [packTrailerSize]byte
	var sum hash.Hash
	if appended {
		sum = sha1.New()
		_, _ = sum.Write(PackHeader(len(recs)))
	}
	buf := make([]byte, 128<<10)
	for i := range recs {
		next := end
		if i+1 < len(recs) {
			next = recs[i+1].off
		}
		crc, err := checksum(&sectionReader{f, recs[i].off, next}, sum, buf)
		if err != nil {
			return trailer, err
		}
		recs[i].crc = crc
	}
	if !appended {
		return trailerOf(f, end+packTrailerSize)
	}
	copy(trailer[:], sum.Sum(nil))
	if _, err := f.WriteAt(PackHeader(len(recs)), 0); err != nil {
		return trailer, asDiskError(err)
	}
	if _, err := f.WriteAt(trailer[:], end); err != nil {
		return trailer, asDiskError(err)
	}
	return trailer, asDiskError(f.Truncate(end + packTrailerSize))
}

// checksum reads r to its end and returns its CRC-32. It also writes the bytes to sum, unless sum is nil.
func checksum(r *sectionReader, sum hash.Hash, buf []byte) (uint32, error) {
	crc := uint32(0)
	for r.off < r.end {
		n, err := r.Read(buf)
		crc = crc32.Update(crc, crc32.IEEETable, buf[:n])
		if sum != nil {
			_, _ = sum.Write(buf[:n])
		}
		if err != nil {
			return 0, asDiskError(err)
		}
	}
	return crc, nil
}

// trailerOf reads the checksum at the end of a pack of size bytes.
func trailerOf(f io.ReaderAt, size int64) ([packTrailerSize]byte, error) {
	var t [packTrailerSize]byte
	_, err := f.ReadAt(t[:], size-packTrailerSize)
	return t, asDiskError(err)
}

// trailerHasher hashes the bytes that are written, except the last 20: the trailer of a pack.
type trailerHasher struct {
	sum  hash.Hash
	tail []byte // the last bytes, not hashed yet
}

func (h *trailerHasher) Write(p []byte) (int, error) {
	switch over := len(h.tail) + len(p) - packTrailerSize; {
	case len(p) >= packTrailerSize:
		_, _ = h.sum.Write(h.tail)
		_, _ = h.sum.Write(p[:len(p)-packTrailerSize])
		h.tail = append(h.tail[:0], p[len(p)-packTrailerSize:]...)
	case over > 0:
		_, _ = h.sum.Write(h.tail[:over])
		h.tail = append(append(h.tail[:0], h.tail[over:]...), p...)
	default:
		h.tail = append(h.tail, p...)
	}
	return len(p), nil
}

// scratch holds whole objects while deltas are applied: small ones in memory, the others in one temporary file.
type scratch struct {
	create     func() (*os.File, error)
	stop       func() error // may be nil; if it returns an error, alloc fails with it
	file       *os.File
	sizes      scratchSizes
	memoryUsed int64    // bytes
	regions    []region // of file that are in use, sorted by offset
}

type region struct{ off, size int64 }

// scratchSizes bounds the memory and the file of a scratch.
type scratchSizes struct {
	maxFile      int64 // bytes of the file; 0 for any
	maxInMemory  int64 // bytes of an object in memory
	memoryBudget int64 // bytes of all objects in memory
}

func defaultScratch() scratchSizes {
	return scratchSizes{maxInMemory: 16 << 20, memoryBudget: 24 << 20}
}

func newScratch(create func() (*os.File, error), sizes scratchSizes) *scratch {
	return &scratch{create: create, sizes: sizes}
}

// scratchObject is one object in a scratch. Write it once, from front to back, and then read it.
type scratchObject struct {
	scratch *scratch
	mem     []byte
	off     int64 // in the file of scratch, if mem is nil
	size    int64
	written int64
}

// alloc reserves space for an object of size bytes.
func (s *scratch) alloc(size int64) (*scratchObject, error) {
	if s.stop != nil {
		if err := s.stop(); err != nil {
			return nil, err
		}
	}
	c := &scratchObject{scratch: s, size: size}
	if size <= s.sizes.maxInMemory && s.memoryUsed+size <= s.sizes.memoryBudget {
		c.mem = make([]byte, 0, size)
		s.memoryUsed += size
		return c, nil
	}
	if s.file == nil {
		f, err := s.create()
		if err != nil {
			return nil, err
		}
		s.file = f
	}
	// Use the first gap that is large enough. Bases are freed before the results, so gaps at the front are common.
	i := 0
	for ; i < len(s.regions) && s.regions[i].off-c.off < size; i++ {
		c.off = s.regions[i].off + s.regions[i].size
	}
	if s.sizes.maxFile > 0 && c.off+size > s.sizes.maxFile {
		return nil, OverLimit("the deltas of a pack need more than %d bytes", s.sizes.maxFile)
	}
	s.regions = slices.Insert(s.regions, i, region{c.off, size})
	return c, nil
}

// close closes the temporary file, which frees its space.
func (s *scratch) close() {
	if s.file != nil {
		_ = s.file.Close()
		s.file = nil
	}
}

// free releases the space. The object must not be used afterwards.
func (c *scratchObject) free() {
	s := c.scratch
	if c.mem != nil {
		s.memoryUsed -= c.size
		c.mem = nil
		return
	}
	if i := slices.Index(s.regions, region{c.off, c.size}); i >= 0 {
		s.regions = slices.Delete(s.regions, i, i+1)
	}
}

// Write implements io.Writer. It fails after more than size bytes: an entry may claim a wrong size.
func (c *scratchObject) Write(p []byte) (int, error) {
	if c.written+int64(len(p)) > c.size {
		return 0, corrupt("an object is longer than the %d bytes that it claims", c.size)
	}
	if c.mem != nil {
		c.mem = append(c.mem, p...)
	} else if _, err := c.scratch.file.WriteAt(p, c.off+c.written); err != nil {
		return 0, asDiskError(err)
	}
	c.written += int64(len(p))
	return len(p), nil
}

// copyTo writes n bytes, from off on, to w. buf is a buffer for copying.
func (c *scratchObject) copyTo(w io.Writer, off, n int64, buf []byte) error {
	if c.mem != nil {
		_, err := w.Write(c.mem[off : off+n])
		return err
	}
	for n > 0 {
		part := buf[:min(n, int64(len(buf)))]
		if _, err := c.scratch.file.ReadAt(part, c.off+off); err != nil {
			return asDiskError(err)
		}
		if _, err := w.Write(part); err != nil {
			return err
		}
		off, n = off+int64(len(part)), n-int64(len(part))
	}
	return nil
}
