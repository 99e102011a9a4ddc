package store

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zlib"

	"stoker.io/stoker/internal/failure"
)

// inflater reads entries of packs, and loose objects. Callers reuse it, because a zlib reader takes 40 kB.
type inflater struct {
	section sectionReader
	br      *bufio.Reader
	zr      io.ReadCloser
	limited io.LimitedReader // the inflated bytes
	buf     []byte           // for copying
	delta   *bufio.Reader
}

func newInflater() *inflater {
	return &inflater{br: bufio.NewReaderSize(nil, 16<<10), buf: make([]byte, 32<<10)}
}

// openEntry reads the header of the entry at off and leaves br at its content. The entries of r end at end.
func (f *inflater) openEntry(r io.ReaderAt, off, end int64) (entry, error) {
	f.section = sectionReader{r, off, end}
	f.br.Reset(&f.section)
	e, err := readEntry(f.br)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = corrupt("an entry ends early")
	}
	return e, err
}

// start returns a reader that inflates the stream at br. It reads at most one byte more than size, which reveals a wrong size.
func (f *inflater) start(br *bufio.Reader, size int64) (io.Reader, error) {
	var err error
	if f.zr == nil {
		f.zr, err = zlib.NewReader(br)
	} else {
		err = f.zr.(zlib.Resetter).Reset(br, nil)
	}
	f.limited = io.LimitedReader{R: zlibReader{f.zr}, N: size + 1}
	return &f.limited, asCorrupt(err)
}

// copyContent inflates the stream at br to w. A length other than size, or a wrong checksum, is an error.
func (f *inflater) copyContent(w io.Writer, br *bufio.Reader, size int64) error {
	if _, err := f.start(br, size); err != nil {
		return err
	}
	return f.copyRest(w, size)
}

// openLoose reads the header of a loose object, which is a part of the zlib stream. Then copyRest reads the content.
func (f *inflater) openLoose(r io.Reader) (kind, int64, error) {
	f.br.Reset(r)
	if _, err := f.start(f.br, maxLooseHead-1); err != nil {
		return 0, 0, err
	}
	var head []byte
	for one := f.buf[:1]; ; {
		if _, err := io.ReadFull(&f.limited, one); err != nil {
			return 0, 0, asCorrupt(err)
		}
		if one[0] == 0 {
			break
		}
		head = append(head, one[0])
	}
	name, digits, _ := strings.Cut(string(head), " ")
	size, err := strconv.ParseInt(digits, 10, 62)
	for k := kindCommit; k <= kindTag; k++ {
		if k.String() == name && err == nil && size >= 0 {
			f.limited.N = size + 1
			return k, size, nil
		}
	}
	return 0, 0, corrupt("a loose object starts with %s", failure.Quote(string(head)))
}

const maxLooseHead = 32 // bytes

// copyRest inflates the rest of the stream that start or openLoose opened. A length other than size, or a wrong checksum, is an
// error.
func (f *inflater) copyRest(w io.Writer, size int64) error {
	// The struct hides the method ReadFrom of w, which would allocate a buffer.
	n, err := io.CopyBuffer(struct{ io.Writer }{w}, &f.limited, f.buf)
	if err != nil {
		return err
	}
	if n != size {
		return corrupt("an entry claims %d bytes and holds others", size)
	}
	return nil
}

// zlibReader marks the errors of a zlib stream with asCorrupt.
type zlibReader struct{ io.Reader }

func (i zlibReader) Read(p []byte) (int, error) {
	n, err := i.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = asCorrupt(err)
	}
	return n, err
}

// asCorrupt wraps an error of a decoder in ErrCorrupt, unless it is an error of the disk.
func asCorrupt(err error) error {
	if _, ours := errors.AsType[*DiskError](err); ours || err == nil || errors.Is(err, ErrCorrupt) {
		return err
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%w: %w", ErrCorrupt, err)
}

// sectionReader is an io.SectionReader that an inflater can hold by value. Its errors are those of asDiskError.
type sectionReader struct {
	r        io.ReaderAt
	off, end int64
}

func (s *sectionReader) Read(p []byte) (int, error) {
	if s.off >= s.end {
		return 0, io.EOF
	}
	if rest := s.end - s.off; int64(len(p)) > rest {
		p = p[:rest]
	}
	n, err := s.r.ReadAt(p, s.off)
	s.off += int64(n)
	if errors.Is(err, io.EOF) {
		if n > 0 {
			err = nil
		}
		return n, err
	}
	return n, asDiskError(err)
}

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
