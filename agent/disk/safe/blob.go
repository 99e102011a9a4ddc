package safe

import (
	"context"
	"io"
	"os"

	"stoker.io/stoker/agent/plan"
)

// MaxSmallBlob is the size in bytes up to which a blob is kept in memory and written at once.
const MaxSmallBlob = 64 << 10

// The size of SmallBlobs that are full.
const (
	fullBlobs = 64
	fullBytes = 128 << 10
)

// SmallBlobs has the bytes of small blobs, one after the other.
type SmallBlobs struct {
	bytes []byte
	ends  []int // of the blobs in bytes
	large bool  // the blob that Add adds is not small
}

// Add adds the bytes that write writes, and reports whether they are a small blob. If they are not, Add stops write and adds nothing. An
// error of write is returned unchanged, and then nothing is added.
func (b *SmallBlobs) Add(write func(io.Writer) error) (small bool, err error) {
	b.large = false
	err = write((*smallWriter)(b))
	switch {
	case b.large:
		err = nil
	case err == nil:
		b.ends = append(b.ends, len(b.bytes))
		return true, nil
	}
	b.bytes = b.bytes[:b.end()]
	return false, err
}

// end returns where the blobs end in bytes.
func (b *SmallBlobs) end() int {
	if len(b.ends) == 0 {
		return 0
	}
	return b.ends[len(b.ends)-1]
}

// Full reports whether there are enough blobs to write them.
func (b *SmallBlobs) Full() bool { return len(b.ends) >= fullBlobs || b.end() >= fullBytes }

// At returns the bytes of a blob.
func (b *SmallBlobs) At(i int) []byte {
	start := 0
	if i > 0 {
		start = b.ends[i-1]
	}
	return b.bytes[start:b.ends[i]:b.ends[i]]
}

// Reset removes all blobs.
func (b *SmallBlobs) Reset() { b.bytes, b.ends = b.bytes[:0], b.ends[:0] }

// smallWriter appends to the last blob, up to the size of a small one.
type smallWriter SmallBlobs

func (w *smallWriter) Write(p []byte) (int, error) {
	if len(w.bytes)+len(p) > (*SmallBlobs)(w).end()+MaxSmallBlob {
		w.large = true
		return 0, io.ErrShortWrite
	}
	w.bytes = append(w.bytes, p...)
	return len(p), nil
}

// BlobWriter writes a blob of unknown size. The id depends on the size, so BlobWriter hashes a small blob in memory, and reads a
// large one again.
type BlobWriter struct {
	File  *os.File
	Small []byte // not written yet; its capacity is the limit
	large bool   // the blob exceeded Small
	Err   error  // of writing to File, because a source may hide it
}

func (w *BlobWriter) Write(p []byte) (int, error) {
	if !w.large && len(w.Small)+len(p) <= cap(w.Small) {
		w.Small = append(w.Small, p...)
		return len(p), nil
	}
	if !w.large {
		w.large = true
		if err := w.writeFile(w.Small); err != nil {
			return 0, err
		}
	}
	if err := w.writeFile(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (w *BlobWriter) writeFile(p []byte) error {
	if w.Err == nil {
		_, w.Err = w.File.Write(p)
	}
	return w.Err
}

// Finish writes the buffered bytes and returns the blob's id. It reads a large blob through buf.
func (w *BlobWriter) Finish(buf []byte) (plan.ID, error) {
	if w.large {
		return HashFile(context.Background(), w.File, buf) // a file that was just written
	}
	if err := w.writeFile(w.Small); err != nil {
		return plan.ID{}, err
	}
	return plan.BlobID(w.Small), nil
}
