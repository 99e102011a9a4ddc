package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"

	"golang.org/x/sync/errgroup"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

// writer writes the wanted bytes of changes to their slots. attrs has the attributes of each change.
type writer struct {
	stager
	attrs    []fileAttrs
	src      Source
	syncEach bool        // make each file durable by itself, not the whole file system
	making   *sync.Mutex // held while a directory is made, so that other writers see it only with its owner and mode
	cur      safe.Cursor // of the staged trees
	buf      []byte      // for hashing
}

// writeAll writes the changes in the order of list.
func (w *writer) writeAll(ctx context.Context, list []int32) error {
	defer w.cur.Reset()
	small := make([]byte, 0, safe.MaxSmallBlob)
	for _, i := range list {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := w.write(int(i), w.src, small); err != nil {
			return err
		}
	}
	return nil
}

// How many batches of small blobs writeAhead keeps in memory, and how many goroutines write them.
const (
	batches = 4
	writers = 2
)

// batch has the small blobs of some changes.
type batch struct {
	changes []int32
	blobs   safe.SmallBlobs
}

// writeBatch writes the blobs of a batch, and empties it.
func (w *writer) writeBatch(b *batch) error {
	for k, i := range b.changes {
		if err := w.write(int(i), func(io.Writer, plan.Change) error { return nil }, b.blobs.At(k)); err != nil {
			return err
		}
	}
	b.changes = b.changes[:0]
	b.blobs.Reset()
	return nil
}

// writeAhead is writeAll with goroutines that write batches of small blobs while another reads the next: reading is mostly inflating,
// and writing is mostly the file system. The goroutine that reads also writes the large blobs.
func (w *writer) writeAhead(ctx context.Context, list []int32) error {
	defer w.cur.Reset()
	ready, free := make(chan *batch, batches), make(chan *batch, batches)
	for range batches {
		free <- &batch{}
	}
	group, ctx := errgroup.WithContext(ctx)
	for range writers {
		other := *w
		other.cur, other.buf = safe.Cursor{Top: w.cur.Top}, make([]byte, len(w.buf))
		group.Go(func() error {
			defer other.cur.Reset()
			for b := range ready {
				if err := other.writeBatch(b); err != nil {
					return err
				}
				free <- b
			}
			return nil
		})
	}
	group.Go(func() error {
		defer close(ready)
		return w.readAll(ctx, list, ready, free)
	})
	return group.Wait()
}

// readAll reads the blobs of list into batches, and writes large ones itself.
func (w *writer) readAll(ctx context.Context, list []int32, ready chan<- *batch, free <-chan *batch) error {
	var b *batch
	for _, i := range list {
		if err := ctx.Err(); err != nil {
			return err
		}
		if b == nil {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case b = <-free:
			}
		}
		small, err := b.blobs.Add(func(to io.Writer) error { return w.src(to, w.run.Changes[i]) })
		if small {
			b.changes = append(b.changes, i)
		} else if err == nil {
			err = w.write(int(i), w.src, nil)
		}
		if err != nil {
			return err
		}
		if b.blobs.Full() {
			ready <- b // does not block: ready has room for all batches
			b = nil
		}
	}
	if b != nil {
		ready <- b
	}
	return nil
}

// write writes the bytes of one change to its slot: first those in small, then those that src writes.
func (w *writer) write(i int, src Source, small []byte) error {
	r, c, s, attrs := w.run, &w.run.Changes[i], &w.run.Slots[i], &w.attrs[i]
	stg, name, err := w.slotFolder(i)
	if err != nil {
		return safe.WriteError(err, "stage %s", c.Path)
	}
	path := stg.Join(name)
	f, err := r.d.vol.Create(stg, name, attrs.perm)
	if err != nil {
		return safe.WriteError(err, "stage %s", c.Path)
	}
	to := &safe.BlobWriter{File: f, Small: small}
	var id plan.ID
	var srcErr error
	err = r.d.vol.Fill(path, func() error {
		if srcErr = src(to, *c); srcErr != nil {
			return srcErr
		}
		id, err = to.Finish(w.buf)
		return err
	})
	switch {
	case to.Err != nil:
		err = safe.WriteError(to.Err, "stage %s", c.Path)
	case srcErr != nil:
		err = srcErr
	case err != nil:
		err = safe.WriteError(err, "stage %s", c.Path)
	case id != c.ID:
		err = fmt.Errorf("stage %s: expected blob %s, got %s", c.Path, c.ID, id)
	}
	var fi fs.FileInfo
	if err == nil {
		fi, err = r.d.vol.SetAttrs(f, path, attrs.owner(), attrs.perm)
	}
	if err == nil {
		r.d.vol.LearnModes(fi, attrs.perm)
	}
	if err == nil && w.syncEach {
		err = safe.WriteError(r.d.vol.Sync(f, path), "stage %s", c.Path)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	s.Ino, s.Size, s.Mtime = safe.AttrsOf(fi).Ino, fi.Size(), fi.ModTime().UnixNano()
	return nil
}
