package propose

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"

	"stoker.io/stoker/agent/decide"
	"stoker.io/stoker/agent/forge"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// push pushes changes to the git server, and lets a publisher open the pull request. It runs as a job. The record is durable before each step
// that others can see, so after a crash at any point the next attempt finds out how far the last one came, and repeats nothing.
type push struct {
	Env
	settings *Settings
	changes  *Changes
	built    *Changes // changes without the overwritten files
	base     Base
	notes    Notes
}

func (w *push) run(ctx context.Context, rec record) outcome {
	rec, err := w.pushBranch(ctx, rec)
	if err == nil && w.settings.Forge != nil && !rec.Foreign && rec.FinalState == "" {
		p := publisher{Env: w.Env, pulls: w.settings.pulls(), settings: w.settings, changes: w.changes, base: w.base, notes: w.notes}
		rec, err = p.publish(ctx, rec)
		if err == nil && !rec.published() && !rec.Merged && rec.FinalState == "" { // do not try again at once
			err = failure.New(v1alpha1.ReasonGitUnreachable, "the forge has another pull request than the one of this branch")
		}
	}
	return outcome{apply: func(r *record) { *r = rec }, err: err}
}

// largePack is the number of bytes from which the memory of a pack is returned to the system at once. An agent with nothing to do would hold
// it for minutes.
const largePack = 1 << 20

// pushBranch pushes the changes, unless the server has them.
func (w *push) pushBranch(ctx context.Context, rec record) (record, error) {
	b := w.settings.branch()
	tip, err := b.tip(ctx)
	if err != nil {
		return rec, err
	}
	if !rec.Pending.IsZero() && tip == rec.Pending { // the last attempt was interrupted after its push
		rec.Tip, rec.Pending = tip, plan.ID{}
	}
	if !tip.IsZero() && rec.Tip.IsZero() {
		if rec, tip, err = w.recover(ctx, rec, tip); err != nil {
			return rec, err
		}
	}
	if !tip.IsZero() {
		change, own, err := b.owns(ctx, w.base, tip, rec)
		if err != nil {
			return rec, err
		}
		if !own {
			rec.Foreign = true
			return rec, nil
		}
		rec.lands(tip, change)
	}
	if tip == rec.Tip && !tip.IsZero() && rec.Pending.IsZero() && rec.Digest == w.changes.Digest {
		return rec, nil
	}
	if tip.IsZero() { // the first push, or the branch was deleted: it starts again from the commit on the disk
		w.changes = w.built
		rec.BranchedFrom, rec.Number, rec.URL, rec.Shared, rec.Merged = w.base.Commit, 0, "", false, false
	}
	parent := tip
	if parent.IsZero() {
		parent = w.base.Commit
	}
	now := w.Now()
	who := author(w.settings.Identity, w.changes, w.settings.Authors, now)
	draft, err := w.draft(rec.BranchedFrom)
	if err != nil {
		return rec, err
	}
	if draft == nil {
		rec.FinalState, rec.Comment = v1alpha1.ProposalWithdrawn, decide.ProposedAgain
		return rec, nil
	}
	commit, err := draft.MakeCommit(parent, who, stoker(now), message(w.settings.Identity, w.changes, w.settings.Authors, rec.BranchedFrom), w.settings.Sign)
	if err != nil {
		return rec, err
	}
	pack, err := draft.Pack()
	if err != nil {
		return rec, err
	}
	rec.Branch, rec.Pending, rec.Digest, rec.Files, rec.LastState = w.settings.Branch, commit, w.changes.Digest, filesOf(w.changes), ""
	rec.Tip, rec.Commit = tip, w.base.Commit
	rec.Pushes = append(decide.RecentPushes(rec.Pushes, now), now)
	if err := rec.save(w.notes); err != nil {
		return rec, err
	}
	large := pack.Len() >= largePack
	err = b.push(ctx, tip, commit, pack)
	if large {
		debug.FreeOSMemory()
	}
	if repo.IsStale(err) {
		return rec, failure.New(v1alpha1.ReasonBranchTaken, "the branch %s was changed during the push", w.settings.Branch)
	}
	if err != nil {
		return rec, err
	}
	rec.Tip, rec.Pending, rec.verifiedTip = commit, plan.ID{}, commit
	w.Log.Info("changes pushed", "branch", w.settings.Branch, "commit", commit.String(), "files", len(w.changes.Files))
	return rec, rec.save(w.notes)
}

