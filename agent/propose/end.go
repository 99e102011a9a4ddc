package propose

import (
	"context"
	"slices"
	"strings"

	"stoker.io/stoker/agent/forge"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// lookup returns the entry at a path of a tree, or the zero Entry if the path does not exist.
func lookup(objects plan.Objects, root plan.ID, source plan.Path) (plan.Entry, error) {
	e := plan.Entry{Mode: plan.Directory, ID: root}
	for name := range strings.SplitSeq(string(source), "/") {
		if e.Mode != plan.Directory {
			return plan.Entry{}, nil
		}
		entries, err := objects.Tree(e.ID)
		if err != nil {
			return plan.Entry{}, err
		}
		i := slices.IndexFunc(entries, func(e plan.Entry) bool { return e.Name == name })
		if i < 0 {
			return plan.Entry{}, nil
		}
		e = entries[i]
	}
	return e, nil
}

// remove closes the pull request, unless it is merged, and deletes the branch of the settings: the record does not say which. A branch whose tip is not a commit of this gateway's agent
// stays, and so does its pull request.
func remove(ctx context.Context, s *Settings, base Base, rec record) error {
	if rec.Shared {
		return nil
	}
	tip, err := tipOf(ctx, s.Remote, branchRef(s.Branch))
	if err != nil {
		return err
	}
	if !tip.IsZero() {
		if tip != rec.Tip && tip != rec.Pending {
			return nil
		}
		if own, err := s.owns(ctx, base, rec, tip); err != nil || !own {
			return err
		}
	}
	if s.Forge != nil && rec.Number > 0 && rec.FinalState != v1alpha1.ProposalMerged {
		pr, err := s.pullRequest(ctx, rec.Number)
		if err == nil && pr != nil && pr.State == forge.Open {
			err = s.retract(ctx, pr, rec.Comment)
		}
		if err != nil {
			return err
		}
	}
	if tip.IsZero() {
		return nil
	}
	err = s.Remote.Push(ctx, branchRef(s.Branch), tip, plan.ID{}, nil)
	if repo.IsStale(err) || failure.Reason(err, "") == v1alpha1.ReasonPushRejected { // another author pushed, or the server keeps the branch
		return nil
	}
	return err
}

// owns reports whether a tip of the gateway's branch is a commit of its agent. The record can be forged, so the commit on the server decides.
// It is enough to look at the tip, because the agent puts its commits only on its own ones and on the commit that the branch began with.
func (s *Settings) owns(ctx context.Context, base Base, rec record, tip plan.ID) (bool, error) {
	if tip == rec.verifiedTip {
		return true, nil
	}
	text, err := base.CommitText(ctx, tip)
	return err == nil && readTrailers(text).gateway == s.trailer(), err
}

// find returns the first pull request from a branch into the base branch that match accepts, or nil. It skips pull requests of forks.
func (s *Settings) find(ctx context.Context, branch string, match func(pr *forge.PullRequest) bool) (*forge.PullRequest, error) {
	list, err := s.Forge.ByHead(ctx, branch, s.BaseBranch)
	if err != nil {
		return nil, err
	}
	for i := range list {
		if pr := &list[i]; !pr.Fork && match(pr) {
			return pr, nil
		}
	}
	return nil, nil
}

// pullRequest returns the pull request with a number if it is one of this gateway's branch, otherwise nil. The number comes from the
// record, which programs on the gateway can change.
func (s *Settings) pullRequest(ctx context.Context, number int64) (*forge.PullRequest, error) {
	return s.find(ctx, s.Branch, func(pr *forge.PullRequest) bool { return pr.Number == number && pr.Branch == s.Branch })
}

// retract closes a pull request of this gateway. It removes the digest from the text first: other gateways with the same change then see
// that no reviewer closed the pull request, and propose the change themselves.
func (s *Settings) retract(ctx context.Context, pr *forge.PullRequest, why string) error {
	if err := s.Forge.Update(ctx, pr.Number, pr.Title, why); err != nil {
		return err
	}
	return s.Forge.Close(ctx, pr.Number, why)
}
