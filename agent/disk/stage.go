package disk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Source writes the bytes that git wants at c.Path. Stage returns its error unchanged.
type Source func(w io.Writer, c plan.Change) error

// Staged is a plan with staged bytes. It must be applied or discarded.
type Staged struct {
	d    *Dir
	run  *run
	done bool
}

// Stage writes the bytes of all Create and Update changes beside the live files, on the same mounts, and makes them
// durable. The gateway does not see them. It calls src in the order of order(c.ID), or of the paths if order is nil;
// src must write content with the change's blob id. If ctx is done, or on any error, Stage discards what was written.
func (d *Dir) Stage(ctx context.Context, changes *plan.Changes, order func(plan.ID) int64, src Source) (*Staged, error) {
	d.work.Lock()
	defer d.work.Unlock()
	if d.o.ReadOnly {
		return nil, ErrReadOnly
	}
	if err := d.Current(); err != nil {
		return nil, err
	}
	if err := (recovery{d}).recoverAndClean(); err != nil {
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
		return nil, errors.Join(err, (recovery{d}).recoverAndClean())
	}
	return s, nil
}

// Discard drops the staged bytes.
func (s *Staged) Discard() error {
	s.d.work.Lock()
	defer s.d.work.Unlock()
	if s.done {
		return nil
	}
	return s.discard()
}

func (s *Staged) discard() error {
	s.done = true
	s.run.close()
	return (recovery{s.d}).recoverAndClean()
}

// newRun checks the paths and the order of the changes.
func newRun(d *Dir, changes *plan.Changes) (*run, error) {
	r := &run{d: d, Journal: format.Journal{Areas: []string{""}, Changes: changes.List, Signed: changes.Signed, Slots: make([]format.Slot, len(changes.List))}}
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
	r.Name = d.lost.NewName(changes.To)
	return r, nil
}

func (r *run) init() {
	r.cur.Top = r.d.top
	r.staging = map[string]*safe.Folder{}
	r.touched = map[string]struct{}{}
	r.buf = make([]byte, 64<<10)
}

// close closes the open directories.
func (r *run) close() {
	r.cur.Reset()
	for _, n := range r.staging {
		n.Close()
	}
	clear(r.staging)
}

// stager prepares the steps of a run and writes the wanted bytes.
type stager struct{ *run }

func (r stager) stage(ctx context.Context, order func(plan.ID) int64, src Source) error {
	at, err := r.layOut()
	if err != nil {
		return err
	}
	if err := r.fits(); err != nil {
		return err
	}
	if size, limit := r.Size(), r.d.o.maxRun(); size > limit {
		return failure.New(v1alpha1.ReasonLimitExceeded, "this sync needs %d bytes of memory, more than the %d that recovery may use; raise the limit max-files, or sync in two commits", size, limit)
	}
	if err := r.openAreas(true); err != nil {
		return err
	}
	todo := make([]int32, 0, len(r.Changes))
	for i := range r.Changes {
		if format.Writes(r.Changes[i].Op) {
			todo = append(todo, int32(i))
		}
	}
	if order != nil {
		slices.SortStableFunc(todo, func(a, b int32) int {
			return cmp.Compare(order(r.Changes[a].ID), order(r.Changes[b].ID))
		})
	}
	each := !safe.HaveSyncfs || len(todo) <= r.d.o.FsyncFiles
	small := make([]byte, 0, 64<<10)
	for _, i := range todo {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := r.stageOne(int(i), at.at(int(i)), src, small, each); err != nil {
			return err
		}
	}
	for _, a := range r.Areas {
		sync := r.d.vol.SyncDir
		if !each {
			sync = r.d.vol.SyncFS
		}
		if err := sync(r.staging[a]); err != nil {
			return safe.WriteError(err, "sync staged files to disk")
		}
	}
	return nil
}

