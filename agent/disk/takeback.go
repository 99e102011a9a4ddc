package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path"
	"slices"
	"strings"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// TakeBack is the plan of a sync that takes back a snapshot.
type TakeBack struct {
	Snapshot string
	// Header is that of the manifest from before the snapshot's sync.
	Header  plan.Header
	Changes *plan.Changes
	// Done reports that the last sync took the snapshot back already, and then removed it as one too many.
	Done bool
	// Edited are the paths that get the version that a user made after the snapshot, because neither the snapshots nor git
	// have the one from before.
	Edited []string

	d         *Dir
	blobs     plan.Objects
	snapshots []*snapshotFolder // of the syncs that are taken back, oldest first
	touches   []touch           // by path, and those of a path from the oldest snapshot to the newest; nil after planning
	places    []place           // one for each of Changes.List
	buf       []byte
}

// place says where the bytes of a change are. Their blob id is the change's.
type place struct {
	snapshot, change int32 // as in earlier
	git              bool
}

// touch is what one sync found at a path that it changed.
type touch struct {
	path string
	earlier
}

// earlier is what was at a path before the syncs that are taken back.
type earlier struct {
	displaced       // if not absent
	snapshot  int32 // index in TakeBack.snapshots
	absent    bool
	exec      bool
	missing   bool // the snapshot does not have the file
	git       bool // the bytes come from git
}

// PlanTakeBack plans to bring the data directory back to what it was before the sync of a snapshot: it undoes what that
// sync and all later ones did. A path that none of them touched stays as it is. What a user changed since at the other
// paths goes to lost+found, as in any sync.
//
// blobs replaces files of the snapshots that are damaged. If it lacks one, the error is SnapshotFailed. The caller must close the result.
func (d *Dir) PlanTakeBack(ctx context.Context, id string, blobs plan.Objects) (*TakeBack, error) {
	d.work.Lock()
	defer d.work.Unlock()
	if err := d.Current(); err != nil {
		return nil, err
	}
	b, err := d.takeBackOf(id, blobs)
	if err != nil || b.Done {
		return b, err
	}
	if err := b.plan(ctx); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// Close closes the snapshots.
func (b *TakeBack) Close() {
	for _, n := range b.snapshots {
		n.Close()
	}
}

func (b *TakeBack) plan(ctx context.Context) error {
	then, err := b.d.manifestOf(b.Snapshot)
	if err != nil {
		return failure.New(v1alpha1.ReasonSnapshotFailed, "%w; nothing was changed", err)
	}
	defer func() { _ = then.Close() }() // opened for reading
	b.Header = then.Header()
	now := b.d.manifest().Header()
	b.Changes = &plan.Changes{From: now.Commit, To: b.Header.Commit, Mappings: b.Header.Mappings, Signed: map[string]plan.ID{}, Total: b.Header.Files}
	// Allocate at once: a growing list would temporarily take twice the memory.
	b.Changes.List, b.places = make([]plan.Change, 0, len(b.touches)), make([]place, 0, len(b.touches))
	for at := range b.paths() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := b.change(ctx, at, then); err != nil {
			return err
		}
	}
	b.touches = nil
	return nil
}

// paths yields the index of the first touch of each path, sorted by path.
func (b *TakeBack) paths() iter.Seq[int] {
	return func(yield func(int) bool) {
		for at := range b.touches {
			if (at == 0 || b.touches[at-1].path != b.touches[at].path) && !yield(at) {
				return
			}
		}
	}
}

// find returns the index of the first touch of a path.
func (b *TakeBack) find(path string) (at int, found bool) {
	return slices.BinarySearchFunc(b.touches, path, func(t touch, path string) int { return strings.Compare(t.path, path) })
}

// tookBack reports whether the newest snapshot is of the sync that took back the snapshot id.
func (d *Dir) tookBack(id string, names []string) (bool, error) {
	if len(names) == 0 {
		return false, nil
	}
	n, err := d.openSnapshot(names[len(names)-1])
	if err != nil {
		return false, err
	}
	defer n.Close()
	j, err := n.journal(d.o.maxRun(), nil)
	if err != nil {
		return false, failure.New(v1alpha1.ReasonSnapshotFailed, "%w", err)
	}
	return j.From == id, nil
}

