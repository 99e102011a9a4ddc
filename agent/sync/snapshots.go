package sync

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"

	"stoker.io/stoker/agent/archive"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/failure"
)

// snapshot makes the sync keep what it displaces, and backs up the gateway, if the spec asks for that. It returns the ids of
// the snapshot and of the backup; "" if there is none.
func (a *applier) snapshot(ctx context.Context, staged *disk.Staged) (id, backup string, err error) {
	switch {
	case a.in.task.Profile.Snapshots != nil:
		if err = takeSnapshot(&a.in.task, staged); err == nil {
			backup, err = a.backUp(ctx, staged)
		}
	case a.header == nil && staged.Moves(): // a restore keeps the backups, and the snapshots up to the restored one
		err = a.in.dir.DropBackups()
	}
	if err != nil {
		return "", "", errors.Join(err, staged.Discard())
	}
	return staged.SnapshotID(), backup, nil
}

// takeSnapshot makes the sync keep what it displaces, if the spec asks for that. Otherwise the sync removes all snapshots: restoring one
// needs those of all later syncs.
func takeSnapshot(t *Task, staged *disk.Staged) error {
	if t.Profile.Snapshots == nil {
		return nil
	}
	return staged.Snapshot(snapshotLimits(t))
}

func snapshotLimits(t *Task) disk.Snapshots {
	s := t.Profile.Snapshots
	return disk.Snapshots{Gateway: t.Facts.GatewayName, Keep: int(s.RetentionCount), MaxBytes: syntax.SnapshotSize(s.MaxSize)}
}

// backUp saves a backup of the whole gateway before its files change, if the spec asks for that, and returns its id. It makes
// none if the gateway does not run, if this node of a pair has no config access, or if a snapshot is restored.
func (a *applier) backUp(ctx context.Context, staged *disk.Staged) (id string, err error) {
	if a.in.task.Profile.Snapshots.GatewayBackup != v1alpha1.GatewayBackupBeforeSync || a.guard.state == noGateway || a.in.node.Standby() || a.header != nil || !staged.Moves() {
		return "", nil
	}
	if a.guard.state != running {
		a.in.note("no backup of the gateway was made before the sync, because it does not run")
		return "", nil
	}
	defer a.in.step("backup")()
	if id, err = staged.BackupID(a.in.task.Facts.GatewayName); err == nil {
		err = a.saveBackup(ctx, id)
	}
	switch {
	case err == nil:
		return id, nil
	case failure.Is(err, v1alpha1.ReasonLimitExceeded), failure.Is(err, v1alpha1.ReasonNoSpace):
		return "", err
	}
	return "", failure.New(v1alpha1.ReasonSnapshotFailed, "back up the gateway before the sync (spec.snapshots.gatewayBackup): %w; nothing was changed", err)
}

func (a *applier) saveBackup(ctx context.Context, id string) error {
	if !a.in.gateway.hasAPIToken || a.in.gateway.legacy() {
		return errors.New("it takes an API key and Ignition 8.3")
	}
	return a.in.dir.SaveBackup(id, snapshotLimits(&a.in.task).MaxBytes, func(w io.Writer) error { return a.in.gateway.Backup(ctx, w) })
}

// snapshots returns the snapshots on the data volume, oldest first, or nil if the spec asks for none. It reads them again after a write or a
// failure. It prunes them before, because a sync that recovery completed did not know the limits.
func (e *Engine) snapshots(in *scope, failed bool) []disk.Snapshot {
	if in.task.Profile.Snapshots == nil {
		e.records.snapshots, e.records.snapshotsRead = nil, false
		return nil
	}
	if !e.records.snapshotsRead || in.report.Wrote() || failed {
		if !in.task.Profile.DryRun {
			if err := in.dir.PruneSnapshots(snapshotLimits(&in.task)); err != nil {
				in.Log.Warn("snapshots not pruned", "error", err)
			}
		}
		list, err := in.dir.ListSnapshots()
		if err != nil {
			in.Log.Warn("snapshots unreadable", "error", err)
			return nil
		}
		e.records.snapshots, e.records.snapshotsRead = list, true
	}
	return e.records.snapshots
}

func (s *scope) hasSnapshot(id string) bool {
	list, err := s.dir.ListSnapshots()
	if err != nil {
		s.Log.Warn("snapshots unreadable", "error", err)
	}
	return slices.ContainsFunc(list, func(x disk.Snapshot) bool { return x.ID == id })
}

// bucket returns the place of the gateway's snapshots in object storage, or nil if the spec names no object storage or c has no
// connection to it.
func bucket(c Connections, t *Task) *archive.Bucket {
	s := t.Profile.Snapshots
	if c.Storage == nil || s.ObjectStorage() == nil {
		return nil
	}
	o := s.ObjectStorage()
	location := strings.Join([]string{string(o.Type), o.Endpoint, o.Region, o.Account, o.Bucket}, "\n")
	return archive.NewBucket(c.Storage, location, o.KeyPrefix, t.Facts.Namespace, t.Facts.CRName, t.Facts.GatewayName, int(s.RetentionCount))
}

// UploadJob returns the gateway's job for the archive.Uploader, or nil without object storage.
func (e *Engine) UploadJob(c Connections, t *Task) *archive.Job {
	b := bucket(c, t)
	if b == nil {
		return nil
	}
	return &archive.Job{
		Bucket: *b, DataDir: e.DataDir, Blobs: e.Store,
		Disk: disk.Options{
			MaxFiles: e.Limits.Files, MaxBlob: e.MaxBlob,
			Wanted: optionalStore{e.Store}.WriteBlob, // a blob that the store lacks is not reported as damage of the store
		},
	}
}