// stageOne writes the bytes of one change to its slot.
func (r stager) stageOne(i int, at fileAttrs, src Source, small []byte, durable bool) error {
	c, s := &r.Changes[i], &r.Slots[i]
	stg := r.staging[r.Areas[s.Area]]
	path := stg.Join(format.SlotName(i))
	f, err := r.d.vol.Create(stg, format.SlotName(i), at.perm)
	if err != nil {
		return safe.WriteError(err, "stage %s", c.Path)
	}
	w := &blobWriter{f: f, small: small[:0]}
	var id plan.ID
	var refused error
	err = r.d.vol.Fill(path, func() error {
		if refused = src(w, *c); refused != nil {
			return refused
		}
		id, err = w.finish(r.buf)
		return err
	})
	switch {
	case w.err != nil:
		err = safe.WriteError(w.err, "stage %s", c.Path)
	case refused != nil:
		err = refused
	case err != nil:
		err = safe.WriteError(err, "stage %s", c.Path)
	case id != c.ID:
		err = fmt.Errorf("stage %s: expected blob %s, got %s", c.Path, c.ID, id)
	}
	var fi fs.FileInfo
	if err == nil {
		fi, err = r.d.vol.SetAttrs(f, path, at.owner, at.perm)
	}
	if err == nil {
		r.d.vol.LearnModes(fi, at.perm)
	}
	if err == nil && durable {
		err = safe.WriteError(r.d.vol.Sync(f, path), "stage %s", c.Path)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	s.Ino, s.Size, s.Mtime = safe.AttrsOf(fi).Ino, fi.Size(), fi.ModTime().UnixNano()
	return nil
}

// openAreas opens the staging folder of each area, and makes it if create is set. Areas other than the first are
// recorded before anything is in them.
func (r *run) openAreas(create bool) error {
	if create && len(r.Areas) > 1 {
		_, err := r.d.own.Write(areasFile, func(w io.Writer) error {
			_, err := io.WriteString(w, strings.Join(r.Areas[1:], "\n")+"\n")
			return err
		})
		if err != nil {
			return err
		}
		if err := (recovery{r.d}).reclaim(&r.cur, r.Areas[1:]); err != nil {
			return safe.WriteError(err, "empty the staging folders of other volumes")
		}
	}
	for _, a := range r.Areas {
		n, err := r.openArea(a, create)
		if err != nil {
			return safe.WriteError(err, "open the staging folder below %q", a)
		}
		r.staging[a] = n
	}
	return nil
}

func (r *run) openArea(area string, create bool) (*safe.Folder, error) {
	own := r.d.own.Folder
	if area != "" {
		at, err := r.cur.At(area)
		if err != nil {
			return nil, err
		}
		open := at.Open
		if create {
			open = func(string) (*safe.Folder, error) { return r.d.vol.OwnFolder(at) }
		}
		if own, err = open(safe.OwnDir); err != nil {
			return nil, err
		}
		defer own.Close()
	}
	if create {
		if fi, err := own.Root.Lstat(stagingDir); err == nil && !fi.IsDir() {
			if err := r.d.vol.SetAside(own, stagingDir, &safe.BlockedError{Path: own.Join(stagingDir), Kind: safe.KindOf(fi.Mode())}); err != nil {
				return nil, err
			}
		}
		if err := r.d.vol.Mkdir(own, stagingDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, safe.WriteError(err, "make %s", own.Join(stagingDir))
		}
		if area != "" { // in .stoker itself, syncing the journal's name covers this one
			if err := r.d.vol.SyncDir(own); err != nil {
				return nil, err
			}
		}
	}
	return own.Open(stagingDir)
}

// blobWriter writes a blob of unknown size. The id depends on the size, so a small blob is buffered and hashed in
// memory, and a large one is read again.
type blobWriter struct {
	f     *os.File
	small []byte // its capacity is the limit
	large bool   // the blob exceeded small
	err   error  // of the file, because a source may hide it
}

func (w *blobWriter) Write(p []byte) (int, error) {
	if !w.large && len(w.small)+len(p) <= cap(w.small) {
		w.small = append(w.small, p...)
		return len(p), nil
	}
	if !w.large {
		w.large = true
		if err := w.put(w.small); err != nil {
			return 0, err
		}
	}
	if err := w.put(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (w *blobWriter) put(p []byte) error {
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
	if err := w.put(w.small); err != nil {
		return plan.ID{}, err
	}
	return safe.BlobID(w.small), nil
}

// id hashes a file while files move, which no context interrupts. An unreadable file gets the null id, so that it
// counts as not in git and is kept.
func (r *run) id(n *safe.Folder, name string) (plan.ID, error) {
	id, err := n.Hash(context.Background(), name, r.buf, r.d.o.MaxBlob)
	if errors.Is(err, fs.ErrPermission) {
		return plan.ID{}, nil
	}
	return id, err
}
