package store

import (
	"bufio"
	"crypto/sha1"
	"hash"
	"hash/crc32"
	"io"
	"os"

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
		crc, err := checksum(&sectionReader{r: f, off: recs[i].off, end: next}, sum, buf)
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
