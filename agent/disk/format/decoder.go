package format

import (
	"encoding/binary"
	"errors"
	"io"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

// decoder decodes our own binary files, which may be damaged. It never reads past their end, and after the first error
// every value is zero.
type decoder struct {
	b    []byte    // not decoded yet
	more io.Reader // what follows b; nil if nothing does
	buf  []byte    // the memory of b
	err  error
}

// need makes b hold n bytes, or all that is left. It invalidates slices of the earlier b.
func (d *decoder) need(n int) {
	if len(d.b) >= n || d.more == nil {
		return
	}
	if cap(d.buf) < n {
		d.buf = make([]byte, max(n, 64<<10))
	}
	d.buf = d.buf[:cap(d.buf)]
	have := copy(d.buf, d.b)
	got, err := io.ReadAtLeast(d.more, d.buf[have:], n-have)
	d.b = d.buf[:have+got]
	if err != nil {
		d.more = nil
		if d.err == nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			d.err, d.b = err, nil
		}
	}
}

// end reports whether everything was decoded.
func (d *decoder) end() bool {
	d.need(1)
	return len(d.b) == 0
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = safe.Damaged(format, args...)
	}
	d.b, d.more = nil, nil
}

func (d *decoder) uvarint(limit uint64) uint64 {
	d.need(binary.MaxVarintLen64)
	v, n := binary.Uvarint(d.b)
	if n <= 0 || v > limit {
		d.fail("a number is truncated or over %d", limit)
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) varint() int64 {
	d.need(binary.MaxVarintLen64)
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail("a number is truncated")
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) length(limit int) int { return int(d.uvarint(uint64(limit))) }

func (d *decoder) byte() byte {
	if d.end() {
		d.fail("unexpected end")
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

func (d *decoder) raw(n int) []byte {
	if d.need(n); n > len(d.b) {
		d.fail("unexpected end")
		return nil
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

// bytes reads a length and that many bytes. They are valid until the next value is read.
func (d *decoder) bytes(limit int) []byte { return d.raw(d.length(limit)) }

func (d *decoder) string(limit int) string { return string(d.bytes(limit)) }

func (d *decoder) uint32() uint32 {
	if b := d.raw(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (d *decoder) id() (id plan.ID) {
	copy(id[:], d.raw(len(id)))
	return id
}
