package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
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

	d     *Dir
	from  map[string]earlier
	kept  map[keptFile]earlier // all files of the snapshots
	blobs plan.Objects
}

type keptFile struct {
	path string
	id   plan.ID
}

// earlier is what was at a path before the syncs that are taken back.
type earlier struct {
	absent   bool
	exec     bool
	snapshot string
	file     string // in the snapshot
	id       plan.ID
	git      bool // the snapshot's file is damaged or missing, and git has it
}

// PlanTakeBack plans to bring the data directory back to what it was before the sync of a snapshot: it undoes what that
// sync and all later ones did. A path that none of them touched stays as it is. What a user changed since at the other
// paths goes to lost+found, as in any sync.
//
// blobs replaces files of the snapshots that are damaged. If it lacks one, the error is SnapshotFailed.
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
	then, err := d.manifestOf(id)
	if err != nil {
		return nil, failure.New(v1alpha1.ReasonSnapshotFailed, "%w; nothing was changed", err)
	}
	defer func() { _ = then.Close() }() // opened for reading
	b.Header = then.Header()
	now := d.manifest().Header()
	b.Changes = &plan.Changes{From: now.Commit, To: b.Header.Commit, Mappings: b.Header.Mappings, Signed: map[string]plan.ID{}, Total: b.Header.Files}
	for _, path := range slices.Sorted(maps.Keys(b.from)) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := b.change(path, then); err != nil {
			return nil, err
		}
	}
	return b, nil
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
	j, err := n.journal(d.o.maxRun())
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
	b := &TakeBack{Snapshot: id, d: d, from: map[string]earlier{}, kept: map[keptFile]earlier{}, blobs: blobs}
	for _, name := range slices.Backward(names[at:]) { // what an older sync displaced is older
		if err := b.add(name); err != nil {
			return nil, failure.New(v1alpha1.ReasonSnapshotFailed, "%w; nothing was changed", err)
		}
	}
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
	defer n.Close()
	j, err := n.journal(b.d.o.maxRun())
	if err != nil {
		return err
	}
	files, _, err := contentOf(n.Folder)
	if err != nil {
		return err
	}
	for i := range j.Changes {
		c := &j.Changes[i]
		if !format.Moves(c.Op) {
			continue
		}
		if resource.NeverTouch(c.Path) {
			return safe.Damaged("snapshot %s names %s, which the agent never writes", name, c.Path)
		}
		e := earlier{snapshot: name, exec: c.Found.Exec, id: c.FoundID}
		id, kept := files[i]
		switch {
		case kept: // also for a new file: the gateway created one at the last moment
			e.id = id
		case c.Found.Kind != plan.File:
			e.absent = true // lost+found has what was neither file nor nothing
		default:
			e.git = true
		}
		e.file = strconv.Itoa(i) + "-" + e.id.String()
		b.from[c.Path] = e
		if kept {
			b.kept[keptFile{c.Path, id}] = e
		}
	}
	return nil
}

// then returns what was at a path when the snapshot was taken. A later sync may have displaced what a user wrote since, in
// place of the file that the manifest of the snapshot names.
func (b *TakeBack) then(path string, was plan.Owned, recorded bool) earlier {
	e := b.from[path]
	if e.snapshot == b.Snapshot || e.absent || !recorded || was.Have == e.id {
		return e
	}
	if kept, ok := b.kept[keptFile{path, was.Have}]; ok {
		return kept
	}
	if b.blobs != nil && b.blobs.Has(was.Have) {
		return earlier{exec: was.Exec, id: was.Have, git: true, snapshot: b.Snapshot, file: path}
	}
	b.Edited = append(b.Edited, path)
	return e
}

// change adds the change of one path, if it needs one.
func (b *TakeBack) change(path string, then *format.Manifest) error {
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
	e := b.then(path, was, recorded)
	if st.Kind == plan.File {
		if c.FoundID, err = b.d.BlobID(path); err != nil {
			return err
		}
	}
	c.Owned = owned
	c.Conflict = st.Kind != plan.Missing && (!owned || st.Kind != plan.File || c.FoundID != is.Have && !b.d.rewritten(is, c.FoundID))
	same := st.Kind == plan.File && c.FoundID == e.id && (st.NoModes || st.Exec == e.exec)
	recorded = recorded && was.Have == e.id
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
		if e.git, err = b.damaged(e); err != nil {
			return err
		}
		b.from[path] = e
	}
	b.Changes.List = append(b.Changes.List, c)
	return nil
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

// damaged reports whether git's blob has to replace the file of a snapshot, and fails if git lacks it.
func (b *TakeBack) damaged(e earlier) (bool, error) {
	cause := errors.New("the file is missing")
	if !e.git {
		n, err := b.d.openSnapshot(e.snapshot)
		if err != nil {
			return false, err
		}
		defer n.Close()
		id, err := n.Hash(context.Background(), e.file, make([]byte, 64<<10), b.d.o.MaxBlob)
		switch {
		case err == nil && id == e.id:
			return false, nil
		case err == nil:
			cause = errors.New("the file has changed")
		default:
			cause = err
		}
	}
	if b.blobs != nil && !e.id.IsZero() && b.blobs.Has(e.id) {
		b.d.log.Warn("snapshot damaged; using the file from git", "snapshot", e.snapshot, "file", e.file, "error", cause)
		return true, nil
	}
	return false, failure.New(v1alpha1.ReasonSnapshotFailed, "%s in snapshot %s: %w, and git does not have it; nothing was changed", e.file, e.snapshot, cause)
}

// Source writes the bytes of a change. It is the Source of Stage.
func (b *TakeBack) Source(w io.Writer, c plan.Change) error {
	e := b.from[c.Path]
	if e.git {
		_, err := b.blobs.WriteBlob(w, e.id)
		return err
	}
	f, err := b.d.openKept(e)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // opened for reading
	_, err = io.Copy(w, f)
	return err
}

// TakeBack makes Apply write the manifest from before the sync of a snapshot, and not only the records of the changes. It
// must be called before Apply, with the header of the plan.
func (s *Staged) TakeBack(b *TakeBack) {
	s.d.work.Lock()
	defer s.d.work.Unlock()
	s.run.From = b.Snapshot
}
