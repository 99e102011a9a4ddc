package propose

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"stoker.io/stoker/agent/forge"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// push brings changes to the git server and opens the pull request. It runs beside the loop. The record is durable before each step that
// others can see, so after a crash at any point the next attempt finds out how far the last one came, and repeats nothing.
type push struct {
	s      *Settings
	c      *Changes
	built  *Changes // c without the files that are kept
	base   Base
	notes  Notes
	log    *slog.Logger
	now    func() time.Time
	opened func(provider, result string)
	wait   func(ctx context.Context, d time.Duration) error
}

func (w *push) run(ctx context.Context, rec record) outcome {
	rec, err := w.branch(ctx, rec)
	switch {
	case err != nil || w.s.Forge == nil || rec.Foreign:
	case rec.Number > 0:
		rec, err = w.update(ctx, rec)
	}
	if err == nil && w.s.Forge != nil && !rec.Foreign && rec.Number == 0 {
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
		if err != nil || !own {
			rec.Foreign = !own
			return rec, err
		}
		rec.own = tip
	}
	if tip == rec.Tip && !tip.IsZero() && rec.Pending.IsZero() && rec.Digest == w.c.Digest {
		return rec, nil
	}
	if tip.IsZero() { // the first push, or the branch was deleted: it starts again from the commit on the disk
		w.c = w.built
		rec.Base, rec.Number, rec.URL, rec.Shared, rec.Merged = w.base.Commit, 0, "", false, false
	}
	parent := tip
	if parent.IsZero() {
		parent = w.base.Commit
	}
	now := w.now()
	who := author(w.s.Identity, w.c, w.s.Authors, now)
	draft, err := w.draft(rec.Base)
	if err != nil {
		return rec, err
	}
	commit, err := draft.MakeCommit(parent, who, stoker(now), message(w.s.Identity, w.c, w.s.Authors, rec.Base), w.s.Sign)
	if err != nil {
		return rec, err
	}
	w.c, w.built = w.c.withoutContent(), w.built.withoutContent()
	pack, err := packOf(draft)
	if err != nil {
		return rec, err
	}
	rec.Branch, rec.Pending, rec.Digest, rec.Files, rec.Ended = w.s.Branch, commit, w.c.Digest, filesOf(w.c), ""
	rec.Tip = tip
	rec.Pushes = append(rec.Pushes, now)
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
	rec.Tip, rec.Pending, rec.own = commit, plan.ID{}, commit
	w.log.Info("changes pushed", "branch", w.s.Branch, "commit", commit.String(), "files", len(w.c.Files))
	return rec, rec.save(w.notes)
}

// recover finds out whose commit the tip of a branch is that the record does not name: a proposal that has ended may have left it, and a
// lost record does not name what was pushed. It returns the tip that the branch has afterwards.
func (w *push) recover(ctx context.Context, rec record, tip plan.ID) (record, plan.ID, error) {
	taken := func(why string) (record, plan.ID, error) {
		return rec, tip, failure.New(v1alpha1.ReasonBranchTaken, "the branch %s exists, and %s: merge or delete it, or set another targetBranch", w.s.Branch, why)
	}
	text, err := w.base.CommitText(ctx, tip)
	if err != nil {
		return rec, tip, err
	}
	ended := tip == rec.Left
	t := readTrailers(text)
	switch {
	case t.gateway == "":
		return taken("its tip " + tip.Short() + " is not a commit of an agent")
	case t.gateway != w.s.String():
		return taken("its tip " + tip.Short() + " is a commit of the gateway " + oneLine(t.gateway, 200))
	case !ended && t.change == w.c.Digest:
		rec.Branch, rec.Base, rec.Tip, rec.Digest, rec.Files = w.s.Branch, t.base, tip, t.change, filesOf(w.c)
		rec.own = tip
		w.log.Info("branch adopted", "branch", w.s.Branch, "commit", tip.String())
		return rec, tip, rec.save(w.notes)
	case !ended && w.s.Forge != nil:
		list, err := w.s.Forge.ByHead(ctx, w.s.Branch, w.s.BaseBranch)
		if err != nil {
			return rec, tip, err
		}
		own := slices.DeleteFunc(list, func(pr forge.PullRequest) bool { return pr.Fork })
		ended = len(own) > 0 && !slices.ContainsFunc(own, func(pr forge.PullRequest) bool { return pr.State == forge.Open })
	}
	if !ended {
		return taken("it has changes of this gateway that the agent no longer knows")
	}
	if err := w.s.Remote.Push(ctx, branchRef(w.s.Branch), tip, plan.ID{}, nil); err != nil {
		return rec, tip, err
	}
	return rec, plan.ID{}, nil
}

