package sync

import (
	"encoding/json"
	"time"

	"stoker.io/stoker/agent/audit"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
)

// auditedFailure identifies the last failure in the audit record. Its repetitions are not recorded.
type auditedFailure struct {
	target plan.ID
	reason v1alpha1.Reason
}

// auditor keeps the audit record of an open data directory.
type auditor struct {
	in       *scope
	history  *audit.History
	failure  *auditedFailure
	restored bool // a snapshot was restored
}

// record records a sync that wrote files, or failed in another way than the one before it.
func (j auditor) record() {
	r := j.in.r
	class := r.Class()
	failed := r.Err != nil && (class == v1alpha1.ClassStalled || class == v1alpha1.ClassRetry)
	failure := auditedFailure{r.Target, r.Reason}
	if !r.Wrote() && (!failed || *j.failure == failure) {
		return
	}
	*j.failure = auditedFailure{}
	if failed {
		*j.failure = failure
	}
	e := audit.Entry{
		Schema: audit.Schema, Time: r.Started.UTC().Truncate(time.Second),
		Namespace: j.in.t.Facts.Namespace, GatewaySync: j.in.t.Facts.CRName, Gateway: j.in.t.Facts.GatewayName,
		From: j.in.from, To: r.Commit, Target: r.Target, Ref: r.Ref, Request: j.in.t.Request,
		Files:  audit.Files{Added: r.Files.Added, Modified: r.Files.Modified, Deleted: r.Files.Deleted, Saved: r.Files.Saved},
		Result: r.Phase, Reason: r.Reason, AutoRollback: r.AutoRollback, Duration: r.Duration.Round(time.Millisecond).String(),
	}
	e.SetProjects(r.Projects)
	if r.Reason == v1alpha1.ReasonRestored || j.restored && r.AutoRollback == nil {
		e.Restore = j.in.t.Restore
	}
	if annotation.Retries(j.in.t.Retry, r.Target.String()) {
		e.Retry = j.in.t.Retry
	}
	if author, subject, err := j.in.Store.Origin(r.Target); err == nil { // after a restore, the store may lack the target
		e.Author, e.Subject = author, subject
	}
	if r.Reason != v1alpha1.ReasonSynced {
		e.Message = r.Message
	}
	e.Bound()
	if n := len(r.Snapshots); n > 0 && r.Wrote() && !r.Snapshots[n-1].Time.Before(e.Time) {
		e.Snapshot = r.Snapshots[n-1].ID
	}
	if r.Wrote() && r.Changes != nil && e.Gateway != "" {
		var err error
		if e.Diff, err = j.saveDiff(r.Changes); err != nil {
			j.in.note("there is no report of what this sync changed: %v", err)
		}
	}
	j.last() // read before the record has this sync
	j.history.Add(e)
	b, err := json.Marshal(e)
	if err == nil {
		j.in.Log.Info("audit", "record", string(b))
		err = j.in.dir.AddAudit(b)
	}
	if err != nil {
		j.in.note("the audit record on the data volume lacks this sync; the log has it: %v", err)
	}
}

// last returns the last entries of the record.
func (j auditor) last() []audit.Entry {
	return j.history.Last(j.in.DataDir, j.in.t.Facts.GatewayName, j.in.Log)
}

// saveDiff saves the report of what the sync changed on the data volume, and returns its id.
func (j auditor) saveDiff(changes *plan.Changes) (string, error) {
	r := j.in.r
	d := audit.Diff{
		Schema: audit.Schema, Gateway: j.in.t.Facts.GatewayName, Timestamp: r.Started.UTC().Truncate(time.Second), FromCommit: j.in.from, ToCommit: r.Commit,
		FilesAdded: r.Files.Added, FilesModified: r.Files.Modified, FilesDeleted: r.Files.Deleted,
	}
	d.Add(changes, disk.MaxDiff)
	b, err := json.Marshal(d)
	if err != nil {
		return "", err
	}
	return j.in.dir.AddDiff(d.Gateway, d.Timestamp, b)
}
