package propose

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"stoker.io/stoker/agent/decide"
	"stoker.io/stoker/agent/forge"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/failure"
)

// push pushes changes to the git server and opens the pull request. It runs as a job. The record is durable before each step that others
// can see, so after a crash at any point the next attempt finds out how far the last one came, and repeats nothing.
type push struct {
	Env
	s     *Settings
	c     *Changes
	built *Changes // c without the overwritten files
	base  Base
	notes Notes
}

func (w *push) run(ctx context.Context, rec record) outcome {
	rec, err := w.branch(ctx, rec)
	proposes := err == nil && w.s.Forge != nil && !rec.Foreign
	if proposes && rec.Number > 0 {
		rec, err = w.update(ctx, rec) // forgets the number if the pull request has ended without the last push
	}
	if proposes && err == nil && rec.Number == 0 {
		rec, err = w.open(ctx, rec)
	}
	return outcome{apply: func(r *record) { *r = rec }, err: err}
}

// branch pushes the changes, unless the server has them.
func (w *push) branch(ctx context.Context, rec record) (record, error) {
	ref := branchRef(w.s.Branch)
	tip, err := tipOf(ctx, w.s.Remote, ref)
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
		own := tip == rec.Tip
		if own {
			own, err = w.s.owns(ctx, w.base, rec, tip)
		}
		if err != nil {
			return rec, err
		}
		if !own {
			rec.Foreign = true
			return rec, nil
		}
		rec.verifiedTip = tip
	}
	if tip == rec.Tip && !tip.IsZero() && rec.Pending.IsZero() && rec.Digest == w.c.Digest {
		return rec, nil
	}
	if tip.IsZero() { // the first push, or the branch was deleted: it starts again from the commit on the disk
		w.c = w.built
		rec.BranchedFrom, rec.Number, rec.URL, rec.Shared, rec.Merged = w.base.Commit, 0, "", false, false
	}
	parent := tip
	if parent.IsZero() {
		parent = w.base.Commit
	}
	now := w.Now()
	who := author(w.s.Identity, w.c, w.s.Authors, now)
	draft, err := w.draft(rec.BranchedFrom)
	if err != nil {
		return rec, err
	}
	commit, err := draft.MakeCommit(parent, who, stoker(now), message(w.s.Identity, w.c, w.s.Authors, rec.BranchedFrom), w.s.Sign)
	if err != nil {
		return rec, err
	}
	w.c, w.built = w.c.withoutContent(), w.built.withoutContent()
	pack, err := packOf(draft)
	if err != nil {
		return rec, err
	}
	rec.Branch, rec.Pending, rec.Digest, rec.Files, rec.LastState = w.s.Branch, commit, w.c.Digest, filesOf(w.c), ""
	rec.Tip, rec.Commit = tip, w.base.Commit
	rec.Pushes = append(decide.RecentPushes(rec.Pushes, now), now)
	if err := rec.save(w.notes); err != nil {
		return rec, err
	}
	err = w.s.Remote.Push(ctx, ref, tip, commit, pack)
	if repo.IsStale(err) {
		return rec, failure.New(v1alpha1.ReasonBranchTaken, "the branch %s was changed during the push", w.s.Branch)
	}
	if err != nil {
		return rec, err
	}
	rec.Tip, rec.Pending, rec.verifiedTip = commit, plan.ID{}, commit
	w.Log.Info("changes pushed", "branch", w.s.Branch, "commit", commit.String(), "files", len(w.c.Files))
	return rec, rec.save(w.notes)
}

