package loop

import (
	"context"
	"slices"
	"time"

	"stoker.io/stoker/agent/archive"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
)

// Snapshot is a snapshot of the gateway, and where it is stored.
type Snapshot struct {
	disk.Snapshot
	// Stored is empty if there is no object storage.
	Stored v1alpha1.SnapshotStored `json:"stored,omitempty"`
}

// onceUploadTime is how long a run with Once waits until its snapshots are uploaded.
const onceUploadTime = 10 * time.Minute

// uploads copies the snapshots of a gateway to object storage.
type uploads struct {
	*archive.Uploader
	written []*sync.Report // since the last update
}

// update first sets where to upload (a nil job uploads nothing), and only then adds the snapshots and backups of the syncs since the last
// update. Otherwise they could go to the bucket of an earlier order. With once it does not upload in the background, but before it returns,
// and only if a sync has written files.
func (u *uploads) update(ctx context.Context, job *archive.Job, once bool) {
	if !once {
		u.SetJob(job)
	}
	wrote := len(u.written) > 0
	for _, r := range u.written {
		u.Add(r.NewSnapshots, r.NewBackups)
	}
	u.written = nil
	if !once || job == nil || !wrote {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, onceUploadTime)
	defer cancel()
	_ = u.Pass(ctx, job) // which logs the error
}

// snapshots returns local, the snapshots on the data volume, and those in the object storage of job, oldest first.
func (u *uploads) snapshots(job *archive.Job, local []disk.Snapshot) []Snapshot {
	var list []Snapshot
	for _, s := range local {
		n := Snapshot{Snapshot: s}
		if job != nil {
			n.Stored = v1alpha1.StoredLocal
		}
		list = append(list, n)
	}
	if job == nil {
		return list
	}
	remote, known := u.Remote(job)
	if !known {
		return list
	}
	for _, s := range remote {
		if i := slices.IndexFunc(list, func(n Snapshot) bool { return n.ID == s.ID }); i >= 0 {
			list[i].Stored, list[i].Backup = v1alpha1.StoredBoth, list[i].Backup || s.Backup
		} else {
			list = append(list, Snapshot{s, v1alpha1.StoredRemote})
		}
	}
	slices.SortFunc(list, func(a, b Snapshot) int { return a.Time.Compare(b.Time) })
	return list
}

// uploadJob returns the job of the Uploader, or nil if nothing may be uploaded now, or there is no object storage.
func (l *Loop) uploadJob() *archive.Job {
	o := l.decision.Order
	if o == nil || l.DryRun || o.Profile.DryRun || !l.dirOpen || l.decision.DoNotTouch {
		return nil
	}
	return l.Engine.UploadJob(o.Connections, &o.Task)
}
