package snapshot

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
	// Recorded reports whether the manifest of the snapshot has a record of the file with these bytes, or with others of the same meaning
	// that the gateway itself has rewritten to these. Want and Origin are those of the record: the blob that git wanted here, and the index
	// in Header.Mappings of the mapping that brought the file.
	Recorded bool
	Want     plan.ID
	Origin   uint16
}

// Contents is the state of the data directory before the sync that took a snapshot. It has two kinds of files: those in the
// manifest of the snapshot, which the agent owned at that time, and the other files that this sync or a later one replaced or
// deleted.
//
// The bytes come from the snapshots. If no sync has touched a file since, they come from the live file. For exceptions, see
// priorState.version and priorState.open.
//
// To read Contents while an agent runs, open the Dir with ReadOnly.
type Contents struct {
	Snapshot
	// Header is the header of the manifest of the snapshot.
	Header plan.Header

	prior    *priorState
	live     Live
	manifest *format.Manifest // of the snapshot
	cursor   safe.Cursor      // over the live files
	buf      []byte
}

// Contents opens the state before the sync that took the snapshot id. If a file in a snapshot is damaged, its bytes come from
// blobs, which may be nil. The error is fs.ErrNotExist if there is no such snapshot. The caller must close the result.
func (s *Store) Contents(live Live, id string, blobs plan.Objects) (*Contents, error) {
	x, err := s.read(id)
	if err != nil {
		return nil, err
	}
	ids, err := s.ids()
	if err != nil {
		return nil, err
	}
	p, err := s.priorState(id, ids, blobs)
	if err != nil {
		return nil, err
	}
	manifest, err := s.Manifest(id)
	if err != nil {
		p.close()
		return nil, err
	}
	return &Contents{
		Snapshot: x, Header: manifest.Header(), prior: p, live: live, manifest: manifest, cursor: safe.Cursor{Top: live.Top}, buf: make([]byte, 64<<10),
	}, nil
}

// Close closes the manifest, the snapshots and the open directories.
func (c *Contents) Close() error {
	c.cursor.Reset()
	c.prior.close()
	return c.manifest.Close()
}

// ErrChanged means that a sync changed files while the caller read Contents. The caller must read them again.
var ErrChanged = errors.New("a sync changed files while they were read")

// Each calls each for every file, sorted by path. In the call, write writes the bytes of the file. If a sync changes files before
// Each returns, the error is ErrChanged, and the caller must discard what it has read.
func (c *Contents) Each(ctx context.Context, each func(f Content, size int64, write func(io.Writer) error) error) error {
	before, err := c.prior.store.lastSync()
	if err != nil {
		return err
	}
	next, stop := iter.Pull(c.prior.paths())
	defer stop()
	first, more := next() // the index in touches (what syncs found at the paths that they changed) of the next path
	path := func() string { return c.prior.touches[first].path }
	for rec, err := range c.manifest.All("") {
		for ; err == nil && more && path() < rec.Path; first, more = next() {
			err = c.file(ctx, path(), plan.Owned{}, false, each)
		}
		if err != nil {
			return err
		}
		if more && path() == rec.Path {
			first, more = next()
		}
		if err := c.file(ctx, rec.Path, rec, true, each); err != nil {
			return err
		}
	}
	for ; more; first, more = next() {
		if err := c.file(ctx, path(), plan.Owned{}, false, each); err != nil {
			return err
		}
	}
	if after, err := c.prior.store.lastSync(); err != nil || after != before {
		return errors.Join(ErrChanged, err)
	}
	return nil
}

// lastSync identifies the last sync, or returns ErrChanged while a sync moves files. Every sync that moves files replaces the
// manifest. So if two calls return the same text, no sync moved files in between.
func (s *Store) lastSync() (string, error) {
	if s.own.Has(format.JournalFile) || s.own.Has(format.UndoFile) {
		return "", ErrChanged
	}
	ids, err := s.ids()
	if err != nil || len(ids) == 0 {
		return "", errors.Join(ErrChanged, err)
	}
	last := ids[len(ids)-1]
	if fi, err := s.own.Lstat(format.ManifestFile); err == nil { // otherwise the next sync writes it
		last += fi.ModTime().String()
	}
	return last, nil
}

// file calls each for one path, unless there was no file. rec is the record of the path in the manifest, if recorded is true.
func (c *Contents) file(ctx context.Context, path string, rec plan.Owned, recorded bool, each func(Content, int64, func(io.Writer) error) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f := Content{Path: path, Exec: rec.Exec}
	var in *os.File
	var v version
	var err error
	first, touched := c.prior.find(path)
	if touched {
		// version asks whether the live file has the bytes. If so, it stays open as in.
		v, err = c.prior.version(first, rec, recorded, func(id plan.ID, _ bool) (live bool, err error) {
			if in, err = c.openLive(ctx, &f); in != nil && f.ID != id {
				in, err = nil, in.Close()
			}
			return in != nil, err
		})
		switch {
		case err != nil:
		case v.absent:
			return nil
		case !v.live:
			in, err = c.prior.open(ctx, v)
		}
		f.ID, f.Exec = v.id, v.exec
	} else if in, err = c.openLive(ctx, &f); in == nil && err == nil {
		return nil // a user removed the file, or replaced it with a directory or link
	}
	if err != nil {
		return fmt.Errorf("read %s of snapshot %s: %w", path, c.ID, err)
	}
	fromGit := in == nil // open returns no file if git has the bytes
	if recorded && (rec.Have == f.ID || !fromGit && c.rewritten(rec, f.ID, touched, v)) {
		f.Recorded, f.Want, f.Origin = true, rec.Want, rec.Origin
	}
	if fromGit {
		size, err := c.prior.blobs.WriteBlob(io.Discard, f.ID)
		if err != nil {
			return err
		}
		return each(f, size, func(w io.Writer) error {
			_, err := c.prior.blobs.WriteBlob(w, f.ID)
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

// openLive opens the live file at f.Path and sets f.ID. It returns nil if there is no regular file.
func (c *Contents) openLive(ctx context.Context, f *Content) (*os.File, error) {
	folder, name, err := c.cursor.Parent(f.Path)
	var in *os.File
	if err == nil {
		in, _, err = folder.File(name, os.O_RDONLY)
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

// rewritten reports whether the gateway itself rewrote the recorded file without changing its meaning. now is the blob id of the
// file, which is v if touched is true, and otherwise the live file.
func (c *Contents) rewritten(rec plan.Owned, now plan.ID, touched bool, v version) bool {
	if !touched || v.live {
		return c.live.rewrittenLive(rec, now)
	}
	return c.live.Rewritten(c.prior.folders[v.folder].Folder, v.name(), rec, now)
}
