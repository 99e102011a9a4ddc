package sync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"stoker.io/stoker/agent/archive"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/unloaded"
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
				unloaded.FirstNames(local.Edited))
		}
		return restorePlan{changes: local.Changes, header: local.Header, source: local.Source, local: local}, nil
	}
	b := bucket(j.in.conn, &j.in.t)
	if b == nil || !failure.Is(err, v1alpha1.ReasonSnapshotFailed) {
		return restorePlan{}, err
	}
	a, downloadErr := j.download.Get(ctx, b, id, j.beginDownload)
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

// beginDownload returns an empty file for an archive, and what bounds the archive.
func (j *restorer) beginDownload() (*os.File, archive.Limits, error) {
	file, err := j.in.dir.Scratch()
	limits := archive.Limits{
		Files:     cmp.Or(j.in.Limits.Files, plan.DefaultLimits.Files),
		PathBytes: cmp.Or(j.in.Limits.PathBytes, plan.DefaultLimits.PathBytes),
		FileBytes: j.in.MaxBlob, ArchiveBytes: syntax.SnapshotSize(j.in.t.Profile.Snapshots.MaxSize),
	}
	return file, limits, err
}
