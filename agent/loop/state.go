package loop

import (
	"slices"
	gosync "sync"
	"time"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// State is the agent's state as served by /state. It contains no file contents and no secrets.
type State struct {
	Version     string          `json:"version,omitempty"`
	GatewaySync string          `json:"gatewaySync"`
	GatewayName string          `json:"gateway"`
	Profile     string          `json:"profile,omitempty"`
	Repo        string          `json:"repo,omitempty"` // without credentials
	Phase       sync.Phase      `json:"phase"`
	Reason      v1alpha1.Reason `json:"reason"`
	Message     string          `json:"message"`
	// Ref is the desired ref and Target its commit; Commit is on the disk.
	Ref    string  `json:"ref,omitempty"`
	Target plan.ID `json:"target"`
	Commit plan.ID `json:"commit"`
	// Problems are errors that keep the agent from following, such as an unreadable file or a ref that does not
	// resolve. The last good spec and commit stay in force.
	Problems []Problem    `json:"problems,omitempty"`
	Report   *sync.Report `json:"report,omitempty"`
	// Plan has the lines of the last plan's text.
	Plan  []string    `json:"plan,omitempty"`
	Drift *disk.Drift `json:"drift,omitempty"`
	// Proposal is where the proposal of the gateway's changes stands; nil if there is none.
	Proposal *v1alpha1.Proposal `json:"proposal,omitempty"`
	// Snapshots are those on the data volume and in object storage, oldest first.
	Snapshots []Snapshot `json:"snapshots,omitempty"`
	History   []Past     `json:"history,omitempty"` // newest first
	// Of is the order of Report, or nil before the first sync.
	Of *Order `json:"-"`
}

// Problem is an error with its reason.
type Problem struct {
	Reason  v1alpha1.Reason `json:"reason"`
	Message string          `json:"message"`
}

// NewProblem returns err as a Problem. fallback is the reason if err has none.
func NewProblem(err error, fallback v1alpha1.Reason) Problem {
	return Problem{failure.Reason(err, fallback), err.Error()}
}

// Past is a sync that did something or failed.
type Past struct {
	At       time.Time       `json:"at"`
	Ref      string          `json:"ref"`
	Commit   plan.ID         `json:"commit"`
	Phase    sync.Phase      `json:"phase"`
	Reason   v1alpha1.Reason `json:"reason"`
	Message  string          `json:"message"`
	Duration string          `json:"duration"`
	Files    sync.Counts     `json:"files"`
}

const maxHistory = 20

// board passes the state from the loop to other goroutines.
type board struct {
	mu    gosync.Mutex
	now   State
	since time.Time // start of the running iteration; zero between iterations
}

// iterating records that an iteration began at t, or with a zero t that it ended.
func (b *board) iterating(t time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.since = t
}

// busy returns how long the running iteration has taken.
func (b *board) busy(now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.since.IsZero() {
		return 0
	}
	return now.Sub(b.since)
}

// State returns the current state.
func (l *Loop) State() State {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	s := l.state.now
	s.History = slices.Clone(s.History)
	return s
}

// publish publishes the loop's state.
func (l *Loop) publish() {
	l.state.mu.Lock()
	previous := l.state.now
	s := l.compose(previous)
	l.state.now = s
	l.state.mu.Unlock()
	l.Tell(s)
}

// working publishes that a sync is running, because the last outcome is no longer valid while files move.
func (l *Loop) working(o *Order) {
	l.sync.working = true
	l.state.mu.Lock()
	s := &l.state.now
	s.Phase, s.Reason, s.Message = sync.Syncing, v1alpha1.ReasonProgressing, "syncing to "+o.Commit.Short()
	s.Ref, s.Target = o.Ref, o.Commit
	now := *s
	now.History = slices.Clone(now.History)
	l.state.mu.Unlock()
	l.Working(now)
}

func (l *Loop) compose(previous State) State {
	s := State{Version: l.Version, GatewayName: l.Gateway, History: previous.History, Drift: l.drift.last,
		Phase: sync.Pending, Reason: v1alpha1.ReasonProgressing, Message: "starting"}
	if o := l.decision.Order; o != nil {
		s.GatewaySync, s.Profile, s.Repo = o.GatewaySync, o.Profile.Profile, o.Repo
		s.Ref, s.Target = o.Ref, o.Commit
	}
	s.Commit, s.Proposal, s.Snapshots = l.onDisk, l.back.shown, l.snapshots()
	if r := l.sync.report; r != nil {
		s.Phase, s.Reason, s.Message, s.Commit, s.Report, s.Of = r.Phase, r.Reason, r.Message, r.Commit, r, l.sync.of
		s.Plan = l.sync.plan
		if previous.Report != r && (s.Plan != nil || r.Err != nil) {
			s.History = remember(s.History, r)
		}
	}
	if r := l.sync.stopped; r != nil {
		s.Phase, s.Reason, s.Commit = sync.Pending, v1alpha1.ReasonProgressing, r.Commit
		s.Message = "stopped during the sync to " + r.Target.Short() + "; the next start goes on with it"
	}
	if l.drift.failures >= unseen && s.Reason.Class() == v1alpha1.ClassDone && (s.Phase == sync.Synced || s.Phase == sync.Standby) {
		s.Phase, s.Reason = sync.Error, failure.Reason(l.drift.failed, v1alpha1.ReasonWriteFailed)
		s.Message = "the files of " + s.Commit.Short() + " were written, but the agent cannot check whether they have changed since: " + l.drift.failed.Error()
	}
	s.Problems = l.decision.Problems
	for _, p := range s.Problems {
		// Never report Synced while the desired commit is unknown.
		s.Phase, s.Reason, s.Message = sync.Error, p.Reason, p.Message
		switch {
		case p.Reason.Class() == v1alpha1.ClassWorking:
			s.Phase = sync.Pending
		case p.Reason == v1alpha1.ReasonGateClosed, p.Reason == v1alpha1.ReasonApprovalNeeded, p.Reason == v1alpha1.ReasonPaused:
			s.Phase = sync.Held
		}
	}
	return s
}

// remember prepends r, unless it repeats the latest outcome.
func remember(h []Past, r *sync.Report) []Past {
	p := Past{At: r.Started.UTC(), Ref: r.Ref, Commit: r.Target, Phase: r.Phase, Reason: r.Reason, Message: r.Message,
		Duration: r.Duration.Round(time.Millisecond).String(), Files: r.Files}
	if len(h) > 0 && h[0].Commit == p.Commit && h[0].Reason == p.Reason && h[0].Message == p.Message && !r.Wrote() {
		return h
	}
	h = append([]Past{p}, h...)
	return h[:min(len(h), maxHistory)]
}

// Line returns the state as one line for a terminal.
func (s State) Line() string {
	line := string(s.Phase)
	if string(s.Reason) != line {
		line += "/" + string(s.Reason)
	}
	if !s.Commit.IsZero() {
		line += " at " + s.Commit.Short()
	}
	if s.Ref != "" {
		line += " (" + s.Ref + ")"
	}
	if s.Message != "" {
		line += ": " + s.Message
	}
	if s.Drift != nil && s.Drift.Files > 0 {
		line += "; drift: " + driftText(*s.Drift)
	}
	return line
}

// DryRun reports whether the state is that of a successful dry run.
func (s State) DryRun() bool {
	return s.Report != nil && s.Report.DryRun && s.Report.Err == nil && len(s.Problems) == 0
}
