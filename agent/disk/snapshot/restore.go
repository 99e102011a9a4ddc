package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Restore is the plan of a sync that restores a snapshot.
type Restore struct {
	// Header is that of the manifest from before the snapshot's sync.
	Header  plan.Header
	Changes *plan.Changes
	// Done reports that the snapshot is gone, and that the last sync that took one restored it. Then the other fields are zero.
	Done bool
	// Edited are the paths that get what a user left there after the snapshot, because neither the snapshots nor git have the file
	// from before.
	Edited []string

	prior   *priorState // nil if Done
	live    Live
	sources []source // one for each of Changes.List
}

// source says where the bytes of a change are.
type source struct {
	folder, change int32 // as in version
	git            bool
}

// PlanRestore plans to bring the data directory back to what it was before the sync of a snapshot: it undoes what that sync and
// all later ones did. A path that none of them touched stays as it is. What a user has changed at the other paths goes to
// lost+found, as in any sync.
//
// If a file of a snapshot is damaged, its bytes come from blobs, which may be nil. If blobs does not have them either, or if there is no
// such snapshot, the reason of the error is SnapshotFailed. The caller must close the result.
func (s *Store) PlanRestore(ctx context.Context, live Live, id string, blobs plan.Objects) (*Restore, error) {
	ids, err := s.ids()
	if err != nil {
		return nil, err
	}
	if !slices.Contains(ids, id) {
		done, err := s.restored(id, ids)
		if err != nil {
			return nil, err
		}
		if done {
			return &Restore{Done: true}, nil
		}
	}
	p, err := s.priorState(id, ids, blobs)
	if err != nil {
		return nil, err
	}
	r := &Restore{prior: p, live: live}
	if err := r.plan(ctx); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// restored reports whether the last sync that took a snapshot restored the snapshot id.
func (s *Store) restored(id string, ids []string) (bool, error) {
	if len(ids) == 0 {
		return false, nil
	}
	folder, err := s.openFolder(ids[len(ids)-1])
	if err != nil {
		return false, err
	}
	defer folder.Close()
	j, err := folder.journal(s.limits.JournalBytes, nil)
	if err != nil {
		return false, failure.New(v1alpha1.ReasonSnapshotFailed, "%w", err)
	}
	return j.Restores == id, nil
}

// Close closes the snapshots.
func (r *Restore) Close() {
	if r.prior != nil {
		r.prior.close()
	}
}

// Snapshot returns the id of the snapshot. It must not be called if Done.
func (r *Restore) Snapshot() string { return r.prior.id }

func (r *Restore) plan(ctx context.Context) error {
	before, err := r.prior.store.Manifest(r.prior.id)
	if err != nil {
		return failure.New(v1alpha1.ReasonSnapshotFailed, "%w; nothing was changed", err)
	}
	defer func() { _ = before.Close() }() // opened for reading
	r.Header = before.Header()
	r.Changes = &plan.Changes{
		From: r.live.Manifest.Header().Commit, To: r.Header.Commit, Mappings: r.Header.Mappings, Signed: map[string]plan.ID{}, Total: r.Header.Files,
	}
	// Allocate at once: a growing list would temporarily take twice the memory.
	r.Changes.List, r.sources = make([]plan.Change, 0, len(r.prior.touches)), make([]source, 0, len(r.prior.touches))
	for first := range r.prior.paths() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := r.change(ctx, first, before); err != nil {
			return err
		}
	}
	r.Edited, r.prior.touches = r.prior.edited, nil
	return nil
}