// recover finds out whose commit the tip of the branch is if the record does not name it: the record was lost, or a proposal that has
// ended left the branch. It adopts or deletes a branch of this agent, and returns the tip that the branch has then.
func (w *push) recover(ctx context.Context, rec record, tip plan.ID) (record, plan.ID, error) {
	branchTaken := func(why string) (record, plan.ID, error) {
		return rec, tip, failure.New(v1alpha1.ReasonBranchTaken, "the branch %s exists, and %s: merge or delete it, or set another targetBranch", w.settings.Branch, why)
	}
	text, err := w.base.CommitText(ctx, tip)
	if err != nil {
		return rec, tip, err
	}
	ended := tip == rec.LastTip
	t := readTrailers(text)
	switch {
	case t.gateway == "":
		return branchTaken("its tip " + tip.Short() + " is not a commit of an agent")
	case t.gateway != w.settings.trailer():
		return branchTaken("its tip " + tip.Short() + " is a commit of the gateway " + oneLine(t.gateway, 200))
	case !ended && !rec.Pending.IsZero() && t.parent == rec.BranchedFrom: // the first push succeeded after the agent had given it up
		rec.lands(tip, t.change)
		return rec, tip, nil
	case !ended && t.change == w.changes.Digest:
		rec.Branch, rec.BranchedFrom, rec.Tip, rec.Digest, rec.Files = w.settings.Branch, t.base, tip, t.change, filesOf(w.changes)
		rec.verifiedTip, rec.Commit = tip, w.base.Commit
		w.Log.Info("branch adopted", "branch", w.settings.Branch, "commit", tip.String())
		return rec, tip, rec.save(w.notes)
	case w.settings.Forge != nil: // the forge is more reliable than the record, which can be forged
		own, err := w.settings.pulls().from(ctx)
		if err != nil {
			return rec, tip, err
		}
		ended = (ended || len(own) > 0) && !slices.ContainsFunc(own, func(pr forge.PullRequest) bool { return pr.State == forge.Open })
	}
	if !ended {
		return branchTaken("it has changes of this gateway that the agent has no record of")
	}
	err = w.settings.branch().delete(ctx, tip)
	if failure.Is(err, v1alpha1.ReasonPushRejected) {
		return branchTaken("the server does not let the agent delete it after its pull request ended")
	}
	if err != nil {
		return rec, tip, err
	}
	return rec, plan.ID{}, nil
}

// draft returns the tree to push, or nil if the branch must begin again. A branch stays based on the commit that it began with, even if the
// gateway runs a newer one, so that the pull request shows only the changes of the gateway. It begins again if git has changed a proposed file
// since, because the merge could keep git's version, or if the cache has lost that commit. draft fails instead if the branch has files that a
// sync replaced, because only the branch has them.
func (w *push) draft(began plan.ID) (*repo.Draft, error) {
	root, stale := w.base.Root, ""
	if began != w.base.Commit {
		earlier, err := w.base.RootOf(began)
		if root = earlier; err != nil && !repo.IsNotFound(err) {
			return nil, err
		} else if err != nil {
			stale = "the agent's cache has lost the commit that the branch began with"
		} else if stale, err = w.changedSince(root); err != nil {
			return nil, err
		}
	} else if w.changes.Draft != nil {
		return w.changes.Draft, nil
	}
	switch {
	case stale == "":
		return repo.NewDraft(w.base.Objects, root, w.changes.edits)
	case len(w.changes.Files) > len(w.built.Files):
		return nil, failure.New(v1alpha1.ReasonChangesRefused,
			"%s, and only the branch %s has files that a sync replaced: merge or close its pull request", stale, w.settings.Branch)
	}
	return nil, nil
}

// changedSince says which proposed file git has changed since the root tree of an earlier commit, "" if none. It leaves out files that a sync has
// overwritten.
func (w *push) changedSince(root plan.ID) (string, error) {
	for _, f := range w.changes.Files {
		was, err := lookup(w.base.Objects, root, f.Source)
		if err != nil {
			return "", err
		}
		if now, err := lookup(w.base.Objects, w.base.Root, f.Source); err != nil {
			return "", err
		} else if now != was && !f.overwritten {
			return fmt.Sprintf("git changed %s after the branch began", f.Path), nil
		}
	}
	return "", nil
}
