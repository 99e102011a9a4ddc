package sync

import (
	"context"
	"fmt"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/propose"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Proposals says how a sync treats changes that were made on the gateway and are proposed to git (spec.bidirectional).
type Proposals struct {
	// Watches reports whether changes at a path are proposed.
	Watches func(path string) bool
	// Pending reports whether repairs leave the change at a path alone. The change may still be on its way to git, however long that takes, or
	// the repair is only for changes that were proposed. A pending change delays no commit.
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

// Base returns the commit on the disk as the base of a proposal. t has the profile and the facts that are in force. The error is Progressing
// until a sync with them has delivered a whole commit. If the store has lost the commit's trees, Base fetches them.
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
