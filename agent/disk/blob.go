package disk

import (
	"context"
	"crypto/sha1" // what git names its objects by
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"

	"stoker.io/stoker/agent/plan"
)

// hashFile returns the git blob id of an open file from its start. A file that grows or shrinks meanwhile gives an id
// that no blob has, or one of a state it was in; the caller compares it with the one it expects. It ends with ctx.
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

// reader ends with a context.
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

// blobWriter writes a blob whose size is not known before its end, and its id needs the size first: a small one is
// held back and hashed in memory, a large one is read again.
type blobWriter struct {
	f     *os.File
	small []byte // capacity is the limit
	large bool   // nothing is held back any more
	err   error  // of the file, as a source may hide it
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

// finish writes what was held back and returns the id of all.
func (w *blobWriter) finish(buf []byte) (plan.ID, error) {
	if w.large {
		return hashFile(context.Background(), w.f, buf) // of the size that was just written
	}
	if err := w.put(w.small); err != nil {
		return plan.ID{}, err
	}
	return blobID(w.small), nil
}

// id hashes a file while files move, which no context ends. What cannot be read is not what git has either, so that it is
// kept, and stops nothing half way.
func (r *run) id(n *node, name string) (plan.ID, error) {
	id, err := n.id(context.Background(), name, r.buf, r.d.o.MaxBlob)
	if errors.Is(err, fs.ErrPermission) {
		return plan.ID{}, nil
	}
	return id, err
}

// id hashes the file of that name in a directory. One of more than limit bytes, 0 for no limit, is not read: it is the null
// id, which no blob has.
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
