package propose

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"stoker.io/stoker/agent/forge"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/failure"
)

// setFailed adds a failure to the status, and sets when the next attempt is due.
func (p *Proposer) setFailed(err error) {
	reason := failure.Reason(err, v1alpha1.ReasonGitUnreachable)
	p.failures++
	wait := backoff.After(reason.Class(), p.failures, pollEvery)
	for _, after := range []func(error) (time.Duration, bool){repo.RetryAfter, forge.RetryAfter} {
		if asked, ok := after(err); ok {
			wait = max(wait, min(asked, backoff.MaxRetryAfter))
		}
	}
	p.nextAttempt = p.Now().Add(wait)
	if reason == v1alpha1.ReasonPushRejected { // changes other than these need not wait for nextAttempt
		p.declined = p.builtFrom
	}
	message := oneLine(err.Error(), 500)
	if p.status.Reason != reason || p.status.Message != message {
		p.Log.Warn("changes not proposed", "reason", reason, "error", err)
	}
	state := p.status.State
	if state == "" || state == v1alpha1.ProposalSettling { // what failed is the push, so the agent no longer waits for further changes
		state = v1alpha1.ProposalPushing
	}
	if reason == v1alpha1.ReasonBranchTaken {
		state = v1alpha1.ProposalForeign
	}
	p.status.State, p.status.Reason, p.status.Message = state, reason, message
	p.lastFailure = p.status
}

// setProblem sets the status to the recorded one, with the reason why the agent cannot propose anything with these settings. Without a
// record there is no state, because the agent neither waits for the end of debounce nor pushes.
func (p *Proposer) setProblem(err error) {
	reason, message := failure.Reason(err, v1alpha1.ReasonGitUnreachable), oneLine(err.Error(), 500)
	if p.status.Reason != reason || p.status.Message != message {
		p.Log.Warn("changes not proposed", "reason", reason, "error", err)
	}
	p.setFromRecord()
	if p.status.State == v1alpha1.ProposalPushing {
		p.status.State = ""
	}
	p.status.Reason, p.status.Message = reason, message
}

// setRefused sets the status to why changes are not proposed.
func (p *Proposer) setRefused(c *Changes) {
	first := c.Refused[0]
	text := first.Path + " " + first.Why
	if n := len(c.Refused) - 1; n > 0 {
		text = fmt.Sprintf("%s; and %d more", text, n)
	}
	text = oneLine(text, 500)
	if p.status.State != v1alpha1.ProposalRefused || p.status.Message != text {
		p.Log.Warn("changes refused", "files", len(c.Refused), "first", first.Path, "why", first.Why)
	}
	p.status = v1alpha1.Proposal{State: v1alpha1.ProposalRefused, Branch: p.rec.Branch, URL: p.rec.URL, Number: p.rec.Number,
		Files: int32(len(c.Files)), Refused: int32(len(c.Refused)), Reason: v1alpha1.ReasonChangesRefused, Message: text}
}

// setFromRecord sets the status from the record, and adds the last failure until an attempt succeeds.
func (p *Proposer) setFromRecord() {
	r := &p.rec
	st := v1alpha1.Proposal{Branch: r.Branch, Number: r.Number, URL: r.URL, Files: int32(len(r.Files))}
	if !r.Tip.IsZero() {
		st.Commit = r.Tip.String()
	}
	switch {
	case !r.active(): // no proposal was made, or the last one has ended
		st.State = r.LastState
	case r.FinalState != "": // it ends: its pull request is still to be closed, or its branch to be deleted
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
	if p.failures > 0 && st.Reason == "" {
		st.Reason, st.Message = p.lastFailure.Reason, p.lastFailure.Message
	}
	p.status = st
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

// LoadSummary reads the record from the data directory. Programs on the gateway can change it, so its strings may hold control
// characters: quote them before they go to a terminal.
func LoadSummary(n Notes) (Summary, error) {
	rec, err := loadRecord(n)
	if err != nil {
		return Summary{}, err
	}
	p := Proposer{rec: rec}
	p.setFromRecord()
	out := Summary{Proposal: p.status}
	for _, source := range slices.Sorted(maps.Keys(rec.Files)) {
		f := rec.Files[source]
		out.Changes = append(out.Changes, Change{f.Path, source, f.Op, f.Overwritten})
	}
	return out, nil
}
