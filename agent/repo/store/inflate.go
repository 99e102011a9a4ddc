package store

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/zlib"

	"stoker.io/stoker/internal/failure"
)

// inflater reads entries of packs, and loose objects. Callers reuse it, because a zlib reader takes 40 kB.
type inflater struct {
	window  window
	section sectionReader
	br      *bufio.Reader
	zr      io.ReadCloser
	limited io.LimitedReader // the inflated bytes
	buf     []byte           // for copying
	delta   *bufio.Reader
	foreign bool // the packs are not those of the store, so a read error is not a DiskError
}

func newInflater() *inflater {
	return &inflater{br: bufio.NewReaderSize(nil, 4<<10), buf: make([]byte, 32<<10)}
}

// openEntry reads the header of the entry at off and leaves br at its content. The entries of r end at end.
func (f *inflater) openEntry(r io.ReaderAt, off, end int64) (entry, error) {
	f.window.of(r)
	f.section = sectionReader{r: &f.window, off: off, end: end, foreign: f.foreign}
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

// sectionReader is an io.SectionReader that an inflater can hold by value. Unless foreign is set, its errors are those of asDiskError.
type sectionReader struct {
	r        io.ReaderAt
	off, end int64
	foreign  bool
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
	if s.foreign {
		return n, err
	}
	return n, asDiskError(err)
}

// window is an io.ReaderAt that keeps the last bytes of a pack, because callers read small objects in the order of the pack. A read may
// return fewer bytes than requested.
type window struct {
	r     io.ReaderAt
	off   int64
	bytes []byte
	at    time.Time // when they were read
}

const (
	windowSize = 32 << 10 // bytes
	// windowAge is how long a window is used. Until then, a reader does not notice that another process damages the pack.
	windowAge = 10 * time.Millisecond
)

// of makes r the pack to read.
func (w *window) of(r io.ReaderAt) {
	if w.r != r || time.Since(w.at) > windowAge {
		w.r, w.bytes = r, w.bytes[:0]
	}
}

// ReadAt implements io.ReaderAt.
func (w *window) ReadAt(p []byte, off int64) (int, error) {
	if at := off - w.off; at >= 0 && at < int64(len(w.bytes)) {
		return copy(p, w.bytes[at:]), nil
	}
	if w.bytes == nil {
		w.bytes = make([]byte, windowSize)
	}
	n, err := w.r.ReadAt(w.bytes[:windowSize], off)
	w.off, w.bytes, w.at = off, w.bytes[:n], time.Now()
	if n > 0 {
		return copy(p, w.bytes), nil
	}
	return 0, err
}
