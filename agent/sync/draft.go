package sync

import (
	"context"
	"path"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/desired"
	"stoker.io/stoker/agent/plan/planner"
	"stoker.io/stoker/agent/redundancy"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
)

// draft is what a sync would write.
type draft struct {
	changes *plan.Changes
	desired *desired.Tree // the tree of the target; nil if it was not needed
	rules   plan.Rules    // with which desired was rendered
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
		out.rules.Form = resource.FormOf(v.Major, v.Minor) // the form in which the gateway signs resources
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
// already right. Then fetch gets only the trees, and fetchBlobs gets the missing blobs.
func (d drafter) fetch(ctx context.Context) (repo.FetchStats, error) {
	in := d.in
	h, name := in.dir.Manifest().Header(), in.task.Name
	// A manifest without Rules was corrected, and may name the commit of a forged status: see record.Correct.
	onDisk := h.Commit == in.task.Commit && h.Rules != "" && (h.Ref == in.task.Ref || !in.rules.DependsOnRef())
	if in.task.Admit != nil && !onDisk {
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
// bytes. A thumbnail with other bytes does not count: the gateway writes thumbnails itself. A partial store fetches other blobs (of a file
// changed on the gateway, of a template) when they are read.
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
