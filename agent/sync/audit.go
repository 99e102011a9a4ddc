package sync

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/record"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
)

// AuditSchema is the version of the fields of Audit. It increases when a field is removed or changes its meaning.
const AuditSchema = 1

// Audit is the record of a sync that changed a gateway, or failed. docs/how-to/audit.md describes it.
type Audit struct {
	Schema      int       `json:"schema"`
	Time        time.Time `json:"time"`
	Namespace   string    `json:"namespace,omitempty"`
	GatewaySync string    `json:"gatewaySync,omitempty"`
	Gateway     string    `json:"gateway"`
	// From and To are the commits on the gateway before and after the sync, Target is the requested one.
	From   plan.ID `json:"from,omitzero"`
	To     plan.ID `json:"to,omitzero"`
	Target plan.ID `json:"target"`
	Ref    string  `json:"ref"`
	// Request is who requested the ref.
	Request
	// Restore and Retry are the values of the annotations that requested the sync, or "".
	Restore string `json:"restore,omitempty"`
	Retry   string `json:"retry,omitempty"`
	// Author is the author of the target, as git has it.
	Author string          `json:"author,omitempty"`
	Files  AuditFiles      `json:"files"`
	Result Phase           `json:"result"`
	Reason v1alpha1.Reason `json:"reason"`
	// AutoRollback describes the automatic rollback; nil if there was none.
	AutoRollback *AutoRollback `json:"autoRollback,omitempty"`
	// Diff is the id of the report of what the sync changed; "" if there is none.
	Diff string `json:"diff,omitempty"`
	// Snapshot is the id of the snapshot of what the sync displaced; "" if there is none.
	Snapshot string `json:"snapshot,omitempty"`
	// Projects is how many projects the sync made the gateway load, and ProjectNames has the first of them.
	Projects     int      `json:"projects,omitempty"`
	ProjectNames []string `json:"projectNames,omitempty"`
	// Message explains a result other than Synced.
	Message  string `json:"message,omitempty"`
	Duration string `json:"duration"`
}

// AuditFiles are numbers of files.
type AuditFiles struct {
	Added    int `json:"added"`
	Modified int `json:"modified"`
	Deleted  int `json:"deleted"`
	Saved    int `json:"saved"` // to lost+found
}

// Request says who requested the ref of a target, unless it is spec.git.ref, and who approved its commit.
type Request struct {
	By         string `json:"requestedBy,omitempty"`
	For        string `json:"requestedFor,omitempty"`
	At         string `json:"requestedAt,omitempty"`
	ApprovedBy string `json:"approvedBy,omitempty"`
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
	last     *auditedFailure
	restored bool // a snapshot was restored
}

