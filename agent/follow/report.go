package follow

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/agent/audit"
	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/internal/failure"
)

// Bounds of a report, in bytes or (maxProjects, maxPaths, maxNotes, maxHistory) in items. The API allows a little more. With its metadata,
// but without managedFields, a report has at most 4 KiB.
const (
	maxStatus     = 3 << 10
	maxMessage    = 640
	maxRef        = 255
	maxName       = 253
	maxRequest    = 64
	maxForce      = 256
	maxWord       = 63
	maxProjects   = 32
	maxProject    = 128
	maxPaths      = 10
	maxPath       = 256
	maxScan       = 200
	maxNotes      = 8
	maxNote       = 256
	maxHistory    = 10
	maxHistoryRef = 64
	maxList       = 1 << 10 // of all items of a list
	maxURL        = 512
	maxProposal   = 600 // of the encoded proposal
)

// compose returns the report for a state. was is the previous report: fields about the last sync that did something come from it until
// another sync does something.
func (f *Follower) compose(was v1alpha1.SyncReportStatus, s loop.State) v1alpha1.SyncReportStatus {
	r := v1alpha1.SyncReportStatus{
		Format: v1alpha1.ReportFormat, Gateway: f.Gateway, GatewayDetails: v1alpha1.GatewayDetails{AgentVersion: f.Version, Notes: was.Notes},
		Phase: s.Phase, Reason: s.Reason, Message: s.Message,
		HandledRequest: was.HandledRequest, HandledForceSync: was.HandledForceSync,
		Started: was.Started, Duration: was.Duration, Files: was.Files, Projects: was.Projects, Scan: was.Scan,
	}
	if !s.Commit.IsZero() {
		r.Commit = s.Commit.String()
	}
	if o := f.current.order; o != nil {
		r.Profile, r.Ref, r.Revision, r.Generation, r.Term, r.Paused = o.Profile.Profile, o.Ref, o.Revision, o.Generation, o.Term, o.Profile.Paused
		if !o.Commit.IsZero() {
			r.Target = o.Commit.String()
		}
	}
	if r.HandledForceSync == "" {
		r.HandledForceSync = f.record.force
	}
	if in := f.reportTarget; in != nil { // the problem is the answer to its request
		r.Ref, r.Revision, r.Generation, r.Term, r.HandledRequest = in.Ref, in.Revision, in.Generation, in.Term, in.RequestedAt
		r.Paused = r.Paused || f.current.order == nil && in.paused // otherwise the order in force decides
		r.Target = ""
		if !in.Commit.IsZero() {
			r.Target = in.Commit.String()
		}
	}
	if s.Phase != v1alpha1.GatewaySyncing && s.Report != nil && s.Of != nil {
		addOutcome(&r, was, s)
		if f.current.order != nil && s.Of != f.current.order && len(s.Problems) == 0 && s.Phase != v1alpha1.GatewayPending {
			// The agent was stopped before the sync began. The outcome of an earlier order does not apply to this one.
			r.Phase, r.Reason, r.Message = v1alpha1.GatewayPending, v1alpha1.ReasonProgressing, "the sync of the current target has not begun"
		}
	}
	if f.reportTarget != nil && len(s.Problems) == 0 && r.Phase.Synced() { // the next iteration reports that the gateway has gone back
		r.Phase, r.Reason, r.Message = v1alpha1.GatewayPending, v1alpha1.ReasonProgressing, "the gateway goes back to "+s.Commit.Short()
	}
	if p := f.current.planned; p != nil && s.Reason == v1alpha1.ReasonDryRun && r.Target == p.commit {
		r.Planned = p.commit
	}
	if s.Drift != nil {
		r.Drift.Files = count(s.Drift.Files)
		for _, p := range s.Drift.Paths[:min(len(s.Drift.Paths), maxPaths)] {
			r.Drift.Paths = append(r.Drift.Paths, string(p.What)+" "+p.Path)
		}
	}
	addPast(&r, was, s)
	boundReport(&r)
	return r
}

