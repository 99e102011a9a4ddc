package sync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"stoker.io/stoker/agent/archive"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/failure"
)

// bucket returns the place of the gateway's snapshots in object storage, or nil if the spec names no object storage or c has no
// connection to it.
func bucket(c Connections, t *Task) *archive.Bucket {
	s := t.Profile.Snapshots
	if c.Storage == nil || s.ObjectStorage() == nil {
		return nil
	}
	return archive.NewBucket(c.Storage, s.Storage.KeyPrefix, t.Facts.Namespace, t.Facts.CRName, t.Facts.GatewayName, int(s.RetentionCount))
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

// restorePlan is a plan that restores the files of a snapshot.
type restorePlan struct {
	changes *plan.Changes
	header  plan.Header
	source  disk.Source
	local   *disk.SnapshotRestore // nil for an archive
	done    bool                  // the last sync restored the snapshot already; see disk.SnapshotRestore.Done
}

// plan plans the restore of a snapshot from the data volume or, if it is missing or damaged there, from its archive.
func (j *restorer) plan(ctx context.Context, id string) (restorePlan, error) {
	local, err := j.in.dir.PlanRestore(ctx, id, j.in.Store)
	if err == nil && local.Done {
		return restorePlan{done: true}, nil
	}
	if err == nil {
		if len(local.Edited) > 0 {
			j.in.note("%s: a user has changed or deleted these files, and neither a snapshot nor git has the delivered version; they are restored as the user left them",
				firstNames(local.Edited))
		}
		return restorePlan{changes: local.Changes, header: local.Header, source: local.Source, local: local}, nil
	}
	b := bucket(j.in.conn, &j.in.t)
	if b == nil || !failure.Is(err, v1alpha1.ReasonSnapshotFailed) {
		return restorePlan{}, err
	}
	a, downloadErr := j.downloadArchive(ctx, b, id)
	if errors.Is(downloadErr, fs.ErrNotExist) {
		return restorePlan{}, fmt.Errorf("%w; object storage does not have the snapshot", err)
	}
	if failure.Is(downloadErr, v1alpha1.ReasonProgressing) {
		return restorePlan{}, downloadErr
	}
	if downloadErr != nil {
		return restorePlan{}, failure.New(failure.Reason(downloadErr, v1alpha1.ReasonSnapshotFailed), "%w; object storage: %w", err, downloadErr)
	}
	changes, err := j.in.dir.PlanReplace(ctx, a.Header, a.Files)
	if err != nil {
		return restorePlan{}, err
	}
	// An earlier attempt may have read the archive.
	if err := a.Restart(); err != nil {
		return restorePlan{}, err
	}
	j.in.note("the snapshot %s comes from object storage", id)
	return restorePlan{changes: changes, header: a.Header, source: a.Source}, nil
}

// download is an archive that is read from object storage beside the syncs, or was read and is not restored yet. The Engine keeps it: a slow
// download delays no other commit, and a restore that waits for a Designer is tried many times.
type download struct {
	id     string
	file   *os.File // nil if there is none
	cancel context.CancelFunc
	done   chan struct{} // closed when archive or err is set

	archive *archive.Archive
	err     error
}

// Close stops and drops the download.
func (d *download) Close() error {
	f := d.file
	if f == nil {
		return nil
	}
	d.cancel()
	<-d.done
	*d = download{}
	return f.Close()
}

// downloadWait is how long a sync waits for a download that it began.
const downloadWait = 5 * time.Second

// downloadArchive returns an archive. The error has the reason Progressing while it is read.
func (j *restorer) downloadArchive(ctx context.Context, b *archive.Bucket, id string) (*archive.Archive, error) {
	d := j.download
	if d.id != id || d.file == nil {
		if err := j.beginDownload(b, id); err != nil {
			return nil, err
		}
	}
	wait, cancel := context.WithTimeout(ctx, downloadWait)
	defer cancel()
	select {
	case <-d.done:
	case <-wait.Done():
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		read := int64(0)
		if fi, err := d.file.Stat(); err == nil {
			read = fi.Size()
		}
		return nil, failure.New(v1alpha1.ReasonProgressing, "the snapshot is read from object storage, %.1f MiB so far; a new commit ends this", float64(read)/(1<<20))
	}
	if err := d.err; err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d.archive, nil
}

func (j *restorer) beginDownload(b *archive.Bucket, id string) error {
	if err := j.download.Close(); err != nil {
		return err
	}
	file, err := j.in.dir.Scratch()
	if err != nil {
		return err
	}
	limits := archive.Limits{Files: j.in.Limits.Files, PathBytes: j.in.Limits.PathBytes, FileBytes: j.in.MaxBlob}
	limits.Files, limits.PathBytes = cmp.Or(limits.Files, plan.DefaultLimits.Files), cmp.Or(limits.PathBytes, plan.DefaultLimits.PathBytes)
	limits.ArchiveBytes = syntax.SnapshotSize(j.in.t.Profile.Snapshots.MaxSize)
	ctx, cancel := context.WithCancel(context.Background()) // it outlives the sync
	d := j.download
	*d = download{id: id, file: file, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(d.done)
		d.archive, d.err = b.Download(ctx, id, file, limits)
	}()
	return nil
}
