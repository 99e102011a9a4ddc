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
	Version     string                    `json:"version,omitempty"`
	GatewaySync string                    `json:"gatewaySync"`
	GatewayName string                    `json:"gateway"`
	Profile     string                    `json:"profile,omitempty"`
	Repo        string                    `json:"repo,omitempty"` // without credentials
	Phase       v1alpha1.GatewaySyncState `json:"phase"`
	Reason      v1alpha1.Reason           `json:"reason"`
	Message     string                    `json:"message"`
	// Ref is the desired ref and Target its commit; Commit is on the disk.
	Ref    string  `json:"ref,omitempty"`
	Target plan.ID `json:"target"`
	Commit plan.ID `json:"commit"`
	// Problems are errors that prevent a new order, such as an unreadable file or a ref that does not resolve. The last
	// good spec and commit stay in force.
	Problems []Problem    `json:"problems,omitempty"`
	Report   *sync.Report `json:"report,omitempty"`
	// Plan has the lines of the last plan's text.
	Plan  []string    `json:"plan,omitempty"`
	Drift *disk.Drift `json:"drift,omitempty"`
	// Proposal is the state of the proposal of the gateway's changes; nil if there is none.
	Proposal *v1alpha1.Proposal `json:"proposal,omitempty"`
	// Snapshots are those on the data volume and in object storage, oldest first.
	Snapshots []Snapshot     `json:"snapshots,omitempty"`
	History   []HistoryEntry `json:"history,omitempty"` // newest first
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

// HistoryEntry is a sync that did something or failed.
type HistoryEntry struct {
	At       time.Time                 `json:"at"`
	Ref      string                    `json:"ref"`
	Commit   plan.ID                   `json:"commit"`
	Phase    v1alpha1.GatewaySyncState `json:"phase"`
	Reason   v1alpha1.Reason           `json:"reason"`
	Message  string                    `json:"message"`
	Duration string                    `json:"duration"`
	Files    sync.Counts               `json:"files"`
}

const maxHistory = 20

// publishedState passes the state from the loop to other goroutines.
type publishedState struct {
	mu             gosync.Mutex
	current        State
	iterationStart time.Time // of the running iteration; zero between iterations
}

// setIterationStart records that an iteration began at t or, if t is zero, that it ended.
func (s *publishedState) setIterationStart(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.iterationStart = t
}

// busy returns how long the running iteration has taken, or zero between iterations.
func (s *publishedState) busy(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.iterationStart.IsZero() {
		return 0
	}
	return now.Sub(s.iterationStart)
}

// State returns the current state.
func (l *Loop) State() State {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	s := l.state.current
	s.History = slices.Clone(s.History)
	return s
}

// publish publishes the state after an iteration.
func (l *Loop) publish() {
	l.state.mu.Lock()
	s := l.nextState(l.state.current.History)
	l.state.current = s
	l.state.mu.Unlock()
	l.OnState(s)
}

// working publishes that a sync is running, because the last outcome is no longer valid while files move.
func (l *Loop) working(o *Order) {
	l.attempt.working = true
	l.state.mu.Lock()
	s := &l.state.current
	s.Phase, s.Reason, s.Message = v1alpha1.GatewaySyncing, v1alpha1.ReasonProgressing, "syncing to "+o.Commit.Short()
	s.Ref, s.Target = o.Ref, o.Commit
	l.state.mu.Unlock()
	l.OnWorking(l.State())
}

// nextState returns the state after an iteration, with a history.
func (l *Loop) nextState(history []HistoryEntry) State {
	s := State{Version: l.Version, GatewayName: l.Gateway, History: history, Drift: l.drift.last,
		Phase: v1alpha1.GatewayPending, Reason: v1alpha1.ReasonProgressing, Message: "starting"}
	if o := l.decision.Order; o != nil {
		s.GatewaySync, s.Profile, s.Repo = o.GatewaySync, o.Profile.Profile, o.Repo
		s.Ref, s.Target = o.Ref, o.Commit
	}
	s.Commit, s.Proposal = l.onDisk, l.proposal
	if r := l.attempt.report; r != nil {
		s.Phase, s.Reason, s.Message, s.Commit, s.Report, s.Of = r.Phase, r.Reason, r.Message, r.Commit, r, l.attempt.order
		s.Plan, s.Snapshots = l.attempt.plan, l.uploads.snapshots(l.uploadJob(), r.Snapshots)
	}
	if r := l.attempt.interrupted; r != nil {
		s.Phase, s.Reason, s.Commit = v1alpha1.GatewayPending, v1alpha1.ReasonProgressing, r.Commit
		s.Message = "stopped during the sync to " + r.Target.Short() + "; the next start continues it"
	}
	if l.drift.failures >= maxFailedComparisons && s.Reason.Class() == v1alpha1.ClassDone && s.Phase.Synced() {
		s.Phase, s.Reason = v1alpha1.GatewayError, failure.Reason(l.drift.err, v1alpha1.ReasonWriteFailed)
		s.Message = "the files of " + s.Commit.Short() + " were written, but the agent cannot check whether they have changed since: " + l.drift.err.Error()
	}
	s.Problems = l.decision.Problems
	for _, p := range s.Problems {
		// Never report Synced while the desired commit is unknown.
		s.Phase, s.Reason, s.Message = v1alpha1.GatewayError, p.Reason, p.Message
		switch {
		case p.Reason.Class() == v1alpha1.ClassWorking, p.Reason == v1alpha1.ReasonDryRun:
			s.Phase = v1alpha1.GatewayPending
		case p.Reason == v1alpha1.ReasonGateClosed, p.Reason == v1alpha1.ReasonApprovalNeeded, p.Reason == v1alpha1.ReasonPaused:
			s.Phase = v1alpha1.GatewayHeld
		}
	}
	return s
}

// addHistory adds r to the history, unless it repeats the latest outcome.
func (s *publishedState) addHistory(r *sync.Report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.current.History
	e := HistoryEntry{At: r.Started.UTC(), Ref: r.Ref, Commit: r.Target, Phase: r.Phase, Reason: r.Reason, Message: r.Message,
		Duration: r.Duration.Round(time.Millisecond).String(), Files: r.Files}
	if len(h) > 0 && h[0].Commit == e.Commit && h[0].Reason == e.Reason && h[0].Message == e.Message && !r.Wrote() {
		return
	}
	h = append([]HistoryEntry{e}, h...)
	s.current.History = h[:min(len(h), maxHistory)]
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

// DryRun reports whether the last sync was a successful dry run.
func (s State) DryRun() bool {
	return s.Report != nil && s.Report.DryRun && s.Report.Err == nil && len(s.Problems) == 0
}
