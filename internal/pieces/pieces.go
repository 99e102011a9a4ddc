// Package pieces holds the bytes of large files in pieces. A caller can release each piece as soon as it has used it.
package pieces

import (
	"io"
	"net"
	"slices"
)

// Size is the maximum size of a piece that a Buffer makes, in bytes.
const Size = 256 << 10

// Bytes are bytes in pieces.
type Bytes [][]byte

// Of returns b as one piece, without a copy.
func Of(b []byte) Bytes { return Bytes{b} }

// Len returns the number of bytes.
func (p Bytes) Len() int64 {
	var n int64
	for _, b := range p {
		n += int64(len(b))
	}
	return n
}

// Join returns the bytes in one piece. It does not copy them if they are in one piece already.
func (p Bytes) Join() []byte {
	if len(p) == 1 {
		return p[0]
	}
	return slices.Concat(p...)
}

// WriteTo implements io.WriterTo.
func (p Bytes) WriteTo(w io.Writer) (n int64, err error) {
	for _, b := range p {
		k, err := w.Write(b)
		n += int64(k)
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// Reader returns a reader of the bytes.
func (p Bytes) Reader() io.Reader {
	r := net.Buffers(slices.Clone(p))
	return &r
}

// Buffer collects what is written to it.
type Buffer struct {
	Bytes Bytes
	spare [][]byte
}

// Write implements io.Writer. It never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		last := len(b.Bytes) - 1
		switch spare := len(b.spare) - 1; {
		case last >= 0 && len(b.Bytes[last]) < Size:
		case spare >= 0:
			b.Bytes, b.spare, last = append(b.Bytes, b.spare[spare][:0]), b.spare[:spare], last+1
		case last < 0: // most files are small, so the first piece grows with its content
			b.Bytes, last = append(b.Bytes, nil), 0
		default:
			b.Bytes, last = append(b.Bytes, make([]byte, 0, Size)), last+1
		}
		k := min(len(p), Size-len(b.Bytes[last]))
		b.Bytes[last] = append(b.Bytes[last], p[:k]...)
		p = p[k:]
	}
	return n, nil
}

// Reuse gives the memory of a piece to the buffer, for later writes. The caller must not use the piece afterwards. Reuse ignores a piece that
// has room for less than Size bytes.
func (b *Buffer) Reuse(piece []byte) {
	if cap(piece) >= Size {
		b.spare = append(b.spare, piece)
	}
}
