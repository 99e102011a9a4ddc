package loop

import (
	"context"
	"slices"
	"time"

	"stoker.io/stoker/agent/archive"
	"stoker.io/stoker/agent/disk"
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

// upload makes the uploader copy the snapshots of this gateway to object storage.
func (l *Loop) upload(ctx context.Context) {
	job := l.uploadJob()
	wrote := l.attempt.report != nil && l.attempt.report != l.lastUploaded && l.attempt.report.Wrote()
	l.lastUploaded = l.attempt.report
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
	ctx, cancel := context.WithTimeout(ctx, onceUploadTime)
	defer cancel()
	_ = l.uploads.Pass(ctx, job) // which logs the error
}

// uploadJob returns what to upload, or nil if there is nothing.
func (l *Loop) uploadJob() *archive.Job {
	o := l.decision.Order
	if o == nil || l.DryRun || o.Profile.DryRun || !l.dirOpen || l.decision.HandsOff {
		return nil
	}
	return l.Engine.Uploads(o.Connections, &o.Task)
}

// snapshots returns the snapshots on the data volume and in object storage, oldest first.
func (l *Loop) snapshots() []Snapshot {
	if l.attempt.report == nil {
		return nil
	}
	job := l.uploadJob()
	var list []Snapshot
	for _, s := range l.attempt.report.Snapshots {
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