// addPast adds what earlier syncs left: snapshots, the history, the automatic rollback and the proposal. Until the agent has synced, they are
// those of the previous report, which may be from an earlier agent of this pod.
func addPast(r *v1alpha1.SyncReportStatus, was v1alpha1.SyncReportStatus, s loop.State) {
	r.Proposal, r.SyncHistory = s.Proposal, was.SyncHistory
	if s.Report == nil {
		r.LastSnapshot, r.AutoRollback = was.LastSnapshot, was.AutoRollback
		if s.Proposal == nil {
			r.Proposal = was.Proposal
		}
		return
	}
	if n := len(s.Snapshots); n > 0 {
		newest := s.Snapshots[n-1]
		at := metav1.NewTime(newest.Time)
		r.LastSnapshot = &v1alpha1.GatewaySnapshot{ID: newest.ID, Size: syntax.SizeText(newest.Bytes), Timestamp: &at, Stored: newest.Stored}
	}
	if s.Report.History != nil {
		r.SyncHistory = syncHistory(s.Report.History)
	}
	if s.Report.AutoRollback != nil {
		r.AutoRollback = s.Report.AutoRollback.Commit.String()
	}
}

// addOutcome adds what a sync did and which requests it handled.
func addOutcome(r *v1alpha1.SyncReportStatus, was v1alpha1.SyncReportStatus, s loop.State) {
	rep := s.Report
	failed := rep.Err != nil && rep.Class() != v1alpha1.ClassWorking // to wait for a starting gateway is not a failure
	if rep.Wrote() || failed || len(rep.Scans) > 0 {
		started := metav1.NewTime(rep.Started.UTC().Truncate(time.Second))
		r.Started, r.Duration = &started, rep.Duration.Round(time.Millisecond).String()
		r.Files = v1alpha1.FileCounts{Added: count(rep.Files.Added), Modified: count(rep.Files.Modified),
			Deleted: count(rep.Files.Deleted), Kept: count(rep.Files.Kept), Saved: count(rep.Files.Saved)}
		r.Scan, r.Notes = scanText(rep), rep.Notes
		if len(rep.Projects) > 0 {
			r.Projects = rep.Projects
		}
	} else if rep.Err == nil && r.Phase == was.Phase && r.Reason == was.Reason && r.Commit == was.Commit && r.Target == was.Target {
		r.Message = was.Message // an idle sync is not worth a new message
	}
	if rep.Phase.Synced() || rep.Reason == v1alpha1.ReasonRestored || rep.Reason == v1alpha1.ReasonRolledBack {
		r.HandledForceSync = s.Of.Force
	}
	if len(s.Problems) > 0 {
		return
	}
	switch rep.Class() {
	case v1alpha1.ClassDone, v1alpha1.ClassHeld, v1alpha1.ClassStalled:
		r.HandledRequest = s.Of.RequestedAt
	case v1alpha1.ClassWorking, v1alpha1.ClassRetry, v1alpha1.ClassNotInjected:
	}
}

// syncHistory returns the history for the report, newest first. Programs on the gateway can change the audit record, so syncHistory bounds
// every field and drops records that are not valid.
func syncHistory(list []audit.Entry) []v1alpha1.SyncRecord {
	var out []v1alpha1.SyncRecord
	for _, a := range slices.Backward(list) {
		r := v1alpha1.SyncRecord{
			Timestamp: metav1.NewTime(a.Time.UTC().Truncate(time.Second)), Ref: failure.Cut(a.Ref, maxHistoryRef), Result: v1alpha1.Reason(failure.Cut(string(a.Reason), maxWord)),
			FilesChanged: count(a.Files.Added + a.Files.Modified + a.Files.Deleted), ProjectsSynced: count(a.Projects), Duration: failure.Cut(a.Duration, 32),
			SnapshotID: a.Snapshot,
		}
		if !a.Target.IsZero() {
			r.Commit = a.Target.String()
		}
		if validation.SyncRecordValid(&r) && len(out) < maxHistory {
			out = append(out, r)
		}
	}
	return out
}

// scanText returns how long each scan took, or why it failed.
func scanText(rep *sync.Report) string {
	var parts []string
	for _, s := range rep.Scans {
		if s.Reason == "" {
			parts = append(parts, s.Kind+" in "+s.Duration.Round(time.Millisecond).String())
		} else {
			parts = append(parts, s.Kind+" "+s.Reason)
		}
	}
	return strings.Join(parts, ", ")
}

