package snapshot

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/bound"
	"stoker.io/stoker/internal/failure"
)

// BackupsDir is the name of the folder of the backups in .stoker.
const BackupsDir = "backups"

const backupSuffix = ".gwbk"

// Backups has the backups of a data directory. A backup is a copy of the whole gateway that the gateway itself made before a
// sync: the file backups/<id>.gwbk in .stoker. If the sync takes a snapshot, both have the same id. Store.Prune removes old backups.
type Backups struct {
	own *safe.AgentFolder // nil: there are none
}

// Save keeps a backup with the content that write writes. It removes no other backup: Prune does that at the end of the sync. If
// the backup has more than limit bytes, the reason of the error is LimitExceeded. Save returns an error of write unchanged. After
// an error or a crash there is no such backup.
func (b Backups) Save(id string, limit int64, write func(io.Writer) error) error {
	folder, err := b.own.OpenOrMake(BackupsDir)
	if err != nil {
		return safe.WriteError(err, "save a backup")
	}
	defer folder.Close()
	if err := b.dropUnfinished(); err != nil {
		return safe.WriteError(err, "save a backup")
	}
	var writeErr error
	renamed, err := b.own.Vol.WriteFile(folder, id+backupSuffix, func(w io.Writer) error {
		to := bound.NewWriter(w, limit, func() error {
			return failure.New(v1alpha1.ReasonLimitExceeded, "the backup of the gateway is larger than spec.snapshots.maxSize: raise it, or set spec.snapshots.gatewayBackup to never")
		})
		if err := write(to); to.Err() == nil {
			writeErr = err
			return err
		}
		return to.Err()
	})
	if writeErr != nil {
		return writeErr
	}
	if err != nil && renamed { // the file may not be durable
		err = errors.Join(err, b.own.Vol.Remove(folder, id+backupSuffix))
	}
	return safe.WriteError(err, "save a backup")
}

// dropUnfinished removes what a crash left of a backup.
func (b Backups) dropUnfinished() error {
	folder, err := b.own.OpenExisting(BackupsDir)
	if err != nil || folder == nil {
		return err
	}
	defer folder.Close()
	entries, err := folder.Entries()
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), backupSuffix+".new"); ok && syntax.IsSnapshotID(id) && err == nil {
			err = b.own.Vol.Vacate(folder, e.Name())
		}
	}
	return err
}

// List returns the sizes of the backups in bytes, by id. It leaves out ids in the future.
func (b Backups) List() (map[string]int64, error) {
	folder, err := b.own.OpenExisting(BackupsDir)
	if err != nil || folder == nil {
		return nil, err
	}
	defer folder.Close()
	entries, err := folder.Entries()
	if err != nil {
		return nil, fmt.Errorf("list the backups: %w", err)
	}
	future, err := futureOf(b.own)
	if err != nil {
		return nil, err
	}
	list := map[string]int64{}
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), backupSuffix)
		if !ok || !syntax.IsSnapshotID(id) || !e.Type().IsRegular() || future.has(id) {
			continue
		}
		fi, err := folder.Lstat(e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("list the backups: %w", err)
		}
		list[id] = fi.Size()
	}
	return list, nil
}

// Open opens a backup to read it; the caller closes it. The error is fs.ErrNotExist if there is none.
func (b Backups) Open(id string) (*os.File, error) {
	folder, err := b.own.OpenExisting(BackupsDir)
	if err != nil {
		return nil, err
	}
	if folder == nil || !syntax.IsSnapshotID(id) {
		return nil, fs.ErrNotExist
	}
	defer folder.Close()
	f, _, err := folder.File(id+backupSuffix, os.O_RDONLY)
	return f, err
}

// Drop removes a backup durably, if it exists.
func (b Backups) Drop(id string) error { return safe.WriteError(b.drop(id), "remove a backup") }

func (b Backups) drop(id string) error {
	folder, err := b.own.OpenExisting(BackupsDir)
	if err != nil || folder == nil {
		return err
	}
	defer folder.Close()
	if err := b.own.Vol.Remove(folder, id+backupSuffix); err != nil {
		return err
	}
	return b.own.Vol.SyncDir(folder)
}

// DropAll removes all backups, because the spec asks for none.
func (b Backups) DropAll() error {
	if _, err := b.own.Lstat(BackupsDir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	b.own.Vol.Log.Warn("backups removed, because spec.snapshots.enabled is false")
	return safe.WriteError(b.own.DropFolder(BackupsDir), "remove the backups")
}
