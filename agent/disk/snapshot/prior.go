package snapshot

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"strings"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// priorState is what the data directory had before the sync of a snapshot, at the paths that this sync or a later one changed.
type priorState struct {
	store   *Store
	id      string
	blobs   plan.Objects // git's; nil if there are none
	folders []*folder    // of this snapshot and all later ones, oldest first
	touches []touch      // sorted by path, and those of one path from the oldest snapshot to the newest
	edited  []string     // see Restore.Edited
	buf     []byte
}

// touch is what one sync found at a path.
type touch struct {
	path  string
	left  bool    // the sync of the first snapshot left the path as it was
	wrote plan.ID // the recorded blob that the sync wrote, or zero
	version
}

// version is one version of a file.
type version struct {
	displaced       // without meaning if absent
	folder    int32 // index in priorState.folders
	size      int64 // bytes, as the plan saw the file
	absent    bool  // there was no regular file
	exec      bool
	missing   bool // the snapshot should have the file, but does not
	git       bool // git has the bytes, and no snapshot
	live      bool // the live file has the bytes, and no snapshot
}

// priorState reads what the sync of the snapshot id and all later ones displaced. ids are those of all snapshots, oldest first.
// The caller must close the result.
func (s *Store) priorState(id string, ids []string, blobs plan.Objects) (*priorState, error) {
	first := slices.Index(ids, id)
	if first < 0 {
		return nil, failure.New(v1alpha1.ReasonSnapshotFailed, "there is no snapshot %s here; there are: %s", failure.Quote(id), newest(ids))
	}
	p := &priorState{store: s, id: id, blobs: blobs, buf: make([]byte, 64<<10)}
	for _, id := range ids[first:] {
		if err := p.add(id); err != nil {
			p.close()
			return nil, failure.New(v1alpha1.ReasonSnapshotFailed, "%w; nothing was changed", err)
		}
	}
	slices.SortStableFunc(p.touches, func(a, b touch) int { return strings.Compare(a.path, b.path) })
	moved := p.touches[:0]
	for i, t := range p.touches { // what the first sync left counts only if a later one changed it
		if !t.left || i+1 < len(p.touches) && p.touches[i+1].path == t.path {
			moved = append(moved, t)
		}
	}
	p.touches = moved
	return p, nil
}

// newest returns the last five ids of a list as text, or "none".
func newest(ids []string) string {
	if len(ids) == 0 {
		return "none"
	}
	return strings.Join(ids[max(0, len(ids)-5):], ", ")
}

func (p *priorState) close() {
	for _, folder := range p.folders {
		folder.Close()
	}
}

// add adds what the sync of one snapshot found at the paths that it changed.
func (p *priorState) add(id string) error {
	folder, err := p.store.openFolder(id)
	if err != nil {
		return fmt.Errorf("open snapshot %s: %w", id, err)
	}
	at := int32(len(p.folders))
	p.folders = append(p.folders, folder)
	files, err := folder.displaced()
	if err != nil {
		return err
	}
	p.touches = slices.Grow(p.touches, len(files))
	_, err = folder.journal(p.store.limits.JournalBytes, func(i int, c plan.Change) error {
		left := !format.Moves(c.Op)
		if left && (at > 0 || c.Found.Kind == plan.File && c.FoundID.IsZero()) {
			return nil
		}
		if resource.NeverTouch(c.Path) {
			return safe.Damaged("snapshot %s names %s, which the agent never writes", id, c.Path)
		}
		for len(files) > 0 && int(files[0].change) < i {
			files = files[1:]
		}
		t := touch{path: c.Path, left: left, version: version{displaced: displaced{int32(i), c.FoundID}, folder: at, size: c.Found.Size, exec: c.Found.Exec}}
		if format.Writes(c.Op) && !c.Unrecorded {
			t.wrote = c.ID
		}
		switch {
		case len(files) > 0 && int(files[0].change) == i: // also for a new file: the gateway created one at the last moment
			t.id = files[0].id
		case c.Found.Kind != plan.File:
			t.absent = true // if a link or a directory with files was there, lost+found has it
		default:
			t.missing = true
		}
		p.touches = append(p.touches, t)
		return nil
	})
	return err
}

