package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"strings"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

var _ plan.State = (*Dir)(nil)

// Stat implements plan.State. It never follows a link.
func (d *Dir) Stat(path string) (plan.Stat, error) {
	if err := safe.CheckPath(path); err != nil {
		return plan.Stat{}, failure.New(v1alpha1.ReasonUnsafePath, "%w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	fi, err := d.cur.Lstat(path)
	if safe.NotThere(err) {
		return plan.Stat{}, nil
	}
	if err != nil {
		return plan.Stat{}, fmt.Errorf("stat %s: %w", path, err)
	}
	return d.vol.Stat(fi), nil
}

// Blocked implements plan.State.
func (d *Dir) Blocked(path string) (string, plan.Kind, error) {
	if err := safe.CheckPath(path); err != nil {
		return "", plan.Missing, failure.New(v1alpha1.ReasonUnsafePath, "%w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	dir, _ := safe.Split(path)
	_, err := d.cur.At(dir)
	if b, ok := errors.AsType[*safe.BlockedError](err); ok {
		return b.Path, b.Kind, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", plan.Missing, fmt.Errorf("open the parents of %s: %w", path, err)
	}
	return "", plan.Missing, nil
}

// Within returns a view of d whose reads fail when ctx is done: a walk may be long, and a file may take minutes to read.
func (d *Dir) Within(ctx context.Context) plan.State { return within{d, ctx} }

type within struct {
	*Dir
	ctx context.Context
}

func (w within) Stat(path string) (plan.Stat, error) {
	if err := w.ctx.Err(); err != nil {
		return plan.Stat{}, err
	}
	return w.Dir.Stat(path)
}

func (w within) Walk(dir string) iter.Seq2[plan.Found, error] {
	return func(yield func(plan.Found, error) bool) {
		for f, err := range w.Dir.Walk(dir) {
			if err == nil {
				err = w.ctx.Err()
			}
			if !yield(f, err) || err != nil {
				return
			}
		}
	}
}

// BlobID returns the git blob id of a file's content, or the null id for more than Options.MaxBlob bytes.
func (d *Dir) BlobID(path string) (plan.ID, error) {
	return within{d, context.Background()}.BlobID(path)
}

func (w within) BlobID(path string) (plan.ID, error) {
	if err := safe.CheckPath(path); err != nil {
		return plan.ID{}, failure.New(v1alpha1.ReasonUnsafePath, "%w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	dir, name := safe.Split(path)
	n, err := w.cur.At(dir)
	if err != nil {
		return plan.ID{}, fmt.Errorf("read %s: %w", path, err)
	}
	return n.Hash(w.ctx, name, w.buf, w.o.MaxBlob)
}

// Read returns a file's content, or LimitExceeded for more than limit bytes.
func (d *Dir) Read(path string, limit int64) ([]byte, error) {
	if err := safe.CheckPath(path); err != nil {
		return nil, failure.New(v1alpha1.ReasonUnsafePath, "%w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	dir, name := safe.Split(path)
	n, err := d.cur.At(dir)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return n.ReadFile(name, limit)
}

// CopyTo writes a file's content to w, until ctx is done.
func (d *Dir) CopyTo(ctx context.Context, w io.Writer, path string) error {
	if err := safe.CheckPath(path); err != nil {
		return failure.New(v1alpha1.ReasonUnsafePath, "%w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	dir, name := safe.Split(path)
	n, err := d.cur.At(dir)
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	f, _, err := n.File(name, os.O_RDONLY)
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	defer func() { _ = f.Close() }() // opened for reading
	_, err = io.CopyBuffer(struct{ io.Writer }{w}, safe.ContextReader(ctx, f), d.buf)
	return err
}

// Walk implements plan.State. dir "" is the data directory. If dir is missing or not a directory, Walk yields nothing.
func (d *Dir) Walk(dir string) iter.Seq2[plan.Found, error] {
	return func(yield func(plan.Found, error) bool) {
		if dir == "." {
			dir = ""
		}
		if dir != "" {
			if err := safe.CheckPath(dir); err != nil {
				yield(plan.Found{}, failure.New(v1alpha1.ReasonUnsafePath, "%w", err))
				return
			}
		}
		c := safe.Cursor{Top: d.top}
		defer c.Reset()
		n, err := c.At(dir)
		if safe.NotThere(err) {
			return
		}
		if err != nil {
			yield(plan.Found{}, fmt.Errorf("walk %s: %w", dir, err))
			return
		}
		safe.Walk(n, strings.Count(dir, "/"), nil, yield)
	}
}
