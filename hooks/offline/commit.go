package offline

import (
	"context"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
)

// Commit has the objects of one commit. Its blobs are fetched when they are read.
type Commit struct {
	plan.CancelableObjects
	root     plan.ID
	prefetch func([]plan.ID) error
}

// Commit returns the objects of a commit, of which it fetches only the trees. When ctx is done, reads fail.
func (c *Checkout) Commit(ctx context.Context, at repo.Resolution) (*Commit, error) {
	if _, err := c.store.FetchTrees(ctx, c.remote, at.Commit, at.Ref); err != nil {
		return nil, err
	}
	root, err := c.store.RootTree(at.Commit)
	if err != nil {
		return nil, err
	}
	objects := plan.CancelableObjects{Objects: c.store, Canceled: func() error { return context.Cause(ctx) }}
	prefetch := func(ids []plan.ID) error {
		_, err := c.store.FetchBlobs(ctx, ids)
		return err
	}
	return &Commit{objects, root, prefetch}, nil
}

// Root returns the tree of the commit.
func (c *Commit) Root() plan.ID { return c.root }

// Prefetch fetches blobs, all at once.
func (c *Commit) Prefetch(ids []plan.ID) error { return c.prefetch(ids) }
