package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"golang.org/x/sync/errgroup"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

// aheadBlobs is the number of small blobs that readAhead keeps in memory.
const aheadBlobs = 8

// writer writes the wanted bytes of changes to their slots. attrs has the attributes of each change.
type writer struct {
	stager
	attrs    []fileAttrs
	src      Source
	syncEach bool // make each file durable
}

// writeAll writes the changes in the order of list.
func (w writer) writeAll(ctx context.Context, list []int32) error {
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

// readAhead is writeAll with one goroutine that writes files while another reads the next blobs: reading is mostly inflating, and
// writing is mostly the file system. A large blob is streamed when all files before it are written.
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
		var head safe.SmallBlob
		select {
		case <-ctx.Done():
			return ctx.Err()
		case head.Bytes = <-free:
		}
		err := w.src(&head, w.run.Changes[i])
		if !head.Full {
			if err == nil {
				blobs <- blob{i, head.Bytes}
			}
			return err
		}
		buffers := [][]byte{head.Bytes[:0]}
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
	to := &safe.BlobWriter{File: f, Small: small}
	var id plan.ID
	var srcErr error
	err = r.d.vol.Fill(path, func() error {
		if srcErr = src(to, *c); srcErr != nil {
			return srcErr
		}
		id, err = to.Finish(r.buf)
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