// recover finds out whose commit the tip of the branch is if the record does not name it: the record was lost, or a proposal that has
// ended left the branch. It adopts or deletes a branch of this agent, and returns the tip that the branch has then.
func (w *push) recover(ctx context.Context, rec record, tip plan.ID) (record, plan.ID, error) {
	branchTaken := func(why string) (record, plan.ID, error) {
		return rec, tip, failure.New(v1alpha1.ReasonBranchTaken, "the branch %s exists, and %s: merge or delete it, or set another targetBranch", w.s.Branch, why)
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
	case t.gateway != w.s.trailer():
		return branchTaken("its tip " + tip.Short() + " is a commit of the gateway " + oneLine(t.gateway, 200))
	case !ended && t.change == w.c.Digest:
		rec.Branch, rec.BranchedFrom, rec.Tip, rec.Digest, rec.Files = w.s.Branch, t.base, tip, t.change, filesOf(w.c)
		rec.verifiedTip, rec.Commit = tip, w.base.Commit
		w.Log.Info("branch adopted", "branch", w.s.Branch, "commit", tip.String())
		return rec, tip, rec.save(w.notes)
	case w.s.Forge != nil: // it knows better than the record, which can be forged
		list, err := w.s.Forge.ByHead(ctx, w.s.Branch, w.s.BaseBranch)
		if err != nil {
			return rec, tip, err
		}
		own := slices.DeleteFunc(list, func(pr forge.PullRequest) bool { return pr.Fork })
		ended = (ended || len(own) > 0) && !slices.ContainsFunc(own, func(pr forge.PullRequest) bool { return pr.State == forge.Open })
	}
	if !ended {
		return branchTaken("it has changes of this gateway that the agent has no record of")
	}
	if err := w.s.Remote.Push(ctx, branchRef(w.s.Branch), tip, plan.ID{}, nil); err != nil {
		return rec, tip, err
	}
	return rec, plan.ID{}, nil
}

// branchRef returns the full name of a branch.
func branchRef(name string) string { return "refs/heads/" + name }

// tipOf returns the commit of a ref as the server reports it to a client that pushes; zero if the ref does not exist.
func tipOf(ctx context.Context, r *repo.Remote, ref string) (plan.ID, error) {
	refs, err := r.PushRefs(ctx)
	if err != nil {
		return plan.ID{}, err
	}
	for name, id := range refs.All() {
		if name == ref {
			return id, nil
		}
	}
	return plan.ID{}, nil
}

// draft returns the tree to push. A branch stays based on the commit that it began with, even if the gateway runs a newer one, so that the
// pull request shows only the changes of the gateway. If the object cache lacks that commit, the tree is based on the one on the disk.
func (w *push) draft(began plan.ID) (*repo.Draft, error) {
	if began == w.base.Commit && w.c.Draft != nil {
		return w.c.Draft, nil
	}
	root := w.base.Root
	if earlier, err := w.base.RootOf(began); err == nil {
		root = earlier
	}
	return repo.NewDraft(w.base.Objects, root, w.c.edits)
}

// packOf returns the pack of a draft.
func packOf(d *repo.Draft) ([]byte, error) {
	var b bytes.Buffer
	b.Grow(int(d.PackBound())) // an upper bound: the buffer is never copied
	err := d.WritePack(&b)
	return b.Bytes(), err
}

// update updates the text of the pull request. If the pull request was merged with the last push, update records that. If it has ended
// otherwise, update forgets its number, because the commits pushed since need another one.
func (w *push) update(ctx context.Context, rec record) (record, error) {
	if rec.Shared || rec.TextDigest == rec.Digest {
		return rec, nil
	}
	pr, err := w.s.pullRequest(ctx, rec.Number)
	switch {
	case err != nil:
		return rec, err
	case pr != nil && pr.State == forge.Merged && pr.Commit == rec.Tip.String():
		rec.Merged = true
	case pr == nil || pr.State != forge.Open:
		rec.Number, rec.URL = 0, ""
		return rec, nil
	default:
		joined, rec, err := w.yield(ctx, rec, pr)
		if err != nil || joined {
			return rec, err
		}
		if err := w.s.Forge.Update(ctx, pr.Number, subject(w.s.Identity, w.c), body(w.s.Identity, w.c, w.base.Commit)); err != nil {
			return rec, err
		}
	}
	rec.TextDigest = rec.Digest
	return rec, rec.save(w.notes)
}

// open opens the pull request, or adopts one that is open: of this branch, or of another gateway with the same change. It records the
// number only after the last check, so an attempt that ends between creation and check is repeated.
func (w *push) open(ctx context.Context, rec record) (record, error) {
	pr, err := w.openPullRequest(ctx)
	if err != nil {
		return rec, err
	}
	result := "adopted"
	if pr == nil {
		if err := w.Wait(ctx, openDelay(w.s.String())); err != nil {
			return rec, err
		}
		if other, err := w.sameChange(ctx, 0); err != nil {
			return rec, err
		} else if other != nil {
			return w.join(ctx, rec, other)
		}
		if pr, result, err = w.create(ctx); err != nil {
			return rec, err
		}
	}
	if joined, rec, err := w.yield(ctx, rec, pr); err != nil || joined {
		return rec, err
	}
	if rec, err = w.adopt(rec, pr, result); err != nil {
		return rec, err
	}
	if result == "created" {
		rec.TextDigest = rec.Digest
	}
	return w.update(ctx, rec)
}

