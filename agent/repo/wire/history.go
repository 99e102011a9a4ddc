package wire

import (
	"context"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/store"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// HistoryDepths are the numbers of commits behind the tips of refs in which a commit is searched for, one after the other.
var HistoryDepths = [...]int{1024, 65536}

// Reaches reports whether the commit of t is one of tips or one of their ancestors. It asks for commits only, without trees. A
// server that cannot leave out trees sends the history with its files, which is searched less deep. The packs are removed
// afterwards.
func (c *Client) Reaches(ctx context.Context, t *store.Transfer, tips []plan.ID) (bool, error) {
	ctx, dog, stop := watch(ctx, c.opts.Total, c.opts.StallBytes, c.opts.StallWindow)
	defer stop()
	t.MaxBytes = c.opts.SearchBytes
	a, err := c.advertised(ctx, dog)
	if err != nil {
		return false, err
	}
	defer c.last.put(a)
	depths := HistoryDepths[:]
	if !a.caps.Supports(capability.Filter) {
		depths = deeper[:]
	}
	if !a.caps.Supports(capability.Shallow) {
		depths = []int{0}
	}
	for _, depth := range depths {
		found, whole, err := c.behind(ctx, dog, a, t, step{want: tips[0], more: tips[1:], depth: depth})
		if t.Bytes >= t.MaxBytes {
			return false, failure.New(v1alpha1.ReasonRefNotAllowed,
				"whether commit %s belongs to an allowed ref of %s cannot be told within %d bytes of history: ask for a branch or a tag, or set uploadpack.allowFilter on the server",
				t.Commit, c.url, t.MaxBytes)
		}
		if found || whole || err != nil {
			return found, err
		}
	}
	return false, failure.New(v1alpha1.ReasonRefNotAllowed,
		"commit %s is not among the last %d commits of the allowed refs of %s: ask for a branch or a tag", t.Commit, depths[len(depths)-1], c.url)
}

// CommitText returns the bytes of the commit of t, which must be the tip of a ref. It asks for the commit without its tree.
func (c *Client) CommitText(ctx context.Context, t *store.Transfer) ([]byte, error) {
	return c.object(ctx, t, step{want: t.Commit, depth: 1}, t.CommitText)
}

// TagText returns the bytes of an annotated tag, the id of t, which must be advertised. A server that is told that the store has the commit
// of the tag sends the tag alone.
func (c *Client) TagText(ctx context.Context, t *store.Transfer, commit plan.ID) ([]byte, error) {
	return c.object(ctx, t, step{want: t.Commit, base: commit}, t.TagText)
}

// object receives an object, without trees if the server can leave them out.
func (c *Client) object(ctx context.Context, t *store.Transfer, s step, text func(*store.Received) ([]byte, error)) ([]byte, error) {
	ctx, dog, stop := watch(ctx, c.opts.Total, c.opts.StallBytes, c.opts.StallWindow)
	defer stop()
	t.MaxBytes = c.opts.SearchBytes
	a, err := c.advertised(ctx, dog)
	if err != nil {
		return nil, err
	}
	defer c.last.put(a)
	req := a.request(s)
	if a.caps.Supports(capability.Filter) {
		_ = req.Capabilities.Set(capability.Filter) // fails for arguments only
		req.Filter = packp.FilterTreeDepth(0)
	}
	in, _, err := c.receive(ctx, dog, a, t, req)
	if Refused(err) {
		err = failure.New(v1alpha1.ReasonGitUnreachable, "%s does not send %s: %w", c.url, t.Commit.Short(), Foreign(err, nil))
	}
	if err != nil {
		return nil, err
	}
	defer t.Drop(in)
	return text(in)
}

// behind looks for the commit of t among the commits that a step brings.
func (c *Client) behind(ctx context.Context, dog *watchdog, a *advertisement, t *store.Transfer, s step) (found, whole bool, err error) {
	req := a.request(s)
	if a.caps.Supports(capability.Filter) {
		_ = req.Capabilities.Set(capability.Filter) // fails for arguments only
		req.Filter = packp.FilterTreeDepth(0)
	}
	in, whole, err := c.receive(ctx, dog, a, t, req)
	if Refused(err) {
		err = failure.New(v1alpha1.ReasonGitUnreachable, "%s does not send its history: %w", c.url, Foreign(err, nil))
	}
	if err != nil {
		return false, false, err
	}
	defer t.Drop(in)
	if err := t.Contains(in, t.Commit); err != nil {
		if store.IsNotFound(err) {
			err = nil
		}
		return false, whole, err
	}
	return true, whole, nil
}
