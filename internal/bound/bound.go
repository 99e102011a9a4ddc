// Package bound limits how many bytes are read and written. None of its types has a method ReadFrom, by which io.Copy would go around the limit.
package bound

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// ErrTooLarge means that there is more to read than the limit.
var ErrTooLarge = errors.New("too large")

// ReadAll returns what r has, at most limit bytes. If there are more, it returns the first ones, and an error that wraps ErrTooLarge.
func ReadAll(r io.Reader, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if int64(len(b)) > limit {
		return b[:limit], fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit)
	}
	return b, err
}

// Writer passes on what is written to it, up to a number of bytes.
type Writer struct {
	w    io.Writer
	left int64
	full func() error
	err  error
}

// NewWriter returns a Writer for at most limit bytes. A Write that exceeds them fails with the error of full, and writes
// nothing. full must return an error.
func NewWriter(w io.Writer, limit int64, full func() error) *Writer {
	return &Writer{w: w, left: limit, full: full}
}

// Write implements io.Writer. After an error, every call fails with the same one.
func (w *Writer) Write(p []byte) (n int, err error) {
	switch {
	case w.err != nil:
		return 0, w.err
	case int64(len(p)) > w.left:
		w.err = w.full()
		return 0, w.err
	}
	n, w.err = w.w.Write(p)
	w.left -= int64(n)
	return n, w.err
}

// Left returns how many more bytes fit.
func (w *Writer) Left() int64 { return w.left }

// Err returns the error of a failed Write; nil if none failed.
func (w *Writer) Err() error { return w.err }

// Buffer holds what is written to it, up to a number of bytes.
type Buffer struct {
	*Writer
	buffer *bytes.Buffer
}

// NewBuffer returns a Buffer for at most limit bytes: see NewWriter.
func NewBuffer(limit int64, full func() error) Buffer {
	b := &bytes.Buffer{}
	return Buffer{NewWriter(b, limit, full), b}
}

// Bytes returns what the buffer holds.
func (b Buffer) Bytes() []byte { return b.buffer.Bytes() }

// Head keeps the first bytes that are written to it, and ignores the rest.
type Head struct {
	limit int
	bytes []byte
}

// NewHead returns a Head that keeps at most limit bytes.
func NewHead(limit int) *Head { return &Head{limit: limit} }

// Write implements io.Writer. It never fails.
func (h *Head) Write(p []byte) (int, error) {
	h.bytes = append(h.bytes, p[:min(len(p), h.limit-len(h.bytes))]...)
	return len(p), nil
}

// String returns what was kept.
func (h *Head) String() string { return string(h.bytes) }
