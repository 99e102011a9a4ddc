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

// Watch sets the paths whose changes are sent back to git: the next comparisons list them. nil means none.
func (e *Engine) Watch(watch func(path string) bool) { e.watch = watch }

func (e *Engine) watches(path string) bool { return e.watch != nil && e.watch(path) }

// Notes returns the open data directory, which keeps notes, or nil.
func (e *Engine) Notes() *disk.Dir { return e.dir }

// Added returns the watched files that the gateway added: those in mapped directories that git does not have. It walks these directories.
func (e *Engine) Added(ctx context.Context, b propose.Base) ([]string, error) {
	defer e.during(ctx)()
	var list []string
	for f, err := range b.Desired.Unwanted(b.Manifest, b.State) {
		if err != nil {
			return nil, fmt.Errorf("look for new files: %w", err)
		}
		if e.watches(f.Path) {
			list = append(list, f.Path)
		}
	}
	return list, nil
}

// Base returns the commit on the disk for a proposal. t has the profile and the facts that are in force.
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
	rules, err := (&job{Engine: e, t: t}).rulesAt(t.Ref, t.Commit)
	if err != nil {
		return propose.Base{}, err
	}
	if rules.Fingerprint() != h.Rules {
		return propose.Base{}, failure.New(v1alpha1.ReasonProgressing, "the profile has changed, and its sync is not done yet")
	}
	if !e.Store.Has(h.Commit) { // a recreated pod begins with an empty store
		if _, err := e.Store.FetchTrees(ctx, remote, h.Commit, t.Name); err != nil {
			return propose.Base{}, err
		}
	}
	defer e.during(ctx)()
	root, err := e.Store.RootTree(h.Commit)
	if err != nil {
		return propose.Base{}, err
	}
	desired, err := e.desire(h.Commit, rules)
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
