package disk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Source writes the bytes that git wants at c.Path. Stage returns its error unchanged.
type Source func(w io.Writer, c plan.Change) error

// Staged is a plan with staged bytes. The caller must call Apply or Discard.
type Staged struct {
	d    *Dir
	run  *run
	done bool
}

// Stage writes the bytes of all Create and Update changes beside the live files, on the same mounts, and makes them
// durable. The gateway does not see them. Stage calls src in the order of order(c.ID), or of the paths if order is nil. With an
// order, src may read only the State of the Dir, because Stage may write one file while src reads the next.
// src must write content with the change's blob id. After an error, or if ctx is done, Stage discards what it wrote.
func (d *Dir) Stage(ctx context.Context, changes *plan.Changes, order func(plan.ID) int64, src Source) (*Staged, error) {
	d.writing.Lock()
	defer d.writing.Unlock()
	if d.o.ReadOnly {
		return nil, ErrReadOnly
	}
	if err := d.CheckOpen(); err != nil {
		return nil, err
	}
	if err := (recoverer{d}).recoverAndClean(); err != nil {
		return nil, err
	}
	r, err := newRun(d, changes)
	if err != nil {
		return nil, err
	}
	s := &Staged{d: d, run: r}
	if !slices.ContainsFunc(r.Changes, func(c plan.Change) bool { return format.Moves(c.Op) }) {
		return s, nil
	}
	if d.staged != nil {
		d.staged.done = true // recoverAndClean has cleared its bytes
	}
	d.needsRecovery, d.staged = true, s
	if err := (stager{r}).stage(ctx, order, src); err != nil {
		r.close()
		return nil, errors.Join(err, recoverer{d}.recoverAndClean())
	}
	return s, nil
}

// Discard drops the staged bytes.
func (s *Staged) Discard() error {
	s.d.writing.Lock()
	defer s.d.writing.Unlock()
	if s.done {
		return nil
	}
	return s.discard()
}

func (s *Staged) discard() error {
	s.done = true
	s.run.close()
	return recoverer{s.d}.recoverAndClean()
}

// newRun checks the paths and the order of the changes.
func newRun(d *Dir, changes *plan.Changes) (*run, error) {
	r := &run{d: d, Journal: format.Journal{
		Areas: []string{""}, Changes: changes.List, Signed: changes.Signed, Slots: make([]format.Slot, len(changes.List)),
	}}
	r.init()
	for i := range r.Changes {
		c := &r.Changes[i]
		if err := safe.CheckPath(c.Path); err != nil {
			return nil, fmt.Errorf("invalid path in the plan: %w", err)
		}
		if i > 0 && c.Path <= r.Changes[i-1].Path {
			return nil, fmt.Errorf("the plan is not sorted at %q", c.Path)
		}
	}
	r.LostFolder = d.lost.NewName(changes.To)
	return r, nil
}

// stager prepares the steps of a run and writes the wanted bytes.
type stager struct{ run *run }

func (r stager) stage(ctx context.Context, order func(plan.ID) int64, src Source) error {
	attrs, err := r.layOut()
	if err != nil {
		return err
	}
	if err := r.checkLostFound(); err != nil {
		return err
	}
	if size, limit := r.run.Size(), r.run.d.o.maxJournal(); size > limit {
		return failure.New(v1alpha1.ReasonLimitExceeded, "this sync needs %d bytes of memory, more than the %d that recovery may use; raise the limit max-files, or sync in two commits", size, limit)
	}
	if err := r.makeAreas(); err != nil {
		return err
	}
	var writes []int32
	for i := range r.run.Changes {
		if format.Writes(r.run.Changes[i].Op) {
			writes = append(writes, int32(i))
		}
	}
	if order != nil {
		slices.SortStableFunc(writes, func(a, b int32) int {
			return cmp.Compare(order(r.run.Changes[a].ID), order(r.run.Changes[b].ID))
		})
	}
	syncEach := !safe.HaveSyncfs || len(writes) <= r.run.d.o.FsyncFiles
	if !syncEach {
		if err := r.selectTrees(); err != nil {
			return safe.WriteError(err, "open the parents of new directories")
		}
	}
	w := writer{stager: r, attrs: attrs, src: src, syncEach: syncEach}
	if order != nil && !syncEach && runtime.GOMAXPROCS(0) > 1 {
		err = w.readAhead(ctx, writes)
	} else {
		err = w.writeAll(ctx, writes)
	}
	if err != nil {
		return err
	}
	syncArea := r.run.d.vol.SyncFS
	if syncEach {
		syncArea = r.run.d.vol.SyncDir
	}
	for _, a := range r.run.Areas {
		if err := syncArea(r.run.staging.byArea[a]); err != nil {
			return safe.WriteError(err, "sync staged files to disk")
		}
	}
	return nil
}

