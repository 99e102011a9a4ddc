package propose

import (
	"cmp"
	"context"
	"strings"

	"stoker.io/stoker/agent/forge"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
)

// answer is what the servers say of an active proposal.
type answer struct {
	pr *forge.PullRequest // nil if the forge has none
	// asked reports that git was asked, too. tip is the tip of the branch; zero if there is no branch. own reports that tip is a commit of this
	// agent. change is the digest of the changes of that commit.
	asked, own bool
	tip        plan.ID
	change     string
	// newest reports that the gateway runs the tip of the base branch. It is only set after a merge, or if there is neither a pull request nor a
	// branch.
	newest bool
}

// ask asks the forge for the pull request of a proposal. If the forge does not show the last commit of the branch yet, if another author had
// committed to it, or if there is no forge, git says whose commit the tip of the branch is. After a merge, ask asks only for newest.
func (s *Settings) ask(ctx context.Context, base Base, rec record) (a answer, err error) {
	if rec.Merged {
		a.newest, err = s.runsNewest(ctx, base)
		return a, err
	}
	switch {
	case s.Forge == nil:
	case rec.Number == 0:
		a.pr, err = s.pulls().current(ctx)
	case rec.Shared:
		a.pr, err = s.pulls().numbered(ctx, rec.Number, rec.Head)
		return a, err
	default:
		a.pr, err = s.pulls().numbered(ctx, rec.Number, s.Branch)
	}
	late := a.pr != nil && a.pr.State == forge.Open && !rec.hasCommit(a.pr.Commit)
	if err != nil || !late && !rec.Foreign && s.Forge != nil {
		return a, err
	}
	b := s.branch()
	if a.tip, err = b.tip(ctx); err != nil {
		return a, err
	}
	if a.asked = true; !a.tip.IsZero() {
		a.change, a.own, err = b.owns(ctx, base, a.tip, rec)
	} else if a.pr == nil {
		a.newest, err = s.runsNewest(ctx, base)
	}
	return a, err
}

// runsNewest reports whether the gateway runs the tip of the base branch.
func (s *Settings) runsNewest(ctx context.Context, base Base) (bool, error) {
	tip, err := branch{remote: s.Remote, ref: "refs/heads/" + s.BaseBranch}.tip(ctx)
	return tip == base.Commit, err
}

// poll starts to ask for the state of the proposal.
func (p *Proposer) poll(ctx context.Context, s *Settings, base Base) {
	rec := p.kept.clone()
	p.work.start(ctx, func(ctx context.Context) outcome {
		a, err := s.ask(ctx, base, rec)
		if err != nil {
			return outcome{err: err}
		}
		return outcome{apply: func(r *record) {
			if event := r.polled(a, base.Commit, s.BaseBranch, p.seen.built); event != "" {
				p.Log.Info(event, "url", rec.URL)
			}
		}}
	})
}

// hasCommit reports whether a commit, as the forge names it, is the last one of the proposal, or "". It may be Pending, if the answer to that
// push was lost.
func (r *record) hasCommit(id string) bool {
	return id == "" || names(id, r.Tip) || names(id, r.Pending)
}

// names reports whether a forge names a commit by id, which may have only the first digits.
func names(id string, commit plan.ID) bool { return id != "" && strings.HasPrefix(commit.String(), id) }

// lands records a tip of the branch that is a commit of this agent. It differs from Tip if a push succeeded after the agent had given it up.
func (r *record) lands(tip plan.ID, change string) {
	if tip != r.Tip {
		r.Tip, r.Pending, r.Digest = tip, plan.ID{}, cmp.Or(change, r.Digest)
	}
	r.Foreign, r.verifiedTip = false, tip
}

// polled takes over what the servers say, and returns what has happened; "" if nothing has. runs is what the gateway runs, base the base branch
// of the spec, and built are the changes on the disk; nil if they are not known.
func (r *record) polled(a answer, runs plan.ID, base string, built *Changes) (event string) {
	pr := a.pr
	foreign := pr != nil && !r.Shared && !r.hasCommit(pr.Commit) && !a.own
	moved := pr != nil && pr.State != forge.Closed && pr.Base != base && !foreign // another author moves it on purpose
	switch {
	case r.Merged:
		if a.newest && runs != r.BranchedFrom { // the gateway has the merge, whatever followed it
			r.FinalState = v1alpha1.ProposalMerged
		}
		return ""
	case r.Shared && (pr == nil || moved || digestOf(pr.Body) != r.Digest): // its gateway no longer has this change
		r.end("")
		return "pull request no longer shared"
	case pr == nil && r.Number > 0: // the next push opens another one
		r.Number, r.URL, r.TextDigest = 0, "", ""
		return "pull request gone"
	case pr == nil && a.tip.IsZero():
		if !a.newest || !r.Pending.IsZero() { // a merge may be on its way, or the first push
			return ""
		}
		r.closed(built)
		return "branch deleted"
	case moved:
		r.withdrawFor(base)
		return "pull request moved to another base"
	case pr != nil && pr.State == forge.Closed:
		r.closed(built)
		return "pull request closed"
	case pr != nil && pr.State == forge.Merged:
		r.Merged = true
		event = "pull request merged"
	case a.own:
		r.lands(a.tip, a.change)
	case foreign || a.asked:
		r.Foreign = true
	}
	if pr != nil {
		r.Number, r.URL = pr.Number, oneLine(pr.URL, 512)
	}
	return event
}

// closed ends the proposal because its pull request was closed. built are the changes on the disk.
func (r *record) closed(built *Changes) {
	r.close(r.Digest)
	if built != nil && r.covers(built) { // without the files that a sync has overwritten
		r.close(built.Digest)
	}
	r.end(v1alpha1.ProposalClosed)
}