// change adds the change of the path with the first touch first, if it needs one.
func (r *Restore) change(ctx context.Context, first int, before plan.Manifest) error {
	path := r.prior.touches[first].path
	now, owned, err := r.live.Manifest.Get(path)
	if err != nil {
		return err
	}
	was, recorded, err := before.Get(path)
	if err != nil {
		return err
	}
	lost := !owned && !r.live.Manifest.Header().Complete
	if lost { // the manifest is lost or of another commit: the snapshots know what is the agent's
		now, owned = r.prior.lastWritten(first)
	}
	c, err := r.live.find(path, now, owned)
	if err != nil {
		return err
	}
	if lost && c.Conflict { // another file may be a user's
		c.Owned, owned = false, false
	}
	isLive := func(id plan.ID, exec bool) (bool, error) {
		return c.Found.Kind == plan.File && c.FoundID == id && (c.Found.NoModes || c.Found.Exec == exec), nil
	}
	v, err := r.prior.version(first, was, recorded, isLive)
	if err != nil {
		return err
	}
	recorded = recorded && was.Have == v.id
	same, _ := isLive(v.id, v.exec)
	var from source
	switch {
	case v.absent && (!owned || c.Found.Kind == plan.Missing || c.Found.Kind == plan.Dir), same && !recorded:
		return nil
	case v.absent:
		c.Op, c.Unrecorded = plan.Delete, true // the manifest of the snapshot knows whether the file was missing
	case same:
		c.Op, c.ID, c.Exec, c.Origin, c.Conflict, c.Foreign = plan.Adopt, was.Want, was.Exec, was.Origin, false, !owned || now.Have != c.FoundID
	default:
		// If a user had changed the file, its record stays as it is: the next sync finds the change, as it would have then.
		c.Op, c.ID, c.Exec, c.Origin, c.Unrecorded = plan.Update, v.id, v.exec, was.Origin, !recorded
		if c.Found.Kind == plan.Missing || c.Found.Kind == plan.Dir {
			c.Op = plan.Create
		}
		if recorded && was.Want != was.Have {
			r.Changes.Signed[path] = was.Want
		}
		if from, err = r.source(ctx, v); err != nil {
			return err
		}
	}
	r.Changes.List, r.sources = append(r.Changes.List, c), append(r.sources, from)
	return nil
}

// source checks that the bytes of a version are there, and returns where.
func (r *Restore) source(ctx context.Context, v version) (source, error) {
	f, err := r.prior.open(ctx, v)
	if f == nil || err != nil {
		return source{git: true}, err
	}
	return source{folder: v.folder, change: v.change}, f.Close()
}

// Source writes the bytes of a change. It is the disk.Source for Stage.
func (r *Restore) Source(w io.Writer, c plan.Change) error {
	i, found := slices.BinarySearchFunc(r.Changes.List, c.Path, func(c plan.Change, path string) int { return strings.Compare(c.Path, path) })
	if !found {
		return fmt.Errorf("%s is not part of the snapshot", c.Path)
	}
	from := r.sources[i]
	if from.git {
		_, err := r.prior.blobs.WriteBlob(w, c.ID)
		return err
	}
	f, _, err := r.prior.folders[from.folder].File(displaced{from.change, c.ID}.name(), os.O_RDONLY)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(w, struct{ io.Reader }{f}, r.prior.buf)
	return errors.Join(err, f.Close())
}

// Live is the data directory as it is now.
type Live struct {
	Top      *os.Root
	State    plan.State
	Manifest plan.Manifest
	// Rewritten reports whether the gateway itself rewrote a recorded file without changing its meaning. The file is called name
	// in folder, and now is its blob id.
	Rewritten func(folder *safe.Folder, name string, rec plan.Owned, now plan.ID) bool
}

// find returns a change without an operation, with what is at a path. rec is the record of the path, if owned is true.
func (l Live) find(path string, rec plan.Owned, owned bool) (plan.Change, error) {
	st, err := l.State.Stat(path)
	if err != nil {
		return plan.Change{}, err
	}
	c := plan.Change{Path: path, Found: st, Owned: owned}
	switch {
	case st.Kind != plan.File:
	case owned && st.Size == rec.Size && st.Mtime == rec.Mtime:
		c.FoundID = rec.Have
	default:
		c.FoundID, err = l.State.BlobID(path)
		if errors.Is(err, fs.ErrNotExist) {
			c.Found = plan.Stat{} // removed meanwhile
		} else if err != nil {
			return plan.Change{}, err
		}
	}
	c.Conflict = c.Found.Kind != plan.Missing && (!owned || c.Found.Kind != plan.File || c.FoundID != rec.Have && !l.rewrittenLive(rec, c.FoundID))
	return c, nil
}

// rewrittenLive is Rewritten for the live file at its recorded path.
func (l Live) rewrittenLive(rec plan.Owned, now plan.ID) bool {
	dir, name := safe.Split(rec.Path)
	c := safe.Cursor{Top: l.Top}
	defer c.Reset()
	folder, err := c.At(dir)
	return err == nil && l.Rewritten(folder, name, rec, now)
}
