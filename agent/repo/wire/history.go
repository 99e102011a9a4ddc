package wire

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/store"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// HistoryDepths are the depths, in commits, to which Reaches requests the history of refs, one after the other, from a server that can
// leave out trees. In a directory of this machine, package repo visits no more commits than the last one says.
var HistoryDepths = [...]int{1024, 65536}

// Reaches reports whether the commit of t is one of tips or one of their ancestors. It requests commits only, without trees. A
// server that cannot leave out trees sends the history with its files; for such a server, Reaches searches fewer commits
// (searchDepths). The packs are removed afterwards. If the history is too long or too large, the error is RefNotAllowed.
func (c *Client) Reaches(ctx context.Context, t *store.Transfer, tips []plan.ID) (bool, error) {
	t.MaxBytes = c.opts.SearchBytes
	ctx, f, stop, err := c.startFetch(ctx, t)
	if err != nil {
		return false, err
	}
	defer stop()
	defer c.cache.put(f.ad)
	depths := HistoryDepths[:]
	if !f.ad.caps.Supports(capability.Filter) {
		depths = searchDepths[:]
	}
	if !f.ad.caps.Supports(capability.Shallow) {
		depths = []int{0}
	}
	for _, depth := range depths {
		found, whole, err := f.searchStep(ctx, step{wants: tips, depth: depth, commitsOnly: true})
		if t.Bytes >= t.MaxBytes {
			return false, failure.New(v1alpha1.ReasonRefNotAllowed,
				"commit %s was not found in the allowed refs of %s within %d bytes of history: ask for a branch or a tag, or set uploadpack.allowFilter on the server",
				t.Commit, c.url, t.MaxBytes)
		}
		if found || whole || err != nil {
			return found, err
		}
	}
	return false, failure.New(v1alpha1.ReasonRefNotAllowed,
		"commit %s is not among the last %d commits of the allowed refs of %s: ask for a branch or a tag", t.Commit, depths[len(depths)-1], c.url)
}

// searchStep reports whether the commit of the transfer is among the commits that a step brings.
func (f *fetch) searchStep(ctx context.Context, s step) (found, whole bool, err error) {
	in, whole, err := f.receive(ctx, s)
	if IsRefused(err) {
		err = failure.New(v1alpha1.ReasonGitUnreachable, "%s does not send its history: %w", f.client.url, Foreign(err, nil))
	}
	if err != nil {
		return false, false, err
	}
	defer f.t.Drop(in)
	err = f.t.CheckObjects(in, f.t.Commit)
	if store.IsNotFound(err) {
		return false, whole, nil
	}
	return err == nil, whole, err
}

// CommitText returns the bytes of the commit of t, which must be the tip of a ref. It requests the commit without its tree.
func (c *Client) CommitText(ctx context.Context, t *store.Transfer) ([]byte, error) {
	return c.fetchObject(ctx, t, step{wants: []plan.ID{t.Commit}, depth: 1, commitsOnly: true}, t.CommitText)
}

// TagText returns the bytes of the annotated tag with the id t.Commit, which must be advertised. commit is the target of the tag and
// must be in the store, so that the server sends the tag alone.
func (c *Client) TagText(ctx context.Context, t *store.Transfer, commit plan.ID) ([]byte, error) {
	return c.fetchObject(ctx, t, step{wants: []plan.ID{t.Commit}, base: commit, commitsOnly: true}, t.TagText)
}

// fetchObject receives the pack of a step, and returns what read reads from it.
func (c *Client) fetchObject(ctx context.Context, t *store.Transfer, s step, read func(*store.Received) ([]byte, error)) ([]byte, error) {
	t.MaxBytes = c.opts.SearchBytes
	ctx, f, stop, err := c.startFetch(ctx, t)
	if err != nil {
		return nil, err
	}
	defer stop()
	defer c.cache.put(f.ad)
	in, _, err := f.receive(ctx, s)
	if IsRefused(err) {
		err = failure.New(v1alpha1.ReasonGitUnreachable, "%s does not send %s: %w", c.url, t.Commit.Short(), Foreign(err, nil))
	}
	if err != nil {
		return nil, err
	}
	defer t.Drop(in)
	return read(in)
}

