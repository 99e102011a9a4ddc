package sync

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path"
	"time"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/agent/plan/planner"
	"stoker.io/stoker/agent/propose"
	"stoker.io/stoker/agent/redundancy"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/review"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/internal/failure"
)

// draft is what a sync would write.
type draft struct {
	changes *plan.Changes
	desired *desired.Tree // the tree of the target; nil if it was not needed
	rules   plan.Rules    // with which it was rendered
}

// rulesOr returns the rules of the draft, or r if there is no tree.
func (d draft) rulesOr(r plan.Rules) plan.Rules {
	if d.desired == nil {
		return r
	}
	return d.rules
}

// drafter fetches the target and compares it with the disk.
type drafter struct{ in *scope }

// draft fetches the commit, verifies its signature and compares it with the manifest and the disk. The draft has the tree even if the
// comparison fails.
func (d drafter) draft(ctx context.Context) (draft, error) {
	in := d.in
	done := in.step("fetch")
	stats, err := d.fetch(ctx)
	done()
	if err != nil {
		return draft{}, err
	}
	in.report.Fetch = Fetch{Kind: string(stats.Kind), Objects: stats.Objects, Bytes: stats.Bytes}
	if v := in.conn.Verifier; v != nil {
		if err := in.Store.Verify(ctx, v, in.conn.Remote, in.task.Commit, in.task.Ref); err != nil {
			return draft{}, err
		}
	}
	defer in.step("plan")()
	defer in.trees.limit(ctx)()
	out := draft{rules: in.rules}
	if out.rules.Renders() {
		v := in.gateway.version(ctx)
		out.rules.Form = resource.FormOf(v.Major, v.Minor) // in which the gateway signs
	}
	if out.desired, err = in.trees.tree(in.Store, in.task.Commit, out.rules); err != nil {
		return draft{}, err
	}
	if err := d.fetchBlobs(ctx, out.desired); err != nil {
		return out, err
	}
	out.changes, err = d.compare(ctx, out)
	return out, err
}

// fetch fetches the target into the store. If the store was lost but the manifest was not, most files on the disk are
// already right, so fetch gets only the trees, and fetchBlobs gets the missing blobs.
func (d drafter) fetch(ctx context.Context) (repo.FetchStats, error) {
	in := d.in
	h, name := in.dir.Manifest().Header(), in.task.Name
	if in.task.Admit != nil && h.Commit != in.task.Commit {
		var err error
		if name, err = in.task.Admit(ctx); err != nil {
			return repo.FetchStats{}, err
		}
	}
	storeLost := h.Complete && h.Files > 0 && (in.Store.Partial() || !in.Store.Has(h.Commit))
	if !storeLost || in.force {
		return in.Store.Fetch(ctx, in.conn.Remote, in.task.Commit, name)
	}
	return in.Store.FetchTrees(ctx, in.conn.Remote, in.task.Commit, name)
}

// fetchBlobs fetches in one request the blobs whose wanted id has changed since the last sync, or whose file has other
// bytes. A partial store fetches other blobs (of a file changed on the gateway, of a template) when they are read.
func (d drafter) fetchBlobs(ctx context.Context, tree *desired.Tree) error {
	in := d.in
	if !in.Store.Partial() {
		return nil
	}
	var ids []plan.ID
	for f, err := range tree.Walk() {
		if err != nil {
			return err
		}
		rec, owned, err := in.dir.Manifest().Get(f.Path)
		if err != nil {
			return err
		}
		if !owned || rec.Want != f.ID || rec.Have != f.ID && path.Base(f.Path) != resource.Thumbnail {
			ids = append(ids, f.ID)
		}
	}
	stats, err := in.Store.FetchBlobs(ctx, ids)
	in.report.Fetch.Objects += stats.Objects
	in.report.Fetch.Bytes += stats.Bytes
	return err
}

