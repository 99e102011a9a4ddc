package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

// Content is a file as it was before the sync that took a snapshot.
type Content struct {
	Path string
	// ID is the blob id of the file's bytes.
	ID   plan.ID
	Exec bool
	// Recorded reports whether the manifest of the snapshot has a record of the file with these bytes. Want and Origin are copied from
	// this record.
	Recorded bool
	Want     plan.ID
	Origin   uint16
}

// Contents is the state of the data directory before the sync that took a snapshot. It has two kinds of files: those in the manifest of the
// snapshot, which the agent owned at that time, and the other files that this sync or a later one replaced or deleted.
//
// The bytes come from the snapshots. If no sync has touched a file since, they come from the live file.
//
// To read Contents while an agent runs, open the Dir with ReadOnly.
type Contents struct {
	Snapshot
	// Header is the header of the manifest of the snapshot.
	Header plan.Header

	takeBack *TakeBack
	manifest *format.Manifest // of the snapshot
	cursor   safe.Cursor
	buf      []byte
}

// Contents opens the state before the sync that took the snapshot id. If a file in a snapshot is damaged, its bytes come from blobs. The
// caller must close the result.
func (d *Dir) Contents(id string, blobs plan.Objects) (*Contents, error) {
	s, err := d.describeSnapshot(id)
	if err != nil {
		return nil, err
	}
	takeBack, err := d.takeBackOf(id, blobs)
	if err != nil {
		return nil, err
	}
	manifest, err := d.manifestOf(id)
	if err != nil {
		takeBack.Close()
		return nil, err
	}
	return &Contents{Snapshot: s, Header: manifest.Header(), takeBack: takeBack, manifest: manifest, cursor: safe.Cursor{Top: d.top}, buf: make([]byte, 64<<10)}, nil
}

// Close closes the manifest, the snapshots and the open directories.
func (c *Contents) Close() error {
	c.cursor.Reset()
	c.takeBack.Close()
	return c.manifest.Close()
}

// ErrChanged means that a sync changed files while the caller read Contents. The caller must read them again.
var ErrChanged = errors.New("a sync changed files while they were read")

// Each calls each for every file, sorted by path. In the call, write writes the bytes of the file. If a sync changes files before Each
// returns, the error is ErrChanged, and the caller must discard what it has read.
func (c *Contents) Each(ctx context.Context, each func(f Content, size int64, write func(io.Writer) error) error) error {
	newest, err := c.takeBack.d.newestAtRest()
	if err != nil {
		return err
	}
	next, stop := iter.Pull(c.takeBack.paths()) // touched by this sync or a later one
	defer stop()
	at, more := next()
	path := func() string { return c.takeBack.touches[at].path }
	unrecorded := func(until func(string) bool) error { // handles the touched paths that have no record
		for ; more && until(path()); at, more = next() {
			if err := c.file(ctx, path(), plan.Owned{}, false, each); err != nil {
				return err
			}
		}
		return nil
	}
	for was, err := range c.manifest.All("") {
		if err == nil {
			err = unrecorded(func(path string) bool { return path < was.Path })
		}
		if err != nil {
			return err
		}
		if more && path() == was.Path {
			at, more = next()
		}
		if err := c.file(ctx, was.Path, was, true, each); err != nil {
			return err
		}
	}
	if err := unrecorded(func(string) bool { return true }); err != nil {
		return err
	}
	if now, err := c.takeBack.d.newestAtRest(); err != nil || now != newest {
		return errors.Join(ErrChanged, err)
	}
	return nil
}

// newestAtRest returns the name of the newest snapshot, or ErrChanged while a sync moves files. Every sync that moves files takes a snapshot
// or removes all snapshots. So if two calls return the same name, no sync moved files in between.
func (d *Dir) newestAtRest() (string, error) {
	if d.own == nil || d.own.Has(journalFile) || d.own.Has(undoFile) {
		return "", ErrChanged
	}
	names, err := d.snapshotNames()
	if err != nil || len(names) == 0 {
		return "", errors.Join(ErrChanged, err)
	}
	return names[len(names)-1], nil
}

// file calls each for one path, unless there was no file. was is the record of the path in the manifest, if recorded is true.
func (c *Contents) file(ctx context.Context, path string, was plan.Owned, recorded bool, each func(Content, int64, func(io.Writer) error) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f := Content{Path: path, Exec: was.Exec}
	var in *os.File
	var err error
	at, touched := c.takeBack.find(path)
	if touched {
		e := c.takeBack.then(at, was, recorded)
		if e.absent {
			return nil
		}
		f.ID, f.Exec = e.id, e.exec
		in, err = c.takeBack.open(ctx, e)
	} else if in, err = c.live(ctx, &f); in == nil && err == nil {
		return nil // a user removed the file, or replaced it with a directory or link
	}
	if err != nil {
		return fmt.Errorf("read %s of snapshot %s: %w", path, c.ID, err)
	}
	fromGit := in == nil
	if recorded && (was.Have == f.ID || !fromGit && c.rewritten(was, f.ID)) {
		f.Recorded, f.Want, f.Origin = true, was.Want, was.Origin
	}
	if fromGit {
		size, err := c.takeBack.blobs.WriteBlob(io.Discard, f.ID)
		if err != nil {
			return err
		}
		return each(f, size, func(w io.Writer) error {
			_, err := c.takeBack.blobs.WriteBlob(w, f.ID)
			return err
		})
	}
	defer func() { _ = in.Close() }() // opened for reading
	fi, err := in.Stat()
	if err != nil {
		return err
	}
	return each(f, fi.Size(), func(w io.Writer) error {
		_, err := io.Copy(w, safe.ContextReader(ctx, io.NewSectionReader(in, 0, fi.Size())))
		return err
	})
}

// live opens the live file at f.Path and sets f.ID. It returns nil if there is no regular file.
func (c *Contents) live(ctx context.Context, f *Content) (*os.File, error) {
	dir, name := safe.Split(f.Path)
	n, err := c.cursor.At(dir)
	var in *os.File
	if err == nil {
		in, _, err = n.File(name, os.O_RDONLY)
	}
	if _, irregular := errors.AsType[*safe.IrregularError](err); irregular || safe.NotThere(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if f.ID, err = safe.HashFile(ctx, in, c.buf); err != nil {
		return nil, errors.Join(err, in.Close())
	}
	return in, nil
}

// rewritten reports whether the gateway itself rewrote the recorded file without changing its meaning. id is the blob id of the new bytes.
func (c *Contents) rewritten(was plan.Owned, id plan.ID) bool {
	at, touched := c.takeBack.find(was.Path)
	if !touched {
		return c.takeBack.d.rewritten(was, id)
	}
	e := c.takeBack.touches[at].earlier
	return c.takeBack.d.rewrittenAt(c.takeBack.snapshots[e.snapshot].Folder, e.name(), was, id)
}
