package loop

import (
	"context"
	"slices"
	"time"

	"stoker.io/stoker/agent/archive"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/api/v1alpha1"
)

// Snapshot is a snapshot of the gateway, and where it is.
type Snapshot struct {
	disk.Snapshot
	// Stored is empty if there is no object storage.
	Stored v1alpha1.SnapshotStored `json:"stored,omitempty"`
}

// onceUploads is how long a single run waits for its snapshots to be uploaded.
const onceUploads = 10 * time.Minute

// upload makes the uploader copy the snapshots of this gateway.
func (l *Loop) upload(ctx context.Context) {
	job := l.uploading()
	wrote := l.sync.report != nil && l.sync.report != l.uploaded && l.sync.report.Wrote()
	l.uploaded = l.sync.report
	if !l.Once {
		l.uploads.Follow(job)
		if wrote {
			l.uploads.Wake()
		}
		return
	}
	if job == nil || !wrote {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, onceUploads)
	defer cancel()
	_ = l.uploads.Pass(ctx, job) // it is logged
}

// uploading returns what to upload, or nil if there is nothing.
func (l *Loop) uploading() *archive.Job {
	o := l.decision.Order
	if o == nil || l.DryRun || o.Profile.DryRun || !l.settled || l.decision.HandsOff { // another agent may have the gateway
		return nil
	}
	return l.Engine.Uploads(o.Connections, &o.Task)
}

// snapshots returns the snapshots on the data volume and in object storage, oldest first.
func (l *Loop) snapshots() []Snapshot {
	if l.sync.report == nil {
		return nil
	}
	job := l.uploading()
	var list []Snapshot
	for _, s := range l.sync.report.Snapshots {
		n := Snapshot{Snapshot: s}
		if job != nil {
			n.Stored = v1alpha1.StoredLocal
		}
		list = append(list, n)
	}
	if job == nil {
		return list
	}
	remote, known := l.uploads.Remote(job)
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
