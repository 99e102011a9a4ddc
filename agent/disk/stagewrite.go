package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sync/errgroup"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

const (
	smallBlob  = 64 << 10 // bytes: blobs up to this size are written at once, from memory
	aheadBlobs = 8        // small blobs that readAhead keeps in memory
)

// writer writes the wanted bytes of changes to their slots. attrs has the attributes of each change.
type writer struct {
	stager
	attrs    []fileAttrs
	src      Source
	syncEach bool // make each file durable
}

// writeAll writes the changes in the order of list.
func (w writer) writeAll(ctx context.Context, list []int32) error {
	small := make([]byte, 0, smallBlob)
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

// readAhead is writeAll with one goroutine that writes files while the caller's reads the next blobs: reading is mostly inflating,
// and writing is mostly the file system. A large blob is streamed when all files before it are written.
func (w writer) readAhead(ctx context.Context, list []int32) error {
	type blob struct {
		i     int
		bytes []byte
	}
	blobs, free := make(chan blob, aheadBlobs), make(chan []byte, aheadBlobs)
	for range aheadBlobs {
		free <- make([]byte, 0, 4<<10)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		for b := range blobs {
			if err := w.write(b.i, func(io.Writer, plan.Change) error { return nil }, b.bytes); err != nil {
				return err
			}
			free <- b.bytes[:0]
		}
		return nil
	})
	read := func(i int) error {
		var head headBuffer
		select {
		case <-ctx.Done():
			return ctx.Err()
		case head.bytes = <-free:
		}
		err := w.src(&head, w.run.Changes[i])
		if !head.full {
			if err == nil {
				blobs <- blob{i, head.bytes}
			}
			return err
		}
		buffers := [][]byte{head.bytes[:0]}
		for len(buffers) < aheadBlobs { // when all are free, no file is being written
			select {
			case <-ctx.Done():
				return ctx.Err()
			case b := <-free:
				buffers = append(buffers, b)
			}
		}
		err = w.write(i, w.src, buffers[0])
		for _, b := range buffers {
			free <- b
		}
		return err
	}
	group.Go(func() error {
		defer close(blobs)
		for _, i := range list {
			if err := read(int(i)); err != nil {
				return err
			}
		}
		return nil
	})
	return group.Wait()
}

// headBuffer keeps what is written to it, up to the size of a small blob.
type headBuffer struct {
	bytes []byte
	full  bool // more was written
}

func (b *headBuffer) Write(p []byte) (int, error) {
	if len(b.bytes)+len(p) > smallBlob {
		b.full = true
		return 0, io.ErrShortWrite
	}
	b.bytes = append(b.bytes, p...)
	return len(p), nil
}

// write writes the bytes of one change to its slot: those in small, and those of src.
func (w writer) write(i int, src Source, small []byte) error {
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
	to := &blobWriter{f: f, small: small}
	var id plan.ID
	var srcErr error
	err = r.d.vol.Fill(path, func() error {
		if srcErr = src(to, *c); srcErr != nil {
			return srcErr
		}
		id, err = to.finish(r.buf)
		return err
	})
	switch {
	case to.err != nil:
		err = safe.WriteError(to.err, "stage %s", c.Path)
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

// blobWriter writes a blob of unknown size. The id depends on the size, so blobWriter hashes a small blob in memory, and reads a
// large one again.
type blobWriter struct {
	f     *os.File
	small []byte // not written yet; its capacity is the limit
	large bool   // the blob exceeded small
	err   error  // of writing to f, because a source may hide it
}

func (w *blobWriter) Write(p []byte) (int, error) {
	if !w.large && len(w.small)+len(p) <= cap(w.small) {
		w.small = append(w.small, p...)
		return len(p), nil
	}
	if !w.large {
		w.large = true
		if err := w.writeFile(w.small); err != nil {
			return 0, err
		}
	}
	if err := w.writeFile(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (w *blobWriter) writeFile(p []byte) error {
	if w.err == nil {
		_, w.err = w.f.Write(p)
	}
	return w.err
}

// finish writes the buffered bytes and returns the blob's id.
func (w *blobWriter) finish(buf []byte) (plan.ID, error) {
	if w.large {
		return safe.HashFile(context.Background(), w.f, buf) // a file that was just written
	}
	if err := w.writeFile(w.small); err != nil {
		return plan.ID{}, err
	}
	return plan.BlobID(w.small), nil
}
