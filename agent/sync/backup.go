package sync

import (
	"context"
	"errors"
	"io"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// backUp keeps a backup of the whole gateway before its files change, and returns its id; "" if it made none. A gateway that does not run
// makes none, the node of a pair without config access is no copy of the plant, and a restore does not wait for one.
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
	if !f.gateway.token || f.gateway.legacy() {
		return errors.New("it takes an API token and Ignition 8.3")
	}
	return f.dir.SaveBackup(id, snapshotLimits(&f.t).MaxBytes, func(w io.Writer) error { return f.gateway.Backup(ctx, w) })
}