// tipOf returns the commit of a ref as the server tells a client that pushes; zero if it does not exist.
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

// draft returns the tree to push. A branch stays based on the commit that it began with, even if the gateway has got newer ones since: so
// the pull request shows nothing but the changes of the gateway. Without that commit, the tree is based on the one on the disk.
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

// update brings the text of the pull request up to date. If the pull request has ended, it forgets the number, because what was pushed
// since needs another one.
func (w *push) update(ctx context.Context, rec record) (record, error) {
	if rec.Shared || rec.Listed == rec.Digest {
		return rec, nil
	}
	pr, err := w.s.own(ctx, rec.Number)
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
	rec.Listed = rec.Digest
	return rec, rec.save(w.notes)
}

// open opens the pull request, or adopts one that is open: of this branch, or of another gateway that made the same change. The record has
// no number before the last check, so an attempt that ends between creation and check is repeated.
func (w *push) open(ctx context.Context, rec record) (record, error) {
	if rec.Foreign {
		return rec, nil
	}
	pr, err := w.mine(ctx)
	if err != nil {
		return rec, err
	}
	result := "adopted"
	if pr == nil {
		if err := w.wait(ctx, jitterOf(w.s.String())); err != nil {
			return rec, err
		}
		if other, err := w.same(ctx, 0); err != nil {
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
		rec.Listed = rec.Digest
	}
	return w.update(ctx, rec)
}

// create opens a pull request. If the branch has one meanwhile, it returns that.
func (w *push) create(ctx context.Context) (*forge.PullRequest, string, error) {
	pr, err := w.s.Forge.Create(ctx, forge.Draft{
		Branch: w.s.Branch, Base: w.s.BaseBranch, Labels: w.s.Labels, Title: subject(w.s.Identity, w.c), Body: body(w.s.Identity, w.c, w.base.Commit),
	})
	if errors.Is(err, forge.ErrExists) {
		mine, err := w.mine(ctx)
		if err == nil && mine != nil {
			return mine, "adopted", nil
		}
		return nil, "", errors.Join(forge.ErrExists, err)
	}
	if w.opened != nil {
		result := v1alpha1.Reason("ok")
		if err != nil {
			result = failure.Reason(err, v1alpha1.ReasonGitUnreachable)
		}
		w.opened(w.s.Provider, string(result))
	}
	if err != nil {
		return nil, "", err
	}
	for _, n := range pr.Notes {
		w.log.Warn("pull request note", "url", pr.URL, "note", n)
	}
	return &pr, "created", nil
}

// yield closes the pull request of this gateway if another gateway has an older one with the same change, and reports whether it did.
func (w *push) yield(ctx context.Context, rec record, pr *forge.PullRequest) (bool, record, error) {
	other, err := w.same(ctx, pr.Number)
	if err != nil || other == nil || other.Number > pr.Number {
		return false, rec, err
	}
	if err := w.s.retract(ctx, pr, "The same change is proposed by another gateway."); err != nil {
		return false, rec, err
	}
	rec, err = w.join(ctx, rec, other)
	return true, rec, err
}

// mine returns the open pull request of the branch, or nil.
func (w *push) mine(ctx context.Context) (*forge.PullRequest, error) {
	list, err := w.s.Forge.ByHead(ctx, w.s.Branch, w.s.BaseBranch)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(list, func(pr forge.PullRequest) bool { return pr.State == forge.Open && !pr.Fork })
	if i < 0 {
		return nil, nil
	}
	return &list[i], nil
}

// same returns the oldest open pull request of another branch with the same change, or nil.
func (w *push) same(ctx context.Context, but int64) (*forge.PullRequest, error) {
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

func (w *push) adopt(rec record, pr *forge.PullRequest, result string) (record, error) {
	rec.Number, rec.URL = pr.Number, oneLine(pr.URL, 512)
	w.log.Info("pull request "+result, "number", pr.Number, "url", pr.URL)
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

// maxJitter is how long gateways wait for others that made the same change, each for a time of its own.
const maxJitter = 15 * time.Second

func jitterOf(name string) time.Duration { return (jitter(5*maxJitter, name) - 5*maxJitter) }

// pause waits, until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
