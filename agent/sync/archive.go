package sync

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"stoker.io/stoker/agent/archive"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// bucket returns the place of the gateway's snapshots in object storage, or nil if there is none.
func bucket(c Connections, t *Task) *archive.Bucket {
	s := t.Profile.Snapshots
	if c.Storage == nil || s.ObjectStorage() == nil {
		return nil
	}
	return archive.NewBucket(c.Storage, s.Storage.KeyPrefix(), t.Facts.Namespace, t.Facts.CRName, t.Facts.GatewayName, int(s.RetentionCount))
}

// Uploads returns what to copy to object storage, or nil if there is nothing.
func (e *Engine) Uploads(c Connections, t *Task) *archive.Job {
	b := bucket(c, t)
	if b == nil {
		return nil
	}
	return &archive.Job{Bucket: *b, DataDir: e.DataDir, Disk: disk.Options{MaxFiles: e.Limits.Files, MaxBlob: e.MaxBlob, Wanted: spare{e.Store}.WriteBlob}, Blobs: e.Store}
}

// restoration is how the files of a snapshot come back.
type restoration struct {
	changes *plan.Changes
	header  plan.Header
	source  disk.Source
	local   *disk.SnapshotRestore // nil for an archive
	done    bool                  // it was restored before the process died
}

// planRestore plans with the snapshot on the data volume, or else with its archive.
func (f *files) planRestore(ctx context.Context, id string) (restoration, error) {
	b, err := f.dir.PlanRestore(ctx, id, f.Store)
	if err == nil && b.Done {
		return restoration{done: true}, nil
	}
	if err == nil {
		if len(b.Edited) > 0 {
			f.note("%s: neither a snapshot nor git has the version from before a user changed it; the user's version is back", some(b.Edited))
		}
		return restoration{changes: b.Changes, header: b.Header, source: b.Source, local: b}, nil
	}
	from := bucket(f.conn, &f.t)
	if from == nil || !failure.Is(err, v1alpha1.ReasonSnapshotFailed) {
		return restoration{}, err
	}
	a, aerr := f.bring(ctx, from, id)
	if errors.Is(aerr, fs.ErrNotExist) {
		return restoration{}, fmt.Errorf("%w; object storage does not have it either", err)
	}
	if aerr != nil {
		return restoration{}, failure.New(failure.Reason(aerr, v1alpha1.ReasonSnapshotFailed), "the data volume does not have it, and object storage: %w", aerr)
	}
	changes, err := f.dir.PlanReplace(ctx, a.Header, a.Files)
	if err != nil {
		return restoration{}, err
	}
	f.note("the snapshot %s came from object storage", id)
	return restoration{changes: changes, header: a.Header, source: a.Source}, a.Restart()
}

// brought is an archive that was downloaded and is not restored yet: a sync that waits for a Designer is tried again and again.
type brought struct {
	id      string
	archive *archive.Archive
	file    *os.File
}

// Close drops the archive.
func (b *brought) Close() error {
	f := b.file
	if *b = (brought{}); f == nil {
		return nil
	}
	return f.Close()
}

// bring downloads an archive.
func (f *files) bring(ctx context.Context, from *archive.Bucket, id string) (*archive.Archive, error) {
	if f.brought.id == id && f.brought.file != nil {
		return f.brought.archive, nil
	}
	if err := f.brought.Close(); err != nil {
		return nil, err
	}
	file, err := f.dir.Scratch()
	if err != nil {
		return nil, err
	}
	limits := archive.Limits{Files: f.Limits.Files, FileBytes: f.MaxBlob}
	if limits.Files == 0 {
		limits.Files = plan.DefaultLimits.Files
	}
	a, err := from.Download(ctx, id, file, limits)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	f.brought = brought{id, a, file}
	return a, nil
}

// staleAfter is the age from which a new data volume ignores a request to restore a snapshot.
const staleAfter = 24 * time.Hour

// stale reports whether the request to restore a snapshot was made to a data volume before this one, whose note says that it was carried
// out. A request without a time is part of the spec, and counts.
func (j *job) stale() bool {
	_, at, _ := strings.Cut(j.t.Restore, " ")
	t, err := time.Parse(time.RFC3339, at)
	return err == nil && j.from.IsZero() && j.Now().Sub(t) > staleAfter
}