func (d drafter) compare(ctx context.Context, of draft) (*plan.Changes, error) {
	in := d.in
	defer in.trees.limit(ctx)()
	h := in.dir.Manifest().Header()
	input := planner.Input{
		Desired: of.desired, From: h.Commit, To: in.task.Commit, Manifest: in.dir.Manifest(), State: in.dir.Within(ctx),
		Repair: in.force || in.task.Repair, Verify: in.force,
		AllowMassDeletion: in.task.RolloutRollback || annotation.ConfirmsDeletion(in.task.ConfirmDeletion, in.task.Commit.String()),
	}
	copied := in.node.Copied()
	if copied {
		input.Replicated = redundancy.Replicated
	}
	if h.Complete && h.Rules == in.rules.Fingerprint() && !input.Repair && !copied && in.Store.Has(h.Commit) {
		// Without the old commit the plan is a full one, which is only slower.
		if previous, err := d.previous(h, of.rules); err == nil {
			input.Previous = previous
		} else {
			in.Log.Debug("previous commit unreadable, comparing every file", "commit", h.Commit.String(), "error", err)
		}
	}
	if p := in.task.Proposals; p != nil {
		input.GitWins, input.Proposed = p.Watches, p.Pending
		if in.force { // the operator requests git's version
			input.Proposed = nil
		}
	}
	changes, err := planner.Compute(input)
	if in.report.Changes = changes; err == nil && changes.Held != nil && changes.Held.Reason == v1alpha1.ReasonMassDeletion {
		short := in.task.Commit.Short()
		changes.Held.Message += "; to approve this: " + in.task.ask("sync", "--confirm-deletion="+short, v1alpha1.AnnotationConfirmDeletion, short)
	}
	return changes, err
}

// previous returns the tree that the manifest was written for, with the Form of like.
func (d drafter) previous(h plan.Header, like plan.Rules) (*desired.Tree, error) {
	rules, err := rulesAt(d.in.Config, &d.in.task, h.Ref, h.Commit)
	if err != nil {
		return nil, err
	}
	rules.Form = like.Form
	return d.in.trees.optional(h.Commit, rules)
}

// Proposals says how a sync treats changes that were made on the gateway and are proposed to git (spec.bidirectional).
type Proposals struct {
	// Watches reports whether changes at a path are proposed.
	Watches func(path string) bool
	// Pending reports whether repairs leave the change at a path alone, because it may still be on its way to git, however long that
	// takes, or because the repair is only for changes that were proposed. It delays no commit.
	Pending func(path string) bool
	// Replace is called with the paths of the changes that the sync would replace. An error holds the sync.
	Replace func(paths []string) error
}

// Watch sets the paths whose changes the next calls of Drift list and Added returns. nil means none.
func (e *Engine) Watch(watched func(path string) bool) { e.watched = watched }

func (e *Engine) isWatched(path string) bool { return e.watched != nil && e.watched(path) }

// Dir returns the open data directory, or nil if it is not open.
func (e *Engine) Dir() *disk.Dir { return e.dir }

// maxAdded bounds the new files that Added returns. A pull request has at most 1000 files, so the agent refuses to propose that many.
const maxAdded = 4000

// Added walks the mapped directories and returns the watched files that git does not have, at most maxAdded of them.
func (e *Engine) Added(ctx context.Context, b propose.Base) ([]string, error) {
	defer e.trees.limit(ctx)()
	var list []string
	for f, err := range b.Desired.Unwanted(b.Manifest, b.State) {
		if err != nil {
			return nil, fmt.Errorf("look for new files: %w", err)
		}
		if e.isWatched(f.Path) {
			list = append(list, f.Path)
		}
		if len(list) == maxAdded {
			break
		}
	}
	return list, nil
}

