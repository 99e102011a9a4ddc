package propose

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"stoker.io/stoker/agent/decide"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/failure"
)

// shown is what operators see of a proposal.
type shown struct {
	now     v1alpha1.Proposal
	failure v1alpha1.Proposal // Reason and Message of the last attempt if it failed
}

// proposal returns a copy, or nil if there is nothing to show.
func (v *shown) proposal() *v1alpha1.Proposal {
	if v.now.State == "" && v.now.Reason == "" {
		return nil
	}
	now := v.now
	return &now
}

// set shows what a move shows.
func (v *shown) set(log *slog.Logger, s *Settings, r *record, c *Changes, changed int, m decide.Move) {
	switch m.Do {
	case decide.Show:
		v.setRecorded(r)
	case decide.Settle:
		v.setState(s, r, v1alpha1.ProposalSettling, changed, fmt.Sprintf("%d changed files; waiting until nothing changes for %s", changed, s.Debounce))
	case decide.Refuse:
		v.setRefused(log, r, c)
	case decide.Withhold:
		v.setState(s, r, v1alpha1.ProposalClosed, len(c.Files), "the pull request with these changes was closed; another change, or --renew, is proposed again")
	case decide.Retry:
		if v.now.State != v1alpha1.ProposalPushing && v.now.State != v1alpha1.ProposalForeign {
			v.now.State, v.now.Message = v1alpha1.ProposalPushing, "the last attempt failed; the next one is at "+m.At.UTC().Format(time.TimeOnly)
		}
	case decide.Throttle:
		v.now.State = v1alpha1.ProposalSettling
		v.now.Message = fmt.Sprintf("%d pushes within an hour: the next one is at %s", decide.MaxPushes, m.At.UTC().Format("15:04"))
	}
}

// setState shows a state of the changes on the disk.
func (v *shown) setState(s *Settings, r *record, state v1alpha1.ProposalState, files int, message string) {
	v.now = v1alpha1.Proposal{State: state, Branch: s.Branch, URL: r.URL, Number: r.Number, Files: int32(files), Message: message}
}

// setFailed adds a failure to what is shown.
func (v *shown) setFailed(log *slog.Logger, reason v1alpha1.Reason, err error) {
	state := v.now.State
	if state == "" || state == v1alpha1.ProposalSettling { // what failed is the push, so the agent no longer waits for further changes
		state = v1alpha1.ProposalPushing
	}
	if reason == v1alpha1.ReasonBranchTaken {
		state = v1alpha1.ProposalForeign
	}
	v.setReason(log, reason, err)
	v.now.State = state
	v.failure = v.now
}

// setReason shows why changes are not proposed, and logs it if it is new.
func (v *shown) setReason(log *slog.Logger, reason v1alpha1.Reason, err error) {
	message := oneLine(err.Error(), 500)
	if v.now.Reason != reason || v.now.Message != message {
		log.Warn("changes not proposed", "reason", reason, "error", err)
	}
	v.now.Reason, v.now.Message = reason, message
}

// setProblem shows the record, with the reason why the agent cannot propose anything with these settings. Without a record there is no state,
// because the agent neither waits for the end of debounce nor pushes.
func (v *shown) setProblem(log *slog.Logger, r *record, err error) {
	reason := failure.Reason(err, v1alpha1.ReasonGitUnreachable)
	v.setReason(log, reason, err)
	message := v.now.Message
	v.setRecorded(r)
	if v.now.State == v1alpha1.ProposalPushing {
		v.now.State = ""
	}
	v.now.Reason, v.now.Message = reason, message
}

// setRefused shows why changes are refused, and logs it if it is new.
func (v *shown) setRefused(log *slog.Logger, r *record, c *Changes) {
	first := c.Refused[0]
	text := first.Path + " " + first.Why
	if n := len(c.Refused) - 1; n > 0 {
		text = fmt.Sprintf("%s; and %d more", text, n)
	}
	text = oneLine(text, 500)
	if v.now.State != v1alpha1.ProposalRefused || v.now.Message != text {
		log.Warn("changes refused", "files", len(c.Refused), "first", first.Path, "why", first.Why)
	}
	v.now = v1alpha1.Proposal{State: v1alpha1.ProposalRefused, Branch: r.Branch, URL: r.URL, Number: r.Number,
		Files: int32(len(c.Files)), Refused: int32(len(c.Refused)), Reason: v1alpha1.ReasonChangesRefused, Message: text}
}

// setRecorded shows the record, with the failure of the last attempt.
func (v *shown) setRecorded(r *record) {
	v.now = r.proposal()
	if v.now.Reason == "" && v.failure.Reason != "" {
		v.now.Reason, v.now.Message = v.failure.Reason, v.failure.Message
	}
}

