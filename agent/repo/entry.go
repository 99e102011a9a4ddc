package repo

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zlib"

	"stoker.io/stoker/agent/plan"
)

// kind is the type of an entry of a pack.
type kind uint8

const (
	kindCommit kind = 1
	kindTree   kind = 2
	kindBlob   kind = 3
	kindTag    kind = 4
	kindOffset kind = 6 // a delta whose base is an earlier entry of the pack
	kindRef    kind = 7 // a delta whose base is named by its id
)

func (k kind) String() string {
	switch k {
	case kindCommit:
		return "commit"
	case kindTree:
		return "tree"
	case kindBlob:
		return "blob"
	case kindTag:
		return "tag"
	}
	return "delta"
}

func (k kind) delta() bool { return k == kindOffset || k == kindRef }

func (k kind) valid() bool { return (k >= kindCommit && k <= kindTag) || k.delta() }

const (
	packHeaderSize  = 12
	packTrailerSize = 20
	packMagic       = "PACK"
	packVersion     = 2
)

// entry is the head of an object in a pack.
type entry struct {
	kind   kind
	size   int64   // inflated bytes: of the object, or of the delta
	back   int64   // kindOffset: distance to the base, in bytes
	baseID plan.ID // kindRef
}

// readEntry reads the head of an entry and leaves br at the first byte of the zlib stream.
func readEntry(br *bufio.Reader) (entry, error) {
	var e entry
	b, err := br.ReadByte()
	if err != nil {
		return e, err
	}
	e.kind, e.size = kind(b>>4&7), int64(b&15)
	for shift := 4; b&0x80 != 0; shift += 7 {
		if shift > 55 {
			return e, corrupt("the size of an entry does not fit 62 bits")
		}
		if b, err = br.ReadByte(); err != nil {
			return e, err
		}
		e.size |= int64(b&0x7f) << shift
	}
	switch e.kind {
	case kindOffset:
		e.back, err = readBack(br)
	case kindRef:
		_, err = io.ReadFull(br, e.baseID[:])
	default:
		if !e.kind.valid() {
			err = corrupt("an entry has the unknown type %d", e.kind)
		}
	}
	return e, err
}

// readBack reads the distance of a kindOffset entry, big endian with an implied one per further byte.
func readBack(br *bufio.Reader) (int64, error) {
	b, err := br.ReadByte()
	n := int64(b & 0x7f)
	for i := 0; err == nil && b&0x80 != 0; i++ {
		if i > 7 {
			return 0, corrupt("the distance to a base does not fit 62 bits")
		}
		b, err = br.ReadByte()
		n = (n+1)<<7 | int64(b&0x7f)
	}
	return n, err
}

// entryHead encodes the head of an entry that is no delta.
func entryHead(k kind, size int64) []byte {
	var buf []byte
	b := byte(k)<<4 | byte(size&15)
	for size >>= 4; size > 0; size >>= 7 {
		buf = append(buf, b|0x80)
		b = byte(size & 0x7f)
	}
	return append(buf, b)
}

// packHeader is what a pack of so many objects starts with.
func packHeader(objects int) []byte {
	buf := []byte(packMagic)
	buf = binary.BigEndian.AppendUint32(buf, packVersion)
	return binary.BigEndian.AppendUint32(buf, uint32(objects))
}

// inflater reads entries of a pack. It is used again and again: a zlib reader costs 40 kB.
type inflater struct {
	section sectionReader
	br      *bufio.Reader
	zr      io.ReadCloser
	limited io.LimitedReader
	buf     []byte // for copying
	delta   *bufio.Reader
}

func newInflater() *inflater {
	return &inflater{br: bufio.NewReaderSize(nil, 16<<10), buf: make([]byte, 32<<10)}
}

// at reads the head of the entry at off and positions the inflater before its content.
func (f *inflater) at(r io.ReaderAt, off, end int64) (entry, error) {
	f.section = sectionReader{r, off, end}
	f.br.Reset(&f.section)
	e, err := readEntry(f.br)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = corrupt("an entry ends early")
	}
	return e, err
}

// content starts to inflate what follows in br, at most one byte more than size.
func (f *inflater) content(br *bufio.Reader, size int64) (io.Reader, error) {
	var err error
	if f.zr == nil {
		f.zr, err = zlib.NewReader(br)
	} else {
		err = f.zr.(zlib.Resetter).Reset(br, nil)
	}
	f.limited = io.LimitedReader{R: inflated{f.zr}, N: size + 1}
	return &f.limited, damage(err)
}

// copyContent inflates what follows in br to w and insists on exactly size bytes and a right checksum.
func (f *inflater) copyContent(w io.Writer, br *bufio.Reader, size int64) error {
	if _, err := f.content(br, size); err != nil {
		return err
	}
	return f.copyRest(w, size)
}

// loose reads the head of a loose object, which is in the zlib stream itself; copyRest reads the content.
func (f *inflater) loose(r io.Reader) (kind, int64, error) {
	f.br.Reset(r)
	if _, err := f.content(f.br, maxLooseHead-1); err != nil {
		return 0, 0, err
	}
	var head []byte
	for one := f.buf[:1]; ; {
		if _, err := io.ReadFull(&f.limited, one); err != nil {
			return 0, 0, damage(err)
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
	return 0, 0, corrupt("a loose object starts with %s", quoted(string(head)))
}

const maxLooseHead = 32 // bytes

// copyRest inflates the rest of what content or loose began and insists on exactly size bytes and a right checksum.
func (f *inflater) copyRest(w io.Writer, size int64) error {
	// The struct hides ReadFrom of files and hashes, which would use a buffer of their own.
	n, err := io.CopyBuffer(struct{ io.Writer }{w}, &f.limited, f.buf)
	if err != nil {
		return err
	}
	if n != size {
		return corrupt("an entry claims %d bytes and holds others", size)
	}
	return nil
}

// inflated marks the errors of a zlib stream as damage.
type inflated struct{ io.Reader }

func (i inflated) Read(p []byte) (int, error) {
	n, err := i.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = damage(err)
	}
	return n, err
}

// damage marks what a decoder says as damage of the data, unless it is trouble with the file below.
func damage(err error) error {
	if _, ours := errors.AsType[*storeError](err); ours || err == nil || errors.Is(err, errCorrupt) {
		return err
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%w: %w", errCorrupt, err)
}

// sectionReader is io.SectionReader as a value.
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
	return n, onDisk(err)
}
