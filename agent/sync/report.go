package sync

import (
	"encoding/json"
	"time"

	"stoker.io/stoker/agent/audit"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
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
	// Commit is the commit in the manifest, never ahead of the disk. Target is the requested one.
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
	// NewSnapshots and NewBackups are the ids of those that this sync made, to upload them. A repair reports none.
	NewSnapshots, NewBackups []string `json:"-"`
	// History are the last syncs that changed the gateway or failed, oldest first; nil if they are unknown.
	History []audit.Entry `json:"-"`
	// AutoRollback is nil unless a commit is blocked because of an automatic rollback.
	AutoRollback *audit.AutoRollback `json:"autoRollback,omitempty"`
	// Changes is the plan; nil if the sync made none. loop.State serves its text.
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

// maxMessage bounds the message of an error in bytes. The history of the agent's state keeps several.
const maxMessage = 4 << 10

// setOutcome records err as the outcome.
func (r *Report) setOutcome(err error) {
	if err == nil {
		return
	}
	r.Err = err
	r.Reason = failure.Reason(err, v1alpha1.ReasonWriteFailed)
	r.Message = failure.Cut(err.Error(), maxMessage)
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
