package store

import (
	"io"
	"os"

	"github.com/klauspost/compress/zlib"

	"stoker.io/stoker/agent/plan"
)

// packWriter appends whole objects, no deltas, to a pack file. They are in the file only after finish.
type packWriter struct {
	out  offsetWriter
	zw   *zlib.Writer
	name *namer
}

func newPackWriter(f *os.File, end int64) *packWriter {
	zw, err := zlib.NewWriterLevel(nil, zlib.BestSpeed)
	if err != nil { // a constant level is valid
		panic(err)
	}
	return &packWriter{out: offsetWriter{file: f, off: end}, zw: zw, name: newNamer()}
}

// add appends an object. If its content has another id, add fails.
func (p *packWriter) add(id plan.ID, k kind, size int64, write func(io.Writer) error) (record, error) {
	rec := record{id: id, off: p.out.position(), kind: k, as: k}
	if _, err := p.out.Write(entryHead(k, size)); err != nil {
		return rec, err
	}
	p.zw.Reset(&p.out)
	sum := p.name.start(k, size)
	if err := write(io.MultiWriter(p.zw, sum)); err != nil {
		return rec, err
	}
	if err := p.zw.Close(); err != nil {
		return rec, err
	}
	got, err := p.name.id()
	if err == nil && got != id {
		err = corrupt("object %s has the content of %s", id, got)
	}
	return rec, err
}

// finish writes the buffer and returns the end of the entries.
func (p *packWriter) finish() (int64, error) {
	err := p.out.flush()
	return p.out.off, err
}

// offsetWriter writes to a file from an offset on. It buffers.
type offsetWriter struct {
	file *os.File
	off  int64
	buf  []byte
}

func (o *offsetWriter) position() int64 { return o.off + int64(len(o.buf)) }

func (o *offsetWriter) Write(p []byte) (int, error) {
	o.buf = append(o.buf, p...)
	if len(o.buf) < 64<<10 {
		return len(p), nil
	}
	return len(p), o.flush()
}

func (o *offsetWriter) flush() error {
	n, err := o.file.WriteAt(o.buf, o.off)
	o.off += int64(n)
	o.buf = o.buf[:0]
	return onDisk(err)
}
