package sync

import (
	"encoding/json"
	"time"

	"stoker.io/stoker/agent/audit"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/internal/failure"
)

// Counts are the numbers of files that a sync changed.
type Counts struct {
	Added    int `json:"added"`
	Modified int `json:"modified"`
	Deleted  int `json:"deleted"`
	// Kept counts files for which conflictPolicy kept the gateway's version.
	Kept int `json:"kept"`
	// Saved counts files whose gateway version went to lost+found.
	Saved int `json:"saved,omitempty"`
	// Total is the number of owned files.
	Total int `json:"total"`
}

// Fetch describes what was fetched from git.
type Fetch struct {
	Kind    string `json:"kind"` // see repo.FetchKind
	Objects int    `json:"objects"`
	Bytes   int64  `json:"bytes"`
}

// ScanOutcome is the outcome of one scan of the gateway.
type ScanOutcome struct {
	Kind     string        `json:"kind"`
	Duration time.Duration `json:"duration"`
	Reason   string        `json:"reason,omitempty"`
}

// Report is the outcome of one sync.
type Report struct {
	// Phase is the state of the gateway after the sync, never Syncing. Applied means that the gateway has not confirmed the files on the disk. Synced
	// means, without a gateway or an API key, only that the files are there. After Held and Error the last good commit is live, unless Message
	// says otherwise.
	Phase   v1alpha1.GatewaySyncState `json:"phase"`
	Reason  v1alpha1.Reason           `json:"reason"`
	Message string                    `json:"message"`
	Ref     string                    `json:"ref"`
	// Commit is the commit on the disk, never ahead of it. Target is the requested one.
	Commit plan.ID `json:"commit"`
	Target plan.ID `json:"target"`
	// Started and Duration are those of the sync; Steps has the duration of each step.
	Started  time.Time                `json:"started"`
	Duration time.Duration            `json:"duration"`
	Steps    map[string]time.Duration `json:"steps,omitempty"`
	Fetch    Fetch                    `json:"fetch"`
	Files    Counts                   `json:"files"`
	Projects []string                 `json:"projects,omitempty"`
	Scans    []ScanOutcome            `json:"scans,omitempty"`
	// Notes are messages for users: what was skipped, what the gateway logged, why there was no scan lock.
	Notes []string `json:"notes,omitempty"`
	// Snapshots are those on the data volume, oldest first, if the profile has snapshots. loop.State serves them.
	Snapshots []disk.Snapshot `json:"-"`
	// NewSnapshots and NewBackups are the ids of those that this sync made, unless it is a repair.
	NewSnapshots, NewBackups []string `json:"-"`
	// History are the last syncs that changed the gateway or failed, oldest first; nil if they are unknown.
	History []audit.Entry `json:"-"`
	// AutoRollback is nil unless a commit is blocked because of an automatic rollback.
	AutoRollback *audit.AutoRollback `json:"autoRollback,omitempty"`
	// Changes is the plan. loop.State serves its text.
	Changes *plan.Changes `json:"-"`
	// failHeld makes a held outcome an error (designerSessionPolicy fail).
	failHeld bool
	// designersOpen says that Designers were open on what the sync wrote.
	designersOpen bool
	// Paired reports whether the gateway is one of a redundant pair, which may gain or lose config access at any time.
	Paired bool `json:"-"`
	// RetryAt is when to try again; zero if the sync does not know.
	RetryAt time.Time `json:"-"`
	// Err is the error with Reason; nil if the sync succeeded.
	Err error `json:"-"`
	// DryRun reports that the sync only planned and validated.
	DryRun bool `json:"dryRun,omitempty"`
}

// Class returns the class of the reason, which decides what happens next.
func (r *Report) Class() v1alpha1.Class { return r.Reason.Class() }

// Wrote reports whether files of the gateway were changed.
func (r *Report) Wrote() bool { return r.Files.Added+r.Files.Modified+r.Files.Deleted > 0 }

// String returns one line for a terminal or a log.
func (r *Report) String() string {
	text := string(r.Phase)
	if string(r.Reason) != text {
		text += "/" + string(r.Reason)
	}
	if r.Message != "" {
		text += ": " + r.Message
	}
	return text
}

// MarshalJSON writes durations as text ("1.2s").
func (r *Report) MarshalJSON() ([]byte, error) {
	type plain Report
	type scan struct {
		ScanOutcome
		Duration string `json:"duration"`
	}
	steps := make(map[string]string, len(r.Steps))
	for k, d := range r.Steps {
		steps[k] = short(d).String()
	}
	scans := make([]scan, len(r.Scans))
	for i, s := range r.Scans {
		scans[i] = scan{s, s.Duration.String()}
	}
	return json.Marshal(struct {
		*plain
		Duration string            `json:"duration"`
		Steps    map[string]string `json:"steps,omitempty"`
		Scans    []scan            `json:"scans,omitempty"`
	}{(*plain)(r), short(r.Duration).String(), steps, scans})
}

// short rounds a duration for display.
func short(d time.Duration) time.Duration {
	switch {
	case d > 10*time.Second:
		return d.Round(100 * time.Millisecond)
	case d > 10*time.Millisecond:
		return d.Round(time.Millisecond)
	default:
		return d.Round(10 * time.Microsecond)
	}
}

// setOutcome records err as the outcome.
func (r *Report) setOutcome(err error) {
	if err == nil {
		return
	}
	r.Err = err
	r.Reason = failure.Reason(err, v1alpha1.ReasonWriteFailed)
	r.Message = err.Error()
	switch r.Reason.Class() {
	case v1alpha1.ClassHeld, v1alpha1.ClassDone: // ClassDone: paused
		if r.Phase = v1alpha1.GatewayHeld; r.failHeld {
			r.Phase = v1alpha1.GatewayError
		}
	case v1alpha1.ClassWorking:
		if r.Phase != v1alpha1.GatewayApplied {
			r.Phase = v1alpha1.GatewayPending
		}
	default:
		r.Phase = v1alpha1.GatewayError
	}
}

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
	d.Add(changes, disk.MaxDiff)
	b, err := json.Marshal(d)
	if err != nil {
		return "", err
	}
	return j.in.dir.AddDiff(d.Gateway, d.Timestamp, b)
}