// searchDepths are the depths, in commits, to which Fetch requests the history of refs to find a commit, and Reaches from a server that
// cannot leave out trees.
var searchDepths = [...]int{64, 1024, 16384}

// maxTips is the maximum number of branches and tags whose history Fetch searches for a commit.
const maxTips = 1000

// searchScope is a part of the history in which a commit may be found.
type searchScope struct {
	tips  []plan.ID // as advertised, because servers refuse the target of an annotated tag
	name  string
	isTag bool // the only tip is an annotated tag of the commit
}

// search looks for the commit of f.t, which the server does not serve by its id: first in ref, then in all branches and tags, each with
// growing depth. Options.SearchBytes bounds the sum of all packs. refusal is the error of the last request for the commit.
func (f *fetch) search(ctx context.Context, ref string, refusal error) (*store.Received, error) {
	t, url, limit := f.t, f.client.url, f.client.opts.SearchBytes
	scopes := f.ad.refs.searchScopes(ref, t.Commit)
	if len(scopes) > 0 && scopes[0].tips[0] == t.Commit {
		return nil, failure.New(v1alpha1.ReasonGitUnreachable, "%s advertises commit %s and refuses to send it: %w", url, t.Commit, refusal)
	}
	t.MaxBytes = t.Bytes + limit
	var searched []string
	for _, scope := range scopes {
		searched = append(searched, scope.name)
		for _, depth := range f.ad.depths(scope) {
			in, whole, err := f.attempt(ctx, step{wants: scope.tips, depth: depth})
			if t.Bytes >= t.MaxBytes {
				return nil, failure.New(v1alpha1.ReasonLimitExceeded,
					"%s does not serve commit %s by its id, and the search for it takes more than %d bytes: ask for a branch or a tag, or allow the server to serve commits by id",
					url, t.Commit, limit)
			}
			if in != nil || (err != nil && !IsRefused(err)) {
				return in, err
			}
			if whole || err != nil {
				break
			}
		}
	}
	if len(searched) == 0 {
		searched = []string{"nothing, because there is no branch and no tag"}
	}
	return nil, failure.New(v1alpha1.ReasonRefNotFound, "%s does not have commit %s, or does not serve it (%w); searched: %s",
		url, t.Commit, refusal, strings.Join(searched, ", then in "))
}

// depths lists the depths to search, in order.
func (a *advertisement) depths(scope searchScope) []int {
	switch {
	case !a.caps.Supports(capability.Shallow):
		return []int{0}
	case scope.isTag:
		return append([]int{1}, searchDepths[:]...)
	}
	return searchDepths[:]
}

// searchScopes lists where to search for a commit that was found in ref, the most likely scope first. A commit without a ref is
// most likely in the branch of HEAD.
func (a *Refs) searchScopes(ref string, commit plan.ID) []searchScope {
	if ref == "" {
		ref = HeadName
	}
	var out []searchScope
	if name, target, ok := a.lookupShort(ref); ok {
		tip := a.ByName[name]
		out = append(out, searchScope{[]plan.ID{tip}, "the history of " + failure.Quote(ref), target == commit && tip != commit})
	}
	tips := map[plan.ID]bool{}
	for name, id := range a.ByName {
		if strings.HasPrefix(name, BranchPrefix) || strings.HasPrefix(name, TagPrefix) {
			tips[id] = true
		}
	}
	all := slices.SortedFunc(maps.Keys(tips), compareIDs)
	if len(all) == 0 || len(out) == 1 && len(all) == 1 && all[0] == out[0].tips[0] {
		return out
	}
	return append(out, searchScope{tips: all[:min(len(all), maxTips)], name: "that of all branches and tags"})
}

func compareIDs(a, b plan.ID) int { return bytes.Compare(a[:], b[:]) }