// count returns n, limited to what a report can hold.
func count(n int) int32 { return int32(min(max(n, 0), math.MaxInt32)) }

// boundReport enforces the bounds of a report: it truncates texts and lists, and then drops what matters least until the report fits.
func boundReport(r *v1alpha1.SyncReportStatus) {
	for _, f := range []struct {
		text *string
		most int
	}{{&r.Gateway, maxName}, {&r.Profile, maxWord}, {&r.Message, maxMessage}, {&r.Ref, maxRef}, {&r.HandledRequest, maxRequest},
		{&r.HandledForceSync, maxForce}, {&r.Duration, 32}, {&r.Scan, maxScan}, {&r.AgentVersion, maxWord}} {
		*f.text = failure.Cut(*f.text, f.most)
	}
	r.Reason = v1alpha1.Reason(failure.Cut(string(r.Reason), maxWord))
	r.Projects = boundList(r.Projects, maxProjects, maxProject)
	r.Drift.Paths = boundList(r.Drift.Paths, maxPaths, maxPath)
	r.Notes = boundList(r.Notes, maxNotes, maxNote)
	r.Proposal = boundProposal(r.Proposal)
	for encodedSize(r) > maxStatus {
		switch p, d, h, n := len(r.Projects), len(r.Drift.Paths), len(r.SyncHistory), len(r.Notes); {
		case h > 0:
			r.SyncHistory = r.SyncHistory[:h-1]
		case p > 0 && p >= d:
			r.Projects = r.Projects[:p-1]
		case d > 0:
			r.Drift.Paths = r.Drift.Paths[:d-1]
		case n > 0:
			r.Notes = r.Notes[:n-1]
		case len(r.Message) > 0:
			r.Message = failure.Cut(r.Message, len(r.Message)/2)
		case len(r.Scan) > 0:
			r.Scan = ""
		case r.Proposal != nil && r.Proposal.Message != "":
			r.Proposal.Message = ""
		case r.LastSnapshot != nil:
			r.LastSnapshot = nil
		default:
			// The rest is too large only if it has characters that JSON encodes in six bytes each.
			r.Ref, r.HandledForceSync, r.Profile = failure.Cut(r.Ref, 32), "", ""
			return
		}
	}
}

// boundProposal returns a copy of a proposal of at most maxProposal bytes, without what the API server would refuse. It drops an address or a
// branch that is too long, because a part of it is of no use.
func boundProposal(p *v1alpha1.Proposal) *v1alpha1.Proposal {
	if p == nil {
		return nil
	}
	b := *p
	b.Reason, b.Message = v1alpha1.Reason(failure.Cut(string(b.Reason), maxWord)), failure.Cut(b.Message, maxProposal/2)
	b.Number, b.Files, b.Refused = max(b.Number, 0), max(b.Files, 0), max(b.Refused, 0)
	if b.Commit != strings.ToLower(b.Commit) || !syntax.IsCommit(b.Commit) {
		b.Commit = ""
	}
	if len(b.Branch) > maxRef || syntax.RefProblem(b.Branch) != "" {
		b.Branch = ""
	}
	if len(b.URL) > maxURL || !utf8.ValidString(b.URL) {
		b.URL = ""
	}
	for encodedSize(b) > maxProposal {
		switch {
		case b.Message != "":
			b.Message = failure.Cut(b.Message, len(b.Message)/2)
		case b.URL != "":
			b.URL = ""
		default:
			b.Branch, b.State = "", v1alpha1.ProposalState(failure.Cut(string(b.State), maxWord))
			return &b
		}
	}
	return &b
}

// boundList returns at most the first most items, each of at most the given bytes, and together at most maxList bytes.
func boundList(items []string, most, each int) []string {
	var out []string
	total := 0
	for _, s := range items[:min(len(items), most)] {
		s = failure.Cut(s, each)
		if total += len(s); total > maxList {
			break
		}
		out = append(out, s)
	}
	return out
}

// encodedSize returns the size of v in JSON.
func encodedSize(v any) int {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("a report cannot be encoded: %v", err)) // impossible: the report holds only text and numbers
	}
	return len(b)
}