// pauseAfter returns the pause after the nth failure in a row.
func pauseAfter(err error, reason v1alpha1.Reason, n int) time.Duration {
	class := reason.Class()
	if n == 1 && reason == v1alpha1.ReasonUnsupportedRepository { // a busy forge may not know the repository or the new branch for a moment
		class = v1alpha1.ClassRetry
	}
	asked, _ := backoff.Asked(err)
	return max(backoff.After(class, n, pollEvery), asked)
}

// proposal returns the record as operators see it.
func (r *record) proposal() v1alpha1.Proposal {
	st := v1alpha1.Proposal{Branch: r.Branch, Number: r.Number, URL: r.URL, Files: int32(len(r.Files))}
	if !r.Tip.IsZero() {
		st.Commit = r.Tip.String()
	}
	switch {
	case !r.active(): // no proposal was made, or the last one has ended
		st.State = r.LastState
	case r.FinalState != "": // the proposal ends: its pull request is still to be closed, or its branch to be deleted
		st.State = r.FinalState
	case r.Merged: // in git, but the gateway still runs an older commit
		st.State, st.Message = v1alpha1.ProposalMerged, "the gateway has not received the merge yet"
	case r.Foreign:
		st.State, st.Reason, st.Message = v1alpha1.ProposalForeign, v1alpha1.ReasonBranchTaken, "another author committed to the branch: the agent pushes nothing more until the pull request ends"
	case !r.Pending.IsZero(): // the server may have the commit or not: the push did not end
		st.State, st.Message = v1alpha1.ProposalPushing, "the push was interrupted; trying again"
	case r.Number > 0:
		st.State = v1alpha1.ProposalOpen
	default:
		st.State = v1alpha1.ProposalPushed
	}
	return st
}

// Summary is the recorded proposal as "agent proposal show" prints it.
type Summary struct {
	v1alpha1.Proposal
	Changes []Change `json:"changes,omitempty"`
}

// Change is a file of a proposal.
type Change struct {
	Path   string    `json:"path"`   // in the data directory
	Source plan.Path `json:"source"` // in git
	Op     Op        `json:"op"`
	// Overwritten reports that a sync has replaced the gateway's version since.
	Overwritten bool `json:"overwritten,omitempty"`
}

// LoadSummary reads the record from the data directory; a missing or damaged one gives an empty Summary. Programs on the gateway can change it,
// so its strings may hold control characters: quote them before they go to a terminal.
func LoadSummary(n Notes) (Summary, error) {
	rec, err := loadRecord(n)
	if err != nil {
		return Summary{}, err
	}
	out := Summary{Proposal: rec.proposal()}
	for _, source := range slices.Sorted(maps.Keys(rec.Files)) {
		f := rec.Files[source]
		out.Changes = append(out.Changes, Change{f.Path, source, f.Op, f.Overwritten})
	}
	return out, nil
}

// pushGrace is how much longer than the debounce a sync waits for a change to be pushed (conflictStrategy gitWins), or to be seen.
const pushGrace = time.Minute

// UnseenError holds a sync only because no Step has seen the changes that the sync would replace: Step may see them after a comparison.
type UnseenError struct{ error }

func (e UnseenError) Unwrap() error { return e.error }

// ConflictError returns the error that holds a sync of paths, at least one, that both the gateway and git changed. The format says what to do.
func ConflictError(paths []string, format string, args ...any) error {
	return failure.New(v1alpha1.ReasonConflictDetected, "%s was changed on the gateway and in git (%d files): %s", paths[0], len(paths), fmt.Sprintf(format, args...))
}

// waits is how long the sync to the order in force has waited.
type waits struct {
	decide.Wait
	newOrder     bool     // the order is new, and no sync to it has asked yet
	held, before []string // the paths that held the running sync, and the one before
}

// Starts notes that a sync starts; newOrder reports that it is the first one to its order. Such a sync waits as long as any other, unless the same
// paths held the one before: otherwise frequent commits would hold every sync.
func (p *Proposer) Starts(newOrder bool) {
	p.wait.newOrder = p.wait.newOrder || newOrder
	p.wait.before, p.wait.held = p.wait.held, nil
}

// Replace returns nil if a sync may replace the changes at paths, and otherwise the error that holds the sync. described is what Describes
// reports of the paths.
func (p *Proposer) Replace(s *Settings, strategy v1alpha1.ConflictStrategy, paths []string, described bool) error {
	if p.wait.newOrder && !slices.Equal(p.wait.before, paths) {
		p.wait.Wait = decide.Wait{}
	}
	p.wait.newOrder = false
	next, why, unseen := p.wait.Blocks(decide.Changes{Strategy: strategy, Proposal: p.Proposal(), Seen: described, Limit: s.Debounce + pushGrace, Now: p.Now()})
	p.wait.Wait = next
	if why == "" {
		return nil
	}
	p.wait.held = paths
	err := ConflictError(paths, "%s", why)
	if unseen {
		p.schedule = p.schedule.Unwalked()
		return UnseenError{err}
	}
	return err
}