// create opens a pull request and returns it with the result "created". If the branch already has one, it returns that and "adopted".
func (w *push) create(ctx context.Context) (*forge.PullRequest, string, error) {
	pr, err := w.s.Forge.Create(ctx, forge.Draft{
		Branch: w.s.Branch, Base: w.s.BaseBranch, Labels: w.s.Labels, Title: subject(w.s.Identity, w.c), Body: body(w.s.Identity, w.c, w.base.Commit),
	})
	if errors.Is(err, forge.ErrExists) {
		existing, err := w.openPullRequest(ctx)
		if err == nil && existing != nil {
			return existing, "adopted", nil
		}
		return nil, "", errors.Join(forge.ErrExists, err)
	}
	if w.Opened != nil {
		result := v1alpha1.Reason("ok")
		if err != nil {
			result = failure.Reason(err, v1alpha1.ReasonGitUnreachable)
		}
		w.Opened(w.s.Provider, string(result))
	}
	if err != nil {
		return nil, "", err
	}
	for _, n := range pr.Notes {
		w.Log.Warn("pull request note", "url", pr.URL, "note", n)
	}
	return &pr, "created", nil
}

// yield closes the pull request of this gateway if another gateway has an older one with the same change, and reports whether it did.
func (w *push) yield(ctx context.Context, rec record, pr *forge.PullRequest) (bool, record, error) {
	other, err := w.sameChange(ctx, pr.Number)
	if err != nil || other == nil || other.Number > pr.Number {
		return false, rec, err
	}
	if err := w.s.retract(ctx, pr, "The same change is proposed by another gateway."); err != nil {
		return false, rec, err
	}
	rec, err = w.join(ctx, rec, other)
	return true, rec, err
}

// openPullRequest returns the open pull request of the branch, or nil.
func (w *push) openPullRequest(ctx context.Context) (*forge.PullRequest, error) {
	return w.s.find(ctx, w.s.Branch, func(pr *forge.PullRequest) bool { return pr.State == forge.Open })
}

// sameChange returns the oldest open pull request of another branch with the same change, or nil. It skips the one with the number but.
func (w *push) sameChange(ctx context.Context, but int64) (*forge.PullRequest, error) {
	list, err := w.s.Forge.Open(ctx, w.s.BaseBranch)
	if err != nil {
		return nil, err
	}
	var oldest *forge.PullRequest
	for i := range list {
		pr := &list[i]
		if pr.Number != but && !pr.Fork && pr.Branch != w.s.Branch && digestOf(pr.Body) == w.c.Digest && (oldest == nil || pr.Number < oldest.Number) {
			oldest = pr
		}
	}
	return oldest, nil
}

// adopt records a pull request as that of this proposal.
func (w *push) adopt(rec record, pr *forge.PullRequest, result string) (record, error) {
	rec.Number, rec.URL = pr.Number, oneLine(pr.URL, 512)
	w.Log.Info("pull request "+result, "number", pr.Number, "url", pr.URL)
	return rec, rec.save(w.notes)
}

// join follows the pull request of another gateway, and deletes the branch of this one.
func (w *push) join(ctx context.Context, rec record, other *forge.PullRequest) (record, error) {
	tip := rec.Tip
	rec.Shared, rec.Head, rec.Tip = true, other.Branch, plan.ID{}
	rec, err := w.adopt(rec, other, "shared")
	if err != nil {
		return rec, err
	}
	if err := w.s.Remote.Push(ctx, branchRef(w.s.Branch), tip, plan.ID{}, nil); !repo.IsStale(err) {
		return rec, err
	}
	return rec, nil
}

// maxOpenDelay is the longest delay before a gateway opens a pull request, so that another gateway with the same change can be first.
const maxOpenDelay = 15 * time.Second

// openDelay returns the delay of a gateway, which is always the same.
func openDelay(name string) time.Duration { return jitter(5*maxOpenDelay, name) - 5*maxOpenDelay }

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	if !backoff.Wait(ctx, d) {
		return context.Cause(ctx)
	}
	return nil
}
