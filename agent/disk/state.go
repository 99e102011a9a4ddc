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
	"sync"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

var _ plan.State = (*liveFiles)(nil)

// liveFiles reads the files of the gateway, and follows no link. It implements plan.State. Its methods may be called
// concurrently.
type liveFiles struct {
	top     *os.Root
	vol     *safe.Volume
	maxBlob int64 // see Options.MaxBlob

	reading sync.Mutex // guards the fields below
	cur     safe.Cursor
	buf     []byte
}

// inFolder calls do with the directory of a path, and the name of the path in it.
func (l *liveFiles) inFolder(path string, do func(folder *safe.Folder, name string) error) error {
	if err := safe.CheckPath(path); err != nil {
		return failure.New(v1alpha1.ReasonUnsafePath, "%w", err)
	}
	l.reading.Lock()
	defer l.reading.Unlock()
	folder, name, err := l.cur.Parent(path)
	if err != nil {
		return fmt.Errorf("open the parents of %s: %w", path, err)
	}
	return do(folder, name)
}

// Stat implements plan.State.
func (l *liveFiles) Stat(path string) (st plan.Stat, err error) {
	err = l.inFolder(path, func(folder *safe.Folder, name string) error {
		fi, err := folder.Lstat(name)
		if err == nil {
			st = l.vol.Stat(fi)
		}
		return err
	})
	if err != nil && !safe.NotThere(err) {
		return plan.Stat{}, fmt.Errorf("stat %s: %w", path, err)
	}
	return st, nil
}

// Blocked implements plan.State.
func (l *liveFiles) Blocked(path string) (string, plan.Kind, error) {
	err := l.inFolder(path, func(*safe.Folder, string) error { return nil })
	if b, ok := errors.AsType[*safe.BlockedError](err); ok {
		return b.Path, b.Kind, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return "", plan.Missing, err
}

// BlobID returns the git blob id of a file's content, or the null id for more than Options.MaxBlob bytes.
func (l *liveFiles) BlobID(path string) (plan.ID, error) { return l.blobID(context.Background(), path) }

func (l *liveFiles) blobID(ctx context.Context, path string) (id plan.ID, err error) {
	err = l.inFolder(path, func(folder *safe.Folder, name string) error {
		id, err = folder.Hash(ctx, name, l.buf, l.maxBlob)
		return err
	})
	return id, err
}

// Read returns a file's content, or LimitExceeded for more than limit bytes.
func (l *liveFiles) Read(path string, limit int64) (b []byte, err error) {
	err = l.inFolder(path, func(folder *safe.Folder, name string) error {
		b, err = folder.ReadFile(name, limit)
		return err
	})
	return b, err
}

// CopyFile writes a file's content to w.
func (l *liveFiles) CopyFile(w io.Writer, path string) error {
	return l.copyFile(context.Background(), w, path)
}

func (l *liveFiles) copyFile(ctx context.Context, w io.Writer, path string) error {
	return l.inFolder(path, func(folder *safe.Folder, name string) error {
		f, _, err := folder.File(name, os.O_RDONLY)
		if err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		defer func() { _ = f.Close() }() // opened for reading
		_, err = io.CopyBuffer(struct{ io.Writer }{w}, safe.ContextReader(ctx, f), l.buf)
		return err
	})
}

// Walk implements plan.State. dir "" is the data directory. If dir is missing or not a directory, Walk yields nothing.
func (l *liveFiles) Walk(dir string) iter.Seq2[plan.Found, error] {
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
		c := safe.Cursor{Top: l.top}
		defer c.Reset()
		folder, err := c.At(dir)
		if safe.NotThere(err) {
			return
		}
		if err != nil {
			yield(plan.Found{}, fmt.Errorf("walk %s: %w", dir, err))
			return
		}
		safe.Walk(folder, strings.Count(dir, "/"), nil, yield)
	}
}

// Within returns a plan.State like l whose Stat, BlobID, CopyFile and Walk fail when ctx is done: a walk may be long, and a file
// may take minutes to read.
func (l *liveFiles) Within(ctx context.Context) plan.State { return within{l, ctx} }

type within struct {
	*liveFiles
	ctx context.Context
}

func (w within) Stat(path string) (plan.Stat, error) {
	if err := w.ctx.Err(); err != nil {
		return plan.Stat{}, err
	}
	return w.liveFiles.Stat(path)
}

func (w within) BlobID(path string) (plan.ID, error) { return w.blobID(w.ctx, path) }

func (w within) CopyFile(out io.Writer, path string) error { return w.copyFile(w.ctx, out, path) }

func (w within) Walk(dir string) iter.Seq2[plan.Found, error] {
	return func(yield func(plan.Found, error) bool) {
		for f, err := range w.liveFiles.Walk(dir) {
			if err == nil {
				err = w.ctx.Err()
			}
			if !yield(f, err) || err != nil {
				return
			}
		}
	}
}
