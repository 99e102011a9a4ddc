package standalone

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

// State is what the agent says of itself; /state serves it. It holds no file contents and no secrets.
type State struct {
	Version     string          `json:"version,omitempty"`
	GatewaySync string          `json:"gatewaySync"`
	GatewayName string          `json:"gateway"`
	Profile     string          `json:"profile,omitempty"`
	Repo        string          `json:"repo,omitempty"` // without credentials
	Phase       sync.Phase      `json:"phase"`
	Reason      v1alpha1.Reason `json:"reason"`
	Message     string          `json:"message"`
	// Ref is the desired ref and Target what it resolved to; Commit lies on the disk.
	Ref    string  `json:"ref,omitempty"`
	Target plan.ID `json:"target"`
	Commit plan.ID `json:"commit"`
	// Problems are what keeps the agent from following: a file that cannot be read, a ref that does not resolve. The
	// last good spec and commit stay in force.
	Problems []Problem    `json:"problems,omitempty"`
	Report   *sync.Report `json:"report,omitempty"`
	// Plan is the last plan as people read it, line by line.
	Plan     []string    `json:"plan,omitempty"`
	Drift    *disk.Drift `json:"drift,omitempty"`
	History  []Past      `json:"history,omitempty"` // newest first
	TimedOut bool        `json:"-"`
}

// Problem is an error with its reason.
type Problem struct {
	Reason  v1alpha1.Reason `json:"reason"`
	Message string          `json:"message"`
}

// Past is a sync that did something, or failed.
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

// board hands the state from the loop to whoever asks.
type board struct {
	mu    gosync.Mutex
	now   State
	since time.Time // when the turn that is under way began; zero between turns
}

// turn notes that a turn began at t; zero that it ended.
func (b *board) turn(t time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.since = t
}

// busy is how long the turn that is under way has taken.
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

// publish makes the loop's state the one that is shown.
func (l *Loop) publish() {
	l.state.mu.Lock()
	previous := l.state.now
	s := l.compose(previous)
	l.state.now = s
	l.state.mu.Unlock()
	l.Tell(s)
}

// working shows that a sync is under way: what was said before of the gateway does not hold while files move.
func (l *Loop) working() {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	s := &l.state.now
	s.Phase, s.Reason, s.Message = sync.Syncing, v1alpha1.ReasonProgressing, "syncing to "+l.target.commit.Short()
	s.Ref, s.Target = l.target.ref, l.target.commit
}

func (l *Loop) compose(previous State) State {
	s := State{Version: l.Version, GatewayName: l.Gateway.Name, History: previous.History, Drift: l.drift.last,
		Phase: sync.Pending, Reason: v1alpha1.ReasonProgressing, Message: "starting"}
	if gs := l.spec.gs; gs != nil {
		s.GatewaySync, s.Profile, s.Repo = gs.Name, l.spec.effective.Profile, remoteName(gs)
		s.Ref, s.Target = l.target.ref, l.target.commit
	}
	s.Commit = l.onDisk
	if r := l.sync.report; r != nil {
		s.Phase, s.Reason, s.Message, s.Commit, s.Report = r.Phase, r.Reason, r.Message, r.Commit, r
		s.Plan = l.sync.plan
		if previous.Report != r && (s.Plan != nil || r.Err != nil) {
			s.History = remember(s.History, r)
		}
	}
	for _, p := range []struct {
		err      error
		fallback v1alpha1.Reason
	}{{l.target.err, v1alpha1.ReasonGitUnreachable}, {l.spec.err, v1alpha1.ReasonProfilesInvalid}} {
		if p.err == nil {
			continue
		}
		reason := failure.Reason(p.err, p.fallback)
		s.Problems = append(s.Problems, Problem{reason, p.err.Error()})
		// Never say Synced while it is not known whether that is still what is wanted.
		s.Phase, s.Reason, s.Message = sync.Error, reason, p.err.Error()
	}
	return s
}

// remember puts r in front, once for the same outcome in a row.
func remember(h []Past, r *sync.Report) []Past {
	p := Past{At: r.Started.UTC(), Ref: r.Ref, Commit: r.Target, Phase: r.Phase, Reason: r.Reason, Message: r.Message,
		Duration: r.Duration.Round(time.Millisecond).String(), Files: r.Files}
	if len(h) > 0 && h[0].Commit == p.Commit && h[0].Reason == p.Reason && h[0].Message == p.Message && !r.Wrote() {
		return h
	}
	h = append([]Past{p}, h...)
	return h[:min(len(h), maxHistory)]
}

// Line is the state in one line for a terminal.
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

// DryRun reports whether the state is that of a plan that was only printed.
func (s State) DryRun() bool {
	return s.Report != nil && s.Report.DryRun && s.Report.Err == nil && len(s.Problems) == 0
}
