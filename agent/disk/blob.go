package disk

import (
	"context"
	"crypto/sha1" // git names objects by SHA-1
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"

	"stoker.io/stoker/agent/plan"
)

// hashFile returns the git blob id of an open file, read from its start. If the file's size changes meanwhile, the id
// is of no blob or of a state that the file had; the caller compares it with an expected id. It ends with ctx.
func hashFile(ctx context.Context, f *os.File, buf []byte) (plan.ID, error) {
	fi, err := f.Stat()
	if err != nil {
		return plan.ID{}, err
	}
	h := sha1.New()
	h.Write(blobHeader(fi.Size()))
	if _, err := io.CopyBuffer(struct{ io.Writer }{h}, reader{ctx, io.NewSectionReader(f, 0, fi.Size())}, buf); err != nil {
		return plan.ID{}, err
	}
	return plan.ID(h.Sum(nil)), nil
}

// reader is a reader that ends with a context.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

func blobHeader(size int64) []byte {
	return append(strconv.AppendInt([]byte("blob "), size, 10), 0)
}

func blobID(b []byte) plan.ID {
	h := sha1.New()
	h.Write(blobHeader(int64(len(b))))
	h.Write(b)
	return plan.ID(h.Sum(nil))
}

// blobWriter writes a blob of unknown size. The id depends on the size, so a small blob is buffered and hashed in
// memory, and a large one is read again.
type blobWriter struct {
	f     *os.File
	small []byte // its capacity is the limit
	large bool   // the blob exceeded small
	err   error  // of the file, because a source may hide it
}

func (w *blobWriter) Write(p []byte) (int, error) {
	if !w.large && len(w.small)+len(p) <= cap(w.small) {
		w.small = append(w.small, p...)
		return len(p), nil
	}
	if !w.large {
		w.large = true
		if err := w.put(w.small); err != nil {
			return 0, err
		}
	}
	if err := w.put(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (w *blobWriter) put(p []byte) error {
	if w.err == nil {
		_, w.err = w.f.Write(p)
	}
	return w.err
}

// finish writes the buffered bytes and returns the blob's id.
func (w *blobWriter) finish(buf []byte) (plan.ID, error) {
	if w.large {
		return hashFile(context.Background(), w.f, buf) // a file that was just written
	}
	if err := w.put(w.small); err != nil {
		return plan.ID{}, err
	}
	return blobID(w.small), nil
}

// id hashes a file while files move, which no context interrupts. An unreadable file gets the null id, so that it
// counts as not in git and is kept.
func (r *run) id(n *node, name string) (plan.ID, error) {
	id, err := n.id(context.Background(), name, r.buf, r.d.o.MaxBlob)
	if errors.Is(err, fs.ErrPermission) {
		return plan.ID{}, nil
	}
	return id, err
}

// id hashes a file of the directory. A file of more than limit bytes (0: no limit) is not read: its id is the null id,
// which no blob has.
func (n *node) id(ctx context.Context, name string, buf []byte, limit int64) (plan.ID, error) {
	f, fi, err := n.file(name, os.O_RDONLY)
	if err != nil {
		return plan.ID{}, err
	}
	if limit > 0 && fi.Size() > limit {
		return plan.ID{}, f.Close()
	}
	id, err := hashFile(ctx, f, buf)
	if err = errors.Join(err, f.Close()); err != nil {
		return plan.ID{}, fmt.Errorf("read %s: %w", n.join(name), err)
	}
	return id, nil
}
