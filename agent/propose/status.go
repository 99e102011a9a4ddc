package propose

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	"stoker.io/stoker/agent/forge"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/failure"
)

// fail shows a failure and sets when the next attempt is due.
func (p *Proposer) fail(err error) {
	reason := failure.Reason(err, v1alpha1.ReasonGitUnreachable)
	p.failures++
	wait := backoff.After(reason.Class(), p.failures, pollEvery)
	for _, after := range []func(error) (time.Duration, bool){repo.RetryAfter, forge.RetryAfter} {
		if asked, ok := after(err); ok {
			wait = max(wait, min(asked, backoff.MaxRetryAfter))
		}
	}
	p.nextAttempt = p.Now().Add(wait)
	if reason == v1alpha1.ReasonPushRejected {
		p.declinedOf = p.builtOf
	}
	message := oneLine(err.Error(), 500)
	if p.status.Reason != reason || p.status.Message != message {
		p.Log.Warn("changes not proposed", "reason", reason, "error", err)
	}
	state := p.status.State
	if state == "" || state == v1alpha1.ProposalSettling {
		state = v1alpha1.ProposalPushing
	}
	if reason == v1alpha1.ReasonBranchTaken {
		state = v1alpha1.ProposalForeign
	}
	p.status.State, p.status.Reason, p.status.Message = state, reason, message
	p.lastFailure = p.status
}

// refused shows why changes are not proposed.
func (p *Proposer) refused(c *Changes) {
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

// show sets the status from the record.
func (p *Proposer) show() {
	r := &p.rec
	st := v1alpha1.Proposal{Branch: r.Branch, Number: r.Number, URL: r.URL, Files: int32(len(r.Files))}
	if !r.Tip.IsZero() {
		st.Commit = r.Tip.String()
	}
	switch {
	case !r.active():
		st.State = v1alpha1.ProposalState(r.Ended)
	case r.Ending != "":
		st.State = v1alpha1.ProposalState(r.Ending)
	case r.Merged:
		st.State, st.Message = v1alpha1.ProposalMerged, "the gateway has not received the merge yet"
	case r.Foreign:
		st.State, st.Reason, st.Message = v1alpha1.ProposalForeign, v1alpha1.ReasonBranchTaken, "another author committed to the branch: the agent pushes nothing more until the pull request ends"
	case !r.Pending.IsZero(): // the server has it or not
		st.State, st.Message = v1alpha1.ProposalPushing, "the push was interrupted, and is tried again"
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

// Recording is a recorded proposal as "agent proposal show" prints it.
type Recording struct {
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

// Recorded reads the record. Programs on the gateway can change it, so its text may hold control characters.
func Recorded(n Notes) (Recording, error) {
	rec, err := loadRecord(n)
	if err != nil {
		return Recording{}, err
	}
	p := Proposer{rec: rec}
	p.show()
	r := Recording{Proposal: p.status}
	for _, source := range slices.Sorted(maps.Keys(rec.Files)) {
		f := rec.Files[source]
		r.Changes = append(r.Changes, Change{f.Path, source, f.Op, f.Overwritten})
	}
	return r, nil
}

// fingerprint returns a hash over the Stat of files. It changes when one of them is written.
func fingerprint(state plan.State, paths []string) (string, error) {
	h := fnv.New128a()
	for _, p := range paths {
		st, err := state.Stat(p)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%q %+v\n", p, st)
	}
	return string(h.Sum(nil)), nil
}

// merged reports whether the commit on the disk has the proposed files.
func (p *Proposer) merged(b Base) (bool, error) {
	if !p.rec.active() || b.Commit == p.rec.Base {
		return false, nil
	}
	for source, want := range p.rec.Files {
		id, err := lookup(b.Objects, b.Root, source)
		if err != nil || id != want.ID {
			return false, err
		}
	}
	return true, nil
}

// lookup returns the id of the entry at a path of a tree; zero if there is none.
func lookup(objects plan.Objects, root plan.ID, source plan.Path) (plan.ID, error) {
	e := plan.Entry{Mode: plan.Directory, ID: root}
	for name := range strings.SplitSeq(string(source), "/") {
		if e.Mode != plan.Directory {
			return plan.ID{}, nil
		}
		entries, err := objects.Tree(e.ID)
		if err != nil {
			return plan.ID{}, err
		}
		i := slices.IndexFunc(entries, func(e plan.Entry) bool { return e.Name == name })
		if i < 0 {
			return plan.ID{}, nil
		}
		e = entries[i]
	}
	return e.ID, nil
}