// record records a sync that wrote files, or failed in another way than the one before it.
func (j auditor) record() {
	r := j.in.r
	class := r.Class()
	failed := r.Err != nil && (class == v1alpha1.ClassStalled || class == v1alpha1.ClassRetry)
	failure := auditedFailure{r.Target, r.Reason}
	if !r.Wrote() && (!failed || *j.last == failure) {
		return
	}
	*j.last = auditedFailure{}
	if failed {
		*j.last = failure
	}
	a := Audit{
		Schema: AuditSchema, Time: r.Started.UTC().Truncate(time.Second),
		Namespace: j.in.t.Facts.Namespace, GatewaySync: j.in.t.Facts.CRName, Gateway: line(j.in.t.Facts.GatewayName, 253),
		From: j.in.from, To: r.Commit, Target: r.Target, Ref: line(r.Ref, 255),
		Request: Request{By: line(j.in.t.Request.By, 64), For: line(j.in.t.Request.For, 512), At: line(j.in.t.Request.At, 64),
			ApprovedBy: line(j.in.t.Request.ApprovedBy, 512)},
		Files:    AuditFiles{Added: r.Files.Added, Modified: r.Files.Modified, Deleted: r.Files.Deleted, Saved: r.Files.Saved},
		Projects: len(r.Projects), Result: r.Phase, Reason: r.Reason, AutoRollback: r.AutoRollback,
		Duration: r.Duration.Round(time.Millisecond).String(),
	}
	for _, name := range r.Projects[:min(len(r.Projects), maxProjectNames)] {
		a.ProjectNames = append(a.ProjectNames, line(name, 64))
	}
	if r.Reason == v1alpha1.ReasonRestored || j.restored && r.AutoRollback == nil {
		a.Restore = line(j.in.t.Restore, 512)
	}
	if annotation.Retries(j.in.t.Retry, r.Target.String()) {
		a.Retry = line(j.in.t.Retry, 128)
	}
	if author, err := j.in.Store.Author(r.Target); err == nil { // after a restore, the store may lack the target
		a.Author = line(author, 255)
	}
	if r.Reason != v1alpha1.ReasonSynced {
		a.Message = line(r.Message, 512)
	}
	if n := len(r.Snapshots); n > 0 && r.Wrote() && !r.Snapshots[n-1].Time.Before(a.Time) {
		a.Snapshot = r.Snapshots[n-1].ID
	}
	if r.Wrote() && r.Changes != nil && a.Gateway != "" {
		var err error
		if a.Diff, err = j.saveDiff(r.Changes); err != nil {
			j.in.note("there is no report of what this sync changed: %v", err)
		}
	}
	earlier := j.history() // read before the record has this sync
	j.records.history = slices.Concat(earlier[max(0, len(earlier)-maxHistory+1):], []Audit{a})
	b, err := json.Marshal(a)
	if err == nil {
		j.in.Log.Info("audit", "record", string(b))
		err = j.in.dir.AddAudit(b)
	}
	if err != nil {
		j.in.note("the audit record on the data volume lacks this sync; the log has it: %v", err)
	}
}

// maxHistory is the number of syncs in a report's history, and maxProjectNames that of the projects that a record names.
const maxHistory, maxProjectNames = 10, 8

// history returns the last syncs of the audit record, oldest first. They outlive the pod.
func (j auditor) history() []Audit {
	if !j.records.historyRead {
		raw, err := disk.ReadAudit(j.in.DataDir)
		if err != nil {
			j.in.Log.Warn("audit record unreadable", "error", err)
		}
		j.records.history, j.records.historyRead = lastEntries(raw, j.in.t.Facts.GatewayName), true
	}
	return j.records.history
}

// lastEntries returns the last entries of a gateway, oldest first. The gateway can write anything to the record.
func lastEntries(raw []byte, gateway string) []Audit {
	var list []Audit
	for len(raw) > 0 && len(list) < maxHistory {
		lastLine := bytes.LastIndexByte(bytes.TrimSuffix(raw, []byte("\n")), '\n') + 1
		var a Audit
		if json.Unmarshal(raw[lastLine:], &a) == nil && a.Schema >= 1 && a.Gateway == gateway {
			list = append(list, a)
		}
		raw = raw[:lastLine]
	}
	slices.Reverse(list)
	return list
}

// line returns at most n bytes of a text as one line.
func line(text string, n int) string {
	text = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, "�"), func(r rune) bool { return r < ' ' || r == 0x7f }), " ")
	return strings.ToValidUTF8(text[:min(len(text), n)], "") // not half a rune
}

type (
	// Diff is what a sync changed.
	Diff = record.Diff
	// DiffChange is what it changed in one file.
	DiffChange = record.DiffChange
	// Checksum is git's id of the content of a file before and after it.
	Checksum = record.Checksum
)

// saveDiff saves the report of what the sync changed on the data volume, and returns its id.
func (j auditor) saveDiff(changes *plan.Changes) (string, error) {
	r := j.in.r
	d := record.Diff{
		Schema: AuditSchema, Gateway: j.in.t.Facts.GatewayName, Timestamp: r.Started.UTC().Truncate(time.Second), FromCommit: j.in.from, ToCommit: r.Commit,
		FilesAdded: r.Files.Added, FilesModified: r.Files.Modified, FilesDeleted: r.Files.Deleted,
	}
	d.Add(changes, disk.MaxDiff)
	b, err := json.Marshal(d)
	if err != nil {
		return "", err
	}
	return j.in.dir.AddDiff(d.Gateway, d.Timestamp, b)
}
