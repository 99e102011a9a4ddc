package safe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"stoker.io/stoker/agent/plan"
)

// HashFile returns the git blob id of an open file, read from its start. If the file changes while HashFile reads, the id
// may belong to no version of the file, so the caller must compare it with an expected id. HashFile fails when ctx is done.
func HashFile(ctx context.Context, f *os.File, buf []byte) (plan.ID, error) {
	fi, err := f.Stat()
	if err != nil {
		return plan.ID{}, err
	}
	h := plan.NewBlob(fi.Size())
	if _, err := io.CopyBuffer(struct{ io.Writer }{h}, ContextReader(ctx, io.NewSectionReader(f, 0, fi.Size())), buf); err != nil {
		return plan.ID{}, err
	}
	return plan.ID(h.Sum(nil)), nil
}

// ContextReader returns a reader of r that fails when ctx is done.
func ContextReader(ctx context.Context, r io.Reader) io.Reader { return contextReader{ctx, r} }

type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// Hash returns the git blob id of a file in the folder. It does not read a file of more than limit bytes, and returns the null
// id, which no blob has. A limit of 0 means no limit.
func (n *Folder) Hash(ctx context.Context, name string, buf []byte, limit int64) (plan.ID, error) {
	f, fi, err := n.File(name, os.O_RDONLY)
	if err != nil {
		return plan.ID{}, err
	}
	if limit > 0 && fi.Size() > limit {
		return plan.ID{}, f.Close()
	}
	id, err := HashFile(ctx, f, buf)
	if err = errors.Join(err, f.Close()); err != nil {
		return plan.ID{}, fmt.Errorf("read %s: %w", n.Join(name), err)
	}
	return id, nil
}