// takeBackOf collects what was at the paths that the sync of a snapshot and all later ones touched.
func (d *Dir) takeBackOf(id string, blobs plan.Objects) (*TakeBack, error) {
	names, err := d.snapshotNames()
	if err != nil {
		return nil, err
	}
	at := slices.Index(names, id)
	if at < 0 {
		if done, err := d.tookBack(id, names); err != nil || done {
			return &TakeBack{Snapshot: id, Done: done}, err
		}
		return nil, failure.New(v1alpha1.ReasonSnapshotFailed, "there is no snapshot %s here; there are: %s", failure.Quote(id), some(names))
	}
	b := &TakeBack{Snapshot: id, d: d, blobs: blobs, buf: make([]byte, 64<<10)}
	for _, name := range names[at:] {
		if err := b.add(name); err != nil {
			b.Close()
			return nil, failure.New(v1alpha1.ReasonSnapshotFailed, "%w; nothing was changed", err)
		}
	}
	slices.SortStableFunc(b.touches, func(a, b touch) int { return strings.Compare(a.path, b.path) })
	return b, nil
}

// some returns the last names of a list.
func some(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names[max(0, len(names)-5):], ", ")
}

// add records what was at the paths of a snapshot before its sync.
func (b *TakeBack) add(name string) error {
	n, err := b.d.openSnapshot(name)
	if err != nil {
		return fmt.Errorf("open snapshot %s: %w", name, err)
	}
	at := int32(len(b.snapshots))
	b.snapshots = append(b.snapshots, n)
	files, err := displacedIn(n.Folder)
	if err != nil {
		return err
	}
	b.touches = slices.Grow(b.touches, len(files))
	_, err = n.journal(b.d.o.maxRun(), func(i int, c plan.Change) error {
		if !format.Moves(c.Op) {
			return nil
		}
		if resource.NeverTouch(c.Path) {
			return safe.Damaged("snapshot %s names %s, which the agent never writes", name, c.Path)
		}
		for len(files) > 0 && int(files[0].change) < i {
			files = files[1:]
		}
		kept := len(files) > 0 && int(files[0].change) == i
		t := touch{c.Path, earlier{displaced: displaced{int32(i), c.FoundID}, snapshot: at, exec: c.Found.Exec}}
		switch {
		case kept: // also for a new file: the gateway created one at the last moment
			t.id = files[0].id
		case c.Found.Kind != plan.File:
			t.absent = true // lost+found has what was neither file nor nothing
		default:
			t.missing = true
		}
		b.touches = append(b.touches, t)
		return nil
	})
	return err
}

// then returns what was at a path when the snapshot was taken. at is the path's first touch. A later sync may have displaced what a user
// wrote since, in place of the file that the manifest of the snapshot names.
func (b *TakeBack) then(at int, was plan.Owned, recorded bool) earlier {
	t := b.touches[at]
	if t.snapshot == 0 || t.absent || !recorded || was.Have == t.id {
		return t.earlier
	}
	for _, later := range b.touches[at:] {
		if later.path != t.path {
			break
		}
		if later.id == was.Have && !later.absent && !later.missing {
			return later.earlier
		}
	}
	if b.blobs != nil && b.blobs.Has(was.Have) {
		return earlier{displaced: displaced{t.change, was.Have}, exec: was.Exec, git: true}
	}
	b.Edited = append(b.Edited, t.path)
	return t.earlier
}

// change adds the change of the path with the touch at, if it needs one.
func (b *TakeBack) change(ctx context.Context, at int, then *format.Manifest) error {
	path := b.touches[at].path
	st, err := b.d.Stat(path)
	if err != nil {
		return err
	}
	c := plan.Change{Path: path, Found: st}
	is, owned, err := b.d.manifest().Get(path)
	if err != nil {
		return err
	}
	was, recorded, err := then.Get(path)
	if err != nil {
		return err
	}
	e := b.then(at, was, recorded)
	if c.FoundID, err = b.d.foundID(path, st, is, owned); err != nil {
		return err
	}
	c.Owned = owned
	c.Conflict = st.Kind != plan.Missing && (!owned || st.Kind != plan.File || c.FoundID != is.Have && !b.d.rewritten(is, c.FoundID))
	same := st.Kind == plan.File && c.FoundID == e.id && (st.NoModes || st.Exec == e.exec)
	recorded = recorded && was.Have == e.id
	var from place
	switch {
	case e.absent && (!owned || st.Kind == plan.Missing || st.Kind == plan.Dir), same && !recorded:
		return nil
	case e.absent:
		c.Op, c.Unrecorded = plan.Delete, true // the manifest from then knows whether it was missing
	case same:
		c.Op, c.ID, c.Exec, c.Origin, c.Conflict = plan.Adopt, was.Want, was.Exec, was.Origin, false
	default:
		// If a user had changed the file, its record stays as it is: the next sync finds the change, as it would have then.
		c.Op, c.ID, c.Exec, c.Origin, c.Unrecorded = plan.Update, e.id, e.exec, was.Origin, !recorded
		if st.Kind == plan.Missing || st.Kind == plan.Dir {
			c.Op = plan.Create
		}
		if recorded && was.Want != was.Have {
			b.Changes.Signed[path] = was.Want
		}
		in, err := b.open(ctx, e)
		if err != nil {
			return err
		}
		from = place{e.snapshot, e.change, in == nil}
		if in != nil {
			if err := in.Close(); err != nil {
				return err
			}
		}
	}
	b.Changes.List, b.places = append(b.Changes.List, c), append(b.places, from)
	return nil
}

