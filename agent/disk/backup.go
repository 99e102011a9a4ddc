package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// A backup is a copy of the whole gateway that the gateway itself made before a sync: the file backups/<id>.gwbk in .stoker. It has the
// id of the sync's snapshot, and its retention, see pruneSnapshots. Nothing reads it but the upload, and a user.
const (
	backupsDir   = "backups"
	backupSuffix = ".gwbk"
)

// Moves reports whether the staged changes move files of the gateway.
func (s *Staged) Moves() bool { return len(s.run.Tasks) > 0 }

// BackupID returns the id for a backup before this sync: that of its snapshot, if it takes one.
func (s *Staged) BackupID(gateway string) (string, error) {
	if s.run.Snapshot != "" {
		return s.run.Snapshot, nil
	}
	return s.d.nextSnapshot(gateway)
}

// SaveBackup keeps a backup, which write writes. It removes no other backup: that is for the end of the sync. It fails with LimitExceeded if
// the backup has more than limit bytes, and returns an error of write unchanged. After an error or a crash there is none.
func (d *Dir) SaveBackup(id string, limit int64, write func(io.Writer) error) error {
	d.work.Lock()
	defer d.work.Unlock()
	if err := d.checkMoved(); err != nil {
		return err
	}
	n, err := d.own.OpenOrMake(backupsDir)
	if err != nil {
		return safe.WriteError(err, "save a backup")
	}
	defer n.Close()
	if err := d.clearUnfinished(n); err != nil {
		return safe.WriteError(err, "save a backup")
	}
	var refused error
	renamed, err := d.vol.WriteFile(n, id+backupSuffix, func(w io.Writer) error {
		to := &boundedWriter{w: w, left: limit}
		if err := write(to); to.err == nil {
			refused = err
			return err
		}
		return to.err
	})
	if refused != nil {
		return refused
	}
	if err != nil && renamed { // it may not last
		err = errors.Join(err, d.vol.Remove(n, id+backupSuffix))
	}
	return safe.WriteError(err, "save a backup")
}

// clearUnfinished removes what a crash left of a backup.
func (d *Dir) clearUnfinished(n *safe.Folder) error {
	entries, err := n.Entries()
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), backupSuffix+".new"); ok && format.ValidSnapshot(id) && err == nil {
			err = d.vol.Vacate(n, e.Name())
		}
	}
	return err
}

// boundedWriter fails before it writes more than left bytes, and keeps the error.
type boundedWriter struct {
	w    io.Writer
	left int64
	err  error
}

func (b *boundedWriter) Write(p []byte) (n int, err error) {
	if b.left -= int64(len(p)); b.left < 0 {
		b.err = failure.New(v1alpha1.ReasonLimitExceeded, "the backup of the gateway is larger than spec.snapshots.maxSize: raise it, or set spec.snapshots.gatewayBackup to never")
		return 0, b.err
	}
	n, b.err = b.w.Write(p)
	return n, b.err
}

// openBackups opens the folder of the backups; nil if there is none.
func (d *Dir) openBackups() (*safe.Folder, error) {
	if d.own == nil {
		return nil, nil
	}
	n, err := d.own.Open(backupsDir)
	if safe.NotThere(err) { // or SaveBackup sets aside what is in its place
		return nil, nil
	}
	return n, err
}

// Backups returns the sizes of the backups by id.
func (d *Dir) Backups() (map[string]int64, error) {
	n, err := d.openBackups()
	if err != nil || n == nil {
		return nil, err
	}
	defer n.Close()
	entries, err := n.Entries()
	if err != nil {
		return nil, fmt.Errorf("list the backups: %w", err)
	}
	list := map[string]int64{}
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), backupSuffix)
		if !ok || !format.ValidSnapshot(id) || !e.Type().IsRegular() {
			continue
		}
		fi, err := n.Root.Lstat(e.Name())
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

// OpenBackup opens a backup to read it. The error is fs.ErrNotExist if there is none.
func (d *Dir) OpenBackup(id string) (*os.File, error) {
	n, err := d.openBackups()
	if err != nil {
		return nil, err
	}
	if n == nil || !format.ValidSnapshot(id) {
		return nil, fs.ErrNotExist
	}
	defer n.Close()
	f, _, err := n.File(id+backupSuffix, os.O_RDONLY)
	return f, err
}

// DropBackup removes a backup, if it exists: the sync that it was made for has not moved a file.
func (d *Dir) DropBackup(id string) error {
	d.work.Lock()
	defer d.work.Unlock()
	return safe.WriteError(d.dropBackup(id), "remove a backup")
}

func (d *Dir) dropBackup(id string) error {
	n, err := d.openBackups()
	if err != nil || n == nil {
		return err
	}
	defer n.Close()
	if err := d.vol.Remove(n, id+backupSuffix); err != nil {
		return err
	}
	return d.vol.SyncDir(n)
}

// DropBackups removes all backups, if there are any.
func (d *Dir) DropBackups() error {
	d.work.Lock()
	defer d.work.Unlock()
	if _, err := d.own.Root.Lstat(backupsDir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	d.log.Warn("backups removed, because spec.snapshots.enabled is false")
	return safe.WriteError(errors.Join(d.vol.ClearTree(d.own.Folder, backupsDir), d.vol.SyncDir(d.own.Folder)), "remove the backups")
}
