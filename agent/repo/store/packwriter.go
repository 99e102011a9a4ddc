package store

import (
	"bufio"
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