// Base returns the commit on the disk as the base of a proposal. t has the profile and the facts that are in force.
func (e *Engine) Base(ctx context.Context, remote *repo.Remote, t Task) (propose.Base, error) {
	dir, err := e.Open()
	if err != nil {
		return propose.Base{}, err
	}
	h := dir.Manifest().Header()
	if h.Commit.IsZero() || !h.Complete {
		return propose.Base{}, failure.New(v1alpha1.ReasonProgressing, "the gateway has not received a whole commit yet")
	}
	t.Ref, t.Commit = h.Ref, h.Commit
	rules, err := rulesAt(&e.Config, &t, t.Ref, t.Commit)
	if err != nil {
		return propose.Base{}, err
	}
	if rules.Fingerprint() != h.Rules {
		return propose.Base{}, failure.New(v1alpha1.ReasonProgressing, "the profile has changed, and its sync is not done yet")
	}
	if err := e.trees.fetchDelivered(ctx, remote, h.Commit, t.Name); err != nil {
		return propose.Base{}, err
	}
	defer e.trees.limit(ctx)()
	root, err := e.Store.RootTree(h.Commit)
	if err != nil {
		return propose.Base{}, err
	}
	desired, err := e.trees.tree(e.Store, h.Commit, rules)
	if err != nil {
		return propose.Base{}, err
	}
	return propose.Base{
		Commit: h.Commit, Root: root, Objects: e.Store, Desired: desired, Manifest: dir.Manifest(), State: dir.Within(ctx), RootOf: e.Store.RootTree,
		CommitText: func(ctx context.Context, commit plan.ID) ([]byte, error) {
			return e.Store.CommitText(ctx, remote, commit)
		},
	}, nil
}

const (
	// The pause after a denial is random, so that the gateways of a fleet do not all ask at once.
	minReviewPause, maxReviewPause = time.Minute, 5 * time.Minute
)

// reviewResult is the result of the last request to a Webhook. It is valid for the same plan under the same rules.
type reviewResult struct {
	url     string
	uid     string
	err     error     // ValidationDenied or ValidationUnavailable; nil if the plan is allowed
	retryAt time.Time // of a denied plan
	force   string    // the force-sync request at that time; another one asks at once
}

// review asks the Webhook whether the plan may be applied. staged says whether the plan's files were staged, and so
// validated. The first request about a plan follows the staging. Later requests precede it, so that the sync writes no file
// again while it waits.
func (g guard) review(ctx context.Context, changes *plan.Changes, staged bool) error {
	w, h := g.in.conn.Webhook, g.in.dir.Manifest().Header()
	if w == nil || !g.in.delivery().NeedsReview() {
		return nil
	}
	req := g.reviewRequest(changes, h.Commit)
	if len(req.Files) == 0 {
		return nil
	}
	last := &g.memory.review
	same := last.uid == req.UID && last.url == w.URL
	if !same && !staged {
		return nil
	}
	switch {
	case same && last.err == nil:
		return nil
	case same && g.in.Now().Before(last.retryAt) && last.force == g.in.task.Force:
		g.in.report.RetryAt = last.retryAt
		return last.err
	}
	*last = reviewResult{url: w.URL, uid: req.UID, force: g.in.task.Force}
	defer g.in.step("review")()
	answer, err := w.Send(ctx, req)
	switch {
	case err != nil && ctx.Err() != nil:
		*last = reviewResult{}
		return ctx.Err()
	case err != nil && w.IgnoreFailure:
		g.in.note("changed without the consent of the validation webhook (failurePolicy Ignore): %v", err)
	case err != nil:
		last.err = failure.New(v1alpha1.ReasonValidationUnavailable, "the validation webhook was not asked, and nothing was written: %w", err)
	case !*answer.Allowed:
		last.retryAt = g.in.Now().Add(minReviewPause + rand.N(maxReviewPause-minReviewPause)).Truncate(time.Second)
		g.in.report.RetryAt = last.retryAt
		last.err = failure.New(v1alpha1.ReasonValidationDenied, "the validation webhook denies %s: %s; it is asked again at %s, or now: %s",
			g.in.task.Commit.Short(), denialReason(answer), last.retryAt.UTC().Format(time.RFC3339), g.in.task.ask("sync", "--force", v1alpha1.AnnotationForceSync, "a new value"))
	}
	return last.err
}

func denialReason(a review.Answer) string {
	if a.Message == "" {
		return "it gives no reason"
	}
	return failure.Quote(a.Message)
}

// reviewRequest describes a plan.
func (g guard) reviewRequest(changes *plan.Changes, from plan.ID) review.Request {
	return review.Request{
		Namespace: g.in.task.Facts.Namespace, GatewaySync: g.in.task.Facts.CRName, Gateway: g.in.task.Facts.GatewayName, Profile: g.in.task.Profile.Profile,
		Ref: g.in.task.Ref, Commit: g.in.task.Commit.String(), FromCommit: from.String(),
	}.About(changes, g.in.rules.Fingerprint())
}
