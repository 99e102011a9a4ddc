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
	records  *dirRecords
	failure  *auditedFailure
	restored bool // a snapshot was restored
}

// record records a sync that wrote files, or failed in another way than the one before it.
func (j auditor) record() {
	r := j.in.report
	class := r.Class()
	failed := r.Err != nil && (class == v1alpha1.ClassStalled || class == v1alpha1.ClassRetry)
	failure := auditedFailure{r.Target, r.Reason}
	if class == v1alpha1.ClassDone { // the same failure after this is a new one
		*j.failure = auditedFailure{}
	}
	if !r.Wrote() && (!failed || *j.failure == failure) {
		return
	}
	*j.failure = auditedFailure{}
	if failed {
		*j.failure = failure
	}
	e := j.entry(j.in.from, r.Commit, r.Target)
	e.Ref, e.Request, e.AutoRollback, e.Duration = r.Ref, j.in.task.Request, r.AutoRollback, r.Duration.Round(time.Millisecond).String()
	e.Files = audit.Files{Added: r.Files.Added, Modified: r.Files.Modified, Deleted: r.Files.Deleted, Saved: r.Files.Saved}
	e.Result, e.Reason = r.Phase, r.Reason
	e.SetProjects(r.Projects)
	if r.Reason == v1alpha1.ReasonRestored || j.restored && r.AutoRollback == nil {
		e.Restore = j.in.task.Restore
	}
	if annotation.Retries(j.in.task.Retry, r.Target.String()) {
		e.Retry = j.in.task.Retry
	}
	if r.Reason != v1alpha1.ReasonSynced {
		e.Message = r.Message
	}
	if n := len(r.Snapshots); n > 0 && r.Wrote() && !r.Snapshots[n-1].Time.Before(e.Time) {
		e.Snapshot = r.Snapshots[n-1].ID
	}
	if r.Wrote() && r.Changes != nil && e.Gateway != "" {
		var err error
		if e.Diff, err = j.saveDiff(r.Changes); err != nil {
			j.in.note("there is no report of what this sync changed: %v", err)
		}
	}
	j.add(e)
}

// recordRecovery records a sync that a crash or an error interrupted, if the data directory has finished it since.
func (j auditor) recordRecovery() {
	rec := j.in.dir.Recovered()
	if rec == nil || rec == j.records.recovered {
		return
	}
	j.records.recovered = rec
	n := rec.Counts
	if !rec.Forward || n.Added+n.Modified+n.Deleted == 0 {
		return
	}
	if list := j.last(); len(list) > 0 && rec.From != rec.Commit {
		if last := list[len(list)-1]; last.From == rec.From && last.To == rec.Commit { // the sync itself is recorded already
			return
		}
	}
	e := j.entry(rec.From, rec.Commit, rec.Commit)
	e.Ref, e.Files = rec.Ref, audit.Files{Added: n.Added, Modified: n.Modified, Deleted: n.Deleted, Saved: len(rec.Saved)}
	e.Result, e.Reason, e.Message = v1alpha1.GatewayApplied, v1alpha1.ReasonProgressing, "the sync was interrupted, and finished later"
	j.add(e)
}

// entry returns an entry about a sync between two commits.
func (j auditor) entry(from, to, target plan.ID) audit.Entry {
	e := audit.Entry{
		Schema: audit.Schema, Time: j.in.report.Started.UTC().Truncate(time.Second), From: from, To: to, Target: target,
		Namespace: j.in.task.Facts.Namespace, GatewaySync: j.in.task.Facts.CRName, Gateway: j.in.task.Facts.GatewayName, Duration: "0s",
	}
	if author, subject, err := j.in.Store.Origin(target); err == nil { // after a restore, the store may lack the target
		e.Author, e.Subject = author, subject
	}
	return e
}

func (j auditor) add(e audit.Entry) {
	e.Bound()
	j.last() // read before the record has this sync
	j.records.history.Add(e)
	b, err := e.Encode()
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
	return j.records.history.Last(j.in.DataDir, j.in.task.Facts.GatewayName, j.in.Log)
}

// saveDiff saves on the data volume a report of what the sync changed, and returns its id.
func (j auditor) saveDiff(changes *plan.Changes) (string, error) {
	r := j.in.report
	d := audit.Diff{
		Schema: audit.Schema, Gateway: j.in.task.Facts.GatewayName, Timestamp: r.Started.UTC().Truncate(time.Second), FromCommit: j.in.from, ToCommit: r.Commit,
		FilesAdded: r.Files.Added, FilesModified: r.Files.Modified, FilesDeleted: r.Files.Deleted,
	}
	d.SetChanges(changes, disk.MaxDiff)
	b, err := json.Marshal(d)
	if err != nil {
		return "", err
	}
	return j.in.dir.AddDiff(d.Gateway, d.Timestamp, b)
}
