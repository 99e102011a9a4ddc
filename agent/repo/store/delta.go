package store

import (
	"bufio"
	"errors"
	"io"
)

// delta is the stream of a delta: instructions that copy ranges of a base and insert new bytes. Only the base must be available
// as a whole. gitformat-pack(5) describes the format.
type delta struct {
	r         *bufio.Reader
	remaining int64 // bytes that have not been read
	baseSize  int64
	size      int64 // of the result
}

// openDelta reads the sizes of the delta e. br must be at the content of e.
func (f *inflater) openDelta(br *bufio.Reader, e entry) (*delta, error) {
	in, err := f.start(br, e.size)
	if err != nil {
		return nil, err
	}
	if f.delta == nil {
		f.delta = bufio.NewReaderSize(in, 4<<10)
	} else {
		f.delta.Reset(in)
	}
	d := &delta{r: f.delta, remaining: e.size}
	if d.baseSize, err = d.readSize(); err != nil {
		return nil, err
	}
	d.size, err = d.readSize()
	return d, err
}

// apply writes the result of the delta to w. buf is a buffer for copying.
func (d *delta) apply(w io.Writer, base *scratchObject, buf []byte) error {
	if d.baseSize != base.size {
		return corrupt("a delta is for a base of %d bytes, and its base has %d", d.baseSize, base.size)
	}
	out := int64(0)
	for d.remaining > 0 {
		c, err := d.readByte()
		if err != nil {
			return err
		}
		var n int64
		if c&0x80 != 0 {
			n, err = d.copy(w, base, c, d.size-out, buf)
		} else {
			n, err = d.insert(w, int64(c), d.size-out, buf)
		}
		if err != nil {
			return err
		}
		out += n
	}
	if out != d.size {
		return corrupt("a delta makes %d bytes and claims %d", out, d.size)
	}
	if _, err := d.r.ReadByte(); !errors.Is(err, io.EOF) {
		return corrupt("a delta is longer than it claims, or its checksum is wrong")
	}
	return nil
}

// copy copies a range of the base. The bits of op say which bytes of the offset and the length follow. room is how many bytes the
// result can still take.
func (d *delta) copy(w io.Writer, base *scratchObject, op byte, room int64, buf []byte) (int64, error) {
	var off, n int64
	for i := range 7 {
		if op&(1<<i) == 0 {
			continue
		}
		b, err := d.readByte()
		if err != nil {
			return 0, err
		}
		if i < 4 {
			off |= int64(b) << (8 * i)
		} else {
			n |= int64(b) << (8 * (i - 4))
		}
	}
	if n == 0 {
		n = 0x10000
	}
	if off+n > base.size || n > room {
		return 0, corrupt("a delta copies %d bytes at %d: beyond its base or its result", n, off)
	}
	return n, base.copyTo(w, off, n, buf)
}

func (d *delta) insert(w io.Writer, n, room int64, buf []byte) (int64, error) {
	if n == 0 || n > d.remaining || n > room {
		return 0, corrupt("a delta inserts beyond its end")
	}
	if _, err := io.ReadFull(d.r, buf[:n]); err != nil {
		return 0, asTruncated(err)
	}
	d.remaining -= n
	_, err := w.Write(buf[:n])
	return n, err
}

func (d *delta) readByte() (byte, error) {
	if d.remaining == 0 {
		return 0, corrupt("a delta ends early")
	}
	b, err := d.r.ReadByte()
	d.remaining--
	return b, asTruncated(err)
}

func (d *delta) readSize() (int64, error) {
	var n int64
	for shift := 0; shift < 63; shift += 7 {
		b, err := d.readByte()
		if err != nil {
			return 0, err
		}
		n |= int64(b&0x7f) << shift
		if b&0x80 == 0 {
			return n, nil
		}
	}
	return 0, corrupt("a size in a delta does not fit 63 bits")
}

func asTruncated(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return corrupt("a delta ends early")
	}
	return err
}
