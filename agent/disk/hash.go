package disk

import (
	"context"
	"crypto/sha1"
	"errors"
	"fmt"
	"io"
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
