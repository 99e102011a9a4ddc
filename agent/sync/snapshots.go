package sync

import (
	"context"
	"errors"
	"io"
	"slices"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/failure"
)

// snapshot makes the sync keep what it displaces, and backs up the gateway, if the spec asks for that. It returns the ids of
// the snapshot and of the backup; "" if there is none.
func (f *files) snapshot(ctx context.Context, staged *disk.Staged) (id, backup string, err error) {
	switch {
	case f.t.Profile.Snapshots != nil:
		if err = f.takeSnapshot(staged); err == nil {
			backup, err = f.backUp(ctx, staged)
		}
	case f.header == nil && staged.Moves(): // a restore keeps the backups, and the snapshots up to the restored one
		err = f.dir.DropBackups()
	}
	if err != nil {
		return "", "", errors.Join(err, staged.Discard())
	}
	return staged.SnapshotID(), backup, nil
}

// takeSnapshot makes the sync keep what it displaces, if the spec asks for that. Otherwise the sync removes all snapshots.
func (j *job) takeSnapshot(staged *disk.Staged) error {
	if j.t.Profile.Snapshots == nil {
		return nil
	}
	return staged.Snapshot(snapshotLimits(&j.t))
}

func snapshotLimits(t *Task) disk.Snapshots {
	s := t.Profile.Snapshots
	return disk.Snapshots{Gateway: t.Facts.GatewayName, Keep: int(s.RetentionCount), MaxBytes: syntax.SnapshotSize(s.MaxSize)}
}

// backUp saves a backup of the whole gateway before its files change, and returns its id. It returns "" without a backup if
// the gateway does not run, if this node of a pair has no config access, or if a snapshot is restored.
func (f *files) backUp(ctx context.Context, staged *disk.Staged) (id string, err error) {
	if f.t.Profile.Snapshots.GatewayBackup != v1alpha1.GatewayBackupBeforeSync || f.before == noGateway || f.node.Standby() || f.header != nil || !staged.Moves() {
		return "", nil
	}
	if f.before != running {
		f.note("no backup of the gateway was made before the sync, because it does not run")
		return "", nil
	}
	defer f.step("backup")()
	if id, err = staged.BackupID(f.t.Facts.GatewayName); err == nil {
		err = f.saveBackup(ctx, id)
	}
	switch {
	case err == nil:
		return id, nil
	case failure.Is(err, v1alpha1.ReasonLimitExceeded), failure.Is(err, v1alpha1.ReasonNoSpace):
		return "", err
	}
	return "", failure.New(v1alpha1.ReasonSnapshotFailed, "back up the gateway before the sync (spec.snapshots.gatewayBackup): %w; nothing was changed", err)
}

func (f *files) saveBackup(ctx context.Context, id string) error {
	if !f.gateway.hasAPIToken || f.gateway.legacy() {
		return errors.New("it takes an API token and Ignition 8.3")
	}
	return f.dir.SaveBackup(id, snapshotLimits(&f.t).MaxBytes, func(w io.Writer) error { return f.gateway.Backup(ctx, w) })
}

// snapshots returns the snapshots on the data volume, oldest first. It reads them again after a write or a failure, and prunes them
// before: a sync that recovery completed did not know the limits.
func (j *job) snapshots(failed bool) []disk.Snapshot {
	if j.t.Profile.Snapshots == nil {
		j.records.snapshots, j.records.snapshotsRead = nil, false
		return nil
	}
	if !j.records.snapshotsRead || j.r.Wrote() || failed {
		if !j.t.Profile.DryRun {
			if err := j.dir.PruneSnapshots(snapshotLimits(&j.t)); err != nil {
				j.Log.Warn("snapshots not pruned", "error", err)
			}
		}
		list, err := j.dir.ListSnapshots()
		if err != nil {
			j.Log.Warn("snapshots unreadable", "error", err)
			return nil
		}
		j.records.snapshots, j.records.snapshotsRead = list, true
	}
	return j.records.snapshots
}

func (j *job) hasSnapshot(id string) bool {
	list, err := j.dir.ListSnapshots()
	if err != nil {
		j.Log.Warn("snapshots unreadable", "error", err)
	}
	return slices.ContainsFunc(list, func(s disk.Snapshot) bool { return s.ID == id })
}