// makeAreas makes and opens the staging folder of each area. It first records the areas other than the data directory, and clears
// what an interrupted sync left in them.
func (r stager) makeAreas() error {
	if others := r.run.Areas[1:]; len(others) > 0 {
		if err := r.run.d.own.WriteBytes(areasFile, []byte(strings.Join(others, "\n")+"\n")); err != nil {
			return err
		}
		if err := (recoverer{r.run.d}).reclaim(&r.run.cur, others); err != nil {
			return safe.WriteError(err, "empty the staging folders of other volumes")
		}
	}
	return r.run.staging.openAll(&r.run.cur, r.run.Areas, true)
}

// stagingFolders are the open staging folders of areas. An area is the top directory of a mount, because a rename cannot cross
// mounts.
type stagingFolders struct {
	own    *safe.AgentFolder
	byArea map[string]*safe.Folder
}

func newStagingFolders(own *safe.AgentFolder) *stagingFolders {
	return &stagingFolders{own: own, byArea: map[string]*safe.Folder{}}
}

// close closes the folders.
func (s *stagingFolders) close() {
	for _, folder := range s.byArea {
		folder.Close()
	}
	clear(s.byArea)
}

// openAll opens the staging folder of each area, and makes it if create is set.
func (s *stagingFolders) openAll(cur *safe.Cursor, areas []string, create bool) error {
	for _, a := range areas {
		if _, err := s.open(cur, a, create); err != nil {
			return safe.WriteError(err, "open the staging folder below %q", a)
		}
	}
	return nil
}

// open opens the staging folder of one area, and makes it if create is set.
func (s *stagingFolders) open(cur *safe.Cursor, area string, create bool) (*safe.Folder, error) {
	folder, err := openStaging(s.own, cur, area, create)
	if err == nil {
		s.byArea[area] = folder
	}
	return folder, err
}

func openStaging(agent *safe.AgentFolder, cur *safe.Cursor, area string, create bool) (*safe.Folder, error) {
	own, vol := agent.Folder, agent.Vol
	if area != "" {
		top, err := cur.At(area)
		if err != nil {
			return nil, err
		}
		open := top.Open
		if create {
			open = func(string) (*safe.Folder, error) { return vol.OwnFolder(top) }
		}
		if own, err = open(safe.OwnDir); err != nil {
			return nil, err
		}
		defer own.Close()
	}
	if !create {
		return own.Open(stagingDir)
	}
	staging, err := vol.OpenOrMake(own, stagingDir)
	if err != nil {
		return nil, safe.WriteError(err, "make %s", own.Join(stagingDir))
	}
	if area != "" { // the sync of the top .stoker after writing the journal covers its staging folder
		if err := vol.SyncDir(own); err != nil {
			staging.Close()
			return nil, err
		}
	}
	return staging, nil
}

// aheadBlobs is the number of small blobs that readAhead keeps in memory.
const aheadBlobs = 8

// writer writes the wanted bytes of changes to their slots. attrs has the attributes of each change.
type writer struct {
	stager
	attrs    []fileAttrs
	src      Source
	syncEach bool // make each file durable by itself, not the whole file system
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

// write writes the bytes of one change to its slot: first those in small, then those that src writes.
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
