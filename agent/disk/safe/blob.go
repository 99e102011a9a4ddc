package safe

import (
	"context"
	"io"
	"os"

	"stoker.io/stoker/agent/plan"
)

// MaxSmallBlob is the size in bytes up to which a blob is kept in memory and written at once.
const MaxSmallBlob = 64 << 10

// SmallBlob keeps what is written to it, up to the size of a small blob.
type SmallBlob struct {
	Bytes []byte
	Full  bool // more was written
}

func (b *SmallBlob) Write(p []byte) (int, error) {
	if len(b.Bytes)+len(p) > MaxSmallBlob {
		b.Full = true
		return 0, io.ErrShortWrite
	}
	b.Bytes = append(b.Bytes, p...)
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