// paths yields the index of the first touch of each path, sorted by path.
func (p *priorState) paths() iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := range p.touches {
			if (i == 0 || p.touches[i-1].path != p.touches[i].path) && !yield(i) {
				return
			}
		}
	}
}

// find returns the index of the first touch of a path.
func (p *priorState) find(path string) (first int, found bool) {
	return slices.BinarySearchFunc(p.touches, path, func(t touch, path string) int { return strings.Compare(t.path, path) })
}

// lastWritten returns a record of what the last sync that moved the file at a path wrote there, in place of the one that a lost
// manifest had. first is the path's first touch. written is false if this sync deleted the file, or wrote one that it did not record.
func (p *priorState) lastWritten(first int) (rec plan.Owned, written bool) {
	last := p.touches[first]
	for _, later := range p.touches[first:] {
		if later.path != last.path {
			break
		}
		last = later
	}
	return plan.Owned{Path: last.path, Want: last.wrote, Have: last.wrote, Size: -1}, !last.wrote.IsZero()
}

// version returns what was at a path before the sync of the snapshot. first is the path's first touch, and rec its record in the
// manifest of the snapshot, if recorded is true. isLive reports whether the live file has that blob id and mode.
//
// The journal of the snapshot's sync says what was at each path that it names. If only later syncs touched the path, the first of
// them may have found what a user did after the snapshot: another file, or none. Then the recorded file was there.
//
// If the sync of the snapshot did not displace the file, a later snapshot, the gateway or git may have its bytes. Otherwise version
// returns what the user left and appends the path to p.edited.
func (p *priorState) version(first int, rec plan.Owned, recorded bool, isLive func(id plan.ID, exec bool) (bool, error)) (version, error) {
	t := p.touches[first]
	id, exec, found := rec.Have, rec.Exec, t.version
	switch {
	case t.left && !t.absent:
		id, exec, found = t.id, t.exec, p.touches[first+1].version
	case t.folder == 0 || !recorded || !t.absent && rec.Have == t.id:
		return t.version, nil
	}
	for _, later := range p.touches[first:] {
		if later.path != t.path {
			break
		}
		if later.id == id && !later.absent && !later.missing {
			return later.version, nil
		}
	}
	v := version{displaced: displaced{t.change, id}, exec: exec}
	var err error
	if v.live, err = isLive(id, exec); v.live || err != nil {
		return v, err
	}
	if v.git = p.blobs != nil && p.blobs.Has(id); v.git {
		return v, nil
	}
	p.edited = append(p.edited, t.path)
	return found, nil
}

// open opens a version, after it has checked the bytes. It returns nil if the bytes come from git, and the reason SnapshotFailed
// if neither git nor the snapshot has them.
func (p *priorState) open(ctx context.Context, v version) (*os.File, error) {
	if v.git {
		return nil, nil
	}
	folder := p.folders[v.folder]
	f, err := p.openDisplaced(ctx, folder, v)
	switch {
	case err == nil || ctx.Err() != nil:
		return f, err
	case p.blobs == nil:
		return nil, failure.New(v1alpha1.ReasonSnapshotFailed, "%s in snapshot %s: %w", v.name(), folder.id, err)
	case v.id.IsZero() || !p.blobs.Has(v.id):
		return nil, failure.New(v1alpha1.ReasonSnapshotFailed,
			"%s in snapshot %s: %w, and git does not have it; nothing was changed", v.name(), folder.id, err)
	}
	p.store.own.Vol.Log.Warn("snapshot damaged; using the file from git", "snapshot", folder.id, "file", v.name(), "error", err)
	return nil, nil
}

func (p *priorState) openDisplaced(ctx context.Context, n *folder, v version) (*os.File, error) {
	if v.missing {
		return nil, errors.New("the file is missing")
	}
	f, fi, err := n.File(v.name(), os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	var id plan.ID
	if limit := p.store.limits.fileBytes(v.size); limit == 0 || fi.Size() <= limit {
		id, err = safe.HashFile(ctx, f, p.buf)
	}
	if err == nil && id != v.id {
		err = errors.New("the file has changed")
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
