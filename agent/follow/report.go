package follow

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
)

// Bounds of a report in bytes. The API allows a little more. With its metadata a report has at most 4 KiB.
const (
	maxStatus   = 3 << 10
	maxMessage  = 640
	maxRef      = 255
	maxName     = 253
	maxRequest  = 64
	maxForce    = 256
	maxWord     = 63
	maxProjects = 32
	maxProject  = 128
	maxPaths    = 10
	maxPath     = 256
	maxScan     = 200
	maxList     = 1 << 10 // of all items of a list
)

// compose returns the report for a state. Fields about the last sync that did something are kept from the previous report until
// another one does something.
func (f *Follower) compose(was v1alpha1.SyncReportStatus, s loop.State) v1alpha1.SyncReportStatus {
	r := v1alpha1.SyncReportStatus{
		Format: v1alpha1.ReportFormat, Gateway: f.Gateway, AgentVersion: f.Version,
		Phase: s.Phase, Reason: s.Reason, Message: s.Message,
		HandledRequest: was.HandledRequest, HandledForceSync: was.HandledForceSync,
		Started: was.Started, Duration: was.Duration, Files: was.Files, Projects: was.Projects, Scan: was.Scan,
	}
	if !s.Commit.IsZero() {
		r.Commit = s.Commit.String()
	}
	if o := f.order; o != nil {
		r.Profile, r.Ref, r.Revision, r.Generation, r.Term, r.Paused = o.Profile.Profile, o.Ref, o.Revision, o.Generation, o.Term, o.Profile.Paused
		if !o.Commit.IsZero() {
			r.Target = o.Commit.String()
		}
	}
	if in := f.judged; in != nil { // the request cannot be carried out, which is the answer to it
		r.Ref, r.Revision, r.Generation, r.Term, r.HandledRequest = in.Ref, in.Revision, in.Generation, in.Term, in.RequestedAt
		r.Paused = r.Paused || f.order == nil && in.paused // otherwise the order in force decides
		r.Target = ""
		if !in.Commit.IsZero() {
			r.Target = in.Commit.String()
		}
	}
	if s.Phase != sync.Syncing && s.Report != nil && s.Of != nil {
		outcome(&r, was, s)
		if f.order != nil && s.Of != f.order && len(s.Problems) == 0 && s.Phase != sync.Pending {
			// The agent was stopped before the sync began. The outcome of an earlier order does not apply to this one.
			r.Phase, r.Reason, r.Message = sync.Pending, v1alpha1.ReasonProgressing, "what is wanted now was not begun with"
		}
	}
	if s.Drift != nil {
		r.Drift.Files = count(s.Drift.Files)
		for _, p := range s.Drift.Paths[:min(len(s.Drift.Paths), maxPaths)] {
			r.Drift.Paths = append(r.Drift.Paths, string(p.What)+" "+p.Path)
		}
	}
	bound(&r)
	return r
}

// outcome adds what a sync did and which requests it handled.
func outcome(r *v1alpha1.SyncReportStatus, was v1alpha1.SyncReportStatus, s loop.State) {
	rep := s.Report
	failed := rep.Err != nil && rep.Class() != v1alpha1.ClassWorking // waiting for a gateway that starts counts as doing nothing
	if rep.Wrote() || failed || len(rep.Scans) > 0 {
		started := metav1.NewTime(rep.Started.UTC().Truncate(time.Second))
		r.Started, r.Duration = &started, rep.Duration.Round(time.Millisecond).String()
		r.Files = v1alpha1.FileCounts{Added: count(rep.Files.Added), Modified: count(rep.Files.Modified),
			Deleted: count(rep.Files.Deleted), Kept: count(rep.Files.Kept)}
		r.Scan = scanned(rep)
		if len(rep.Projects) > 0 {
			r.Projects = rep.Projects
		}
	} else if rep.Err == nil && r.Phase == was.Phase && r.Reason == was.Reason && r.Commit == was.Commit && r.Target == was.Target {
		r.Message = was.Message // an idle sync is not worth a new message
	}
	if len(s.Problems) > 0 {
		return
	}
	switch rep.Class() {
	case v1alpha1.ClassDone, v1alpha1.ClassHeld, v1alpha1.ClassStalled:
		r.HandledRequest = s.Of.RequestedAt
	case v1alpha1.ClassWorking, v1alpha1.ClassRetry, v1alpha1.ClassNotInjected:
	}
	if rep.Phase == sync.Synced || rep.Phase == sync.Standby {
		r.HandledForceSync = s.Of.ForceID
	}
}

func scanned(rep *sync.Report) string {
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

func count(n int) int32 { return int32(min(max(n, 0), math.MaxInt32)) }

// bound enforces the bounds of a report.
func bound(r *v1alpha1.SyncReportStatus) {
	for _, f := range []struct {
		text *string
		most int
	}{{&r.Gateway, maxName}, {&r.Profile, maxWord}, {&r.Message, maxMessage}, {&r.Ref, maxRef}, {&r.HandledRequest, maxRequest},
		{&r.HandledForceSync, maxForce}, {&r.Duration, 32}, {&r.Scan, maxScan}, {&r.AgentVersion, maxWord}} {
		*f.text = clip(*f.text, f.most)
	}
	r.Reason = v1alpha1.Reason(clip(string(r.Reason), maxWord))
	r.Projects = list(r.Projects, maxProjects, maxProject)
	r.Drift.Paths = list(r.Drift.Paths, maxPaths, maxPath)
	for size(r) > maxStatus {
		switch p, d := len(r.Projects), len(r.Drift.Paths); {
		case p > 0 && p >= d:
			r.Projects = r.Projects[:p-1]
		case d > 0:
			r.Drift.Paths = r.Drift.Paths[:d-1]
		case len(r.Message) > 0:
			r.Message = clip(r.Message, len(r.Message)/2)
		case len(r.Scan) > 0:
			r.Scan = ""
		default:
			// The rest is too large only with characters that JSON encodes in six bytes each.
			r.Ref, r.HandledForceSync, r.Profile = clip(r.Ref, 32), "", ""
			return
		}
	}
}

// list bounds a list and each of its items.
func list(items []string, most, each int) []string {
	var out []string
	total := 0
	for _, s := range items[:min(len(items), most)] {
		s = clip(s, each)
		if total += len(s); total > maxList {
			break
		}
		out = append(out, s)
	}
	return out
}

// clip truncates text to n bytes at a whole character, and marks that with an ellipsis.
func clip(text string, n int) string {
	text = strings.ToValidUTF8(text, "�")
	if len(text) <= n {
		return text
	}
	const more = "…"
	cut := max(n-len(more), 0)
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	if n < len(more) {
		return text[:cut]
	}
	return text[:cut] + more
}

// size returns the encoded size of a report.
func size(r *v1alpha1.SyncReportStatus) int {
	b, err := json.Marshal(r)
	if err != nil {
		panic(fmt.Sprintf("a report cannot be encoded: %v", err)) // impossible: the report holds only text and numbers
	}
	return len(b)
}