// foundID returns the blob id of what is at a path, or zero if there is no file: the record's if stat agrees with it, otherwise the hash of
// the content.
func (d *Dir) foundID(path string, st plan.Stat, is plan.Owned, owned bool) (plan.ID, error) {
	switch {
	case st.Kind != plan.File:
		return plan.ID{}, nil
	case owned && st.Size == is.Size && st.Mtime == is.Mtime:
		return is.Have, nil
	}
	return d.BlobID(path)
}

// rewritten reports whether only the gateway rewrote a live file: it has signed a resource.json again, or made a thumbnail.
func (d *Dir) rewritten(is plan.Owned, now plan.ID) bool {
	dir, name := safe.Split(is.Path)
	c := safe.Cursor{Top: d.top}
	defer c.Reset()
	n, err := c.At(dir)
	return err == nil && d.rewrittenAt(n, name, is, now)
}

// rewrittenAt reports the same of a file that lies elsewhere.
func (d *Dir) rewrittenAt(n *safe.Folder, name string, is plan.Owned, now plan.ID) bool {
	is.Have = now
	return path.Base(is.Path) == resource.Thumbnail || sameMeaning(d, n, name, is)
}

// open opens a file that a snapshot keeps, after checking its content. It returns nil if the bytes come from git, and SnapshotFailed if
// neither has them.
func (b *TakeBack) open(ctx context.Context, e earlier) (*os.File, error) {
	if e.git {
		return nil, nil
	}
	n := b.snapshots[e.snapshot]
	f, err := b.openKept(ctx, n, e)
	if err == nil || ctx.Err() != nil {
		return f, err
	}
	if b.blobs != nil && !e.id.IsZero() && b.blobs.Has(e.id) {
		b.d.log.Warn("snapshot damaged; using the file from git", "snapshot", n.name, "file", e.name(), "error", err)
		return nil, nil
	}
	if b.blobs == nil {
		return nil, failure.New(v1alpha1.ReasonSnapshotFailed, "%s in snapshot %s: %w", e.name(), n.name, err)
	}
	return nil, failure.New(v1alpha1.ReasonSnapshotFailed, "%s in snapshot %s: %w, and git does not have it; nothing was changed", e.name(), n.name, err)
}

func (b *TakeBack) openKept(ctx context.Context, n *snapshotFolder, e earlier) (*os.File, error) {
	if e.missing {
		return nil, errors.New("the file is missing")
	}
	f, fi, err := n.File(e.name(), os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	var id plan.ID
	if limit := b.d.o.MaxBlob; limit == 0 || fi.Size() <= limit {
		id, err = safe.HashFile(ctx, f, b.buf)
	}
	if err == nil && id != e.id {
		err = errors.New("the file has changed")
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Source writes the bytes of a change. It is the Source of Stage.
func (b *TakeBack) Source(w io.Writer, c plan.Change) error {
	at, found := slices.BinarySearchFunc(b.Changes.List, c.Path, func(c plan.Change, path string) int { return strings.Compare(c.Path, path) })
	if !found {
		return fmt.Errorf("%s is not part of the snapshot", c.Path)
	}
	from := b.places[at]
	if from.git {
		_, err := b.blobs.WriteBlob(w, c.ID)
		return err
	}
	f, _, err := b.snapshots[from.snapshot].File(displaced{from.change, c.ID}.name(), os.O_RDONLY)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(w, struct{ io.Reader }{f}, b.buf)
	return errors.Join(err, f.Close())
}

// TakeBack makes Apply write the manifest from before the sync of a snapshot, and not only the records of the changes. It
// must be called before Apply, with the header of the plan.
func (s *Staged) TakeBack(b *TakeBack) {
	s.d.work.Lock()
	defer s.d.work.Unlock()
	s.run.From = b.Snapshot
}
