package disk

import (
	"context"
	"io"
	"os"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/snapshot"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// The methods of a Dir use types of package snapshot.
type (
	// Snapshot describes a snapshot.
	Snapshot = snapshot.Snapshot
	// Snapshots configures the snapshots of a gateway.
	Snapshots = snapshot.Options
	// SnapshotRestore is the plan of a sync that restores a snapshot.
	SnapshotRestore = snapshot.Restore
	// Contents is the state of the data directory before the sync that took a snapshot.
	Contents = snapshot.Contents
	// Content is a file as it was before the sync that took a snapshot.
	Content = snapshot.Content
)

// ErrChanged is the error of Contents.Each if a sync changed files meanwhile. The caller must read them again.
var ErrChanged = snapshot.ErrChanged

// Snapshot makes Apply keep what it displaces. It must be called before Apply. The first sync of a volume takes no snapshot. The
// error is LimitExceeded if the sync alone displaces more than o.MaxBytes.
func (s *Staged) Snapshot(o Snapshots) error {
	d, r := s.d, s.run
	d.writing.Lock()
	defer d.writing.Unlock()
	if d.manifest().Missing() || !s.Moves() {
		return nil
	}
	var sum int64
	for i := range r.Changes {
		if c := &r.Changes[i]; format.Moves(c.Op) && c.Found.Kind == plan.File {
			sum += c.Found.Size
		}
	}
	if sum > o.MaxBytes {
		return failure.New(v1alpha1.ReasonLimitExceeded, "this sync replaces %d bytes, and spec.snapshots.maxSize allows a snapshot of %d; raise it, or sync in two commits", sum, o.MaxBytes)
	}
	id, err := d.snapshots.NextID(o.Gateway)
	r.Snapshot, r.snapshots = id, o
	return err
}

// SnapshotID returns the id of the snapshot that Apply takes; "" if it takes none.
func (s *Staged) SnapshotID() string { return s.run.Snapshot }

// Moves reports whether Apply will change files of the gateway.
func (s *Staged) Moves() bool { return len(s.run.Steps) > 0 }

// BackupID returns the id for a backup before this sync: that of its snapshot, if it takes one.
func (s *Staged) BackupID(gateway string) (string, error) {
	if s.run.Snapshot != "" {
		return s.run.Snapshot, nil
	}
	return s.d.snapshots.NextID(gateway)
}

// RestoreManifest makes Apply add the records of the changes to the manifest from before the sync of a snapshot, and not to the current
// one. It must be called before Apply, and Apply must get the Header of the SnapshotRestore.
func (s *Staged) RestoreManifest(of *SnapshotRestore) {
	s.d.writing.Lock()
	defer s.d.writing.Unlock()
	s.run.Restores = of.Snapshot()
}

// live returns the data directory as it is now, for package snapshot.
func (d *Dir) live() snapshot.Live {
	return snapshot.Live{Top: d.top, State: d, Manifest: d.manifest(), Rewritten: d.rewritten}
}

// ListSnapshots returns the snapshots, oldest first; see snapshot.Store.List.
func (d *Dir) ListSnapshots() ([]Snapshot, error) { return d.snapshots.List() }

// PruneSnapshots removes the snapshots and backups beyond the limits; see snapshot.Store.Prune.
func (d *Dir) PruneSnapshots(o Snapshots) error {
	return d.exclusive(func() error { return d.snapshots.Prune(o) })
}

// Contents opens the state before the sync that took a snapshot; see snapshot.Store.Contents.
func (d *Dir) Contents(id string, blobs plan.Objects) (*Contents, error) {
	return d.snapshots.Contents(d.live(), id, blobs)
}

// PlanRestore plans to restore a snapshot; see snapshot.Store.PlanRestore.
func (d *Dir) PlanRestore(ctx context.Context, id string, blobs plan.Objects) (*SnapshotRestore, error) {
	d.writing.Lock()
	defer d.writing.Unlock()
	if err := d.CheckOpen(); err != nil {
		return nil, err
	}
	return d.snapshots.PlanRestore(ctx, d.live(), id, blobs)
}

// PlanReplace plans to restore an archive; see snapshot.PlanReplace.
func (d *Dir) PlanReplace(ctx context.Context, h plan.Header, list []Content) (*plan.Changes, error) {
	d.writing.Lock()
	defer d.writing.Unlock()
	if err := d.CheckOpen(); err != nil {
		return nil, err
	}
	return snapshot.PlanReplace(ctx, d.live(), h, list)
}

// Backups returns the sizes of the gateway's backups in bytes, by id.
func (d *Dir) Backups() (map[string]int64, error) { return d.snapshots.Backups.List() }

// OpenBackup opens a backup to read it; the caller closes it. The error is fs.ErrNotExist if there is none.
func (d *Dir) OpenBackup(id string) (*os.File, error) { return d.snapshots.Backups.Open(id) }

// SaveBackup keeps a backup; see snapshot.Backups.Save.
func (d *Dir) SaveBackup(id string, limit int64, write func(io.Writer) error) error {
	return d.exclusive(func() error { return d.snapshots.Backups.Save(id, limit, write) })
}

// DropBackup removes a backup, if it exists. Callers use it if the sync that the backup was made for was not applied.
func (d *Dir) DropBackup(id string) error {
	return d.exclusive(func() error { return d.snapshots.Backups.Drop(id) })
}

// DropBackups removes all backups, if there are any.
func (d *Dir) DropBackups() error { return d.exclusive(d.snapshots.Backups.DropAll) }
