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

// deeper are the depths in which refs are searched for a commit that the server does not serve by its id.
var deeper = [...]int{64, 1024, 16384}

// maxTips is the number of branches and tags in whose history a commit is searched for.
const maxTips = 1000

// place is a part of the history in which a commit may be found.
type place struct {
	tips []plan.ID // as advertised: for an annotated tag, the tag object; servers refuse its target
	name string
	here bool // the only tip is an annotated tag of the commit itself
}

// search looks for the commit of t in what the server does serve: first in ref, then in all branches and tags, each with growing
// depth. Options.SearchBytes bounds the sum of all packs.
func (c *Client) search(ctx context.Context, dog *watchdog, a *advertisement, t *store.Transfer, ref string, refusal error) (*store.Received, error) {
	places := a.refs.places(ref, t.Commit)
	if len(places) > 0 && places[0].tips[0] == t.Commit {
		return nil, failure.New(v1alpha1.ReasonGitUnreachable, "%s advertises commit %s and refuses to send it: %w", c.url, t.Commit, refusal)
	}
	t.Base, t.MaxBytes = plan.ID{}, t.Bytes+c.opts.SearchBytes
	var looked []string
	for _, p := range places {
		looked = append(looked, p.name)
		for _, depth := range a.depths(p) {
			in, whole, err := c.attempt(ctx, dog, a, t, step{want: p.tips[0], more: p.tips[1:], depth: depth})
			if t.Bytes >= t.MaxBytes {
				return nil, failure.New(v1alpha1.ReasonLimitExceeded,
					"%s does not give commit %s by its id, and to look for it takes more than %d bytes: ask for a branch or a tag, or allow the server to serve commits by id",
					c.url, t.Commit, c.opts.SearchBytes)
			}
			if in != nil || (err != nil && !Refused(err)) {
				return in, err
			}
			if whole || err != nil {
				break
			}
		}
	}
	if len(looked) == 0 {
		looked = []string{"nothing, as there is no branch and no tag"}
	}
	return nil, failure.New(v1alpha1.ReasonRefNotFound, "%s does not have commit %s, or does not give it (%w); it was looked for in %s",
		c.url, t.Commit, refusal, strings.Join(looked, ", then in "))
}

// depths lists the depths to search, in order.
func (a *advertisement) depths(p place) []int {
	switch {
	case !a.caps.Supports(capability.Shallow):
		return []int{0}
	case p.here:
		return append([]int{1}, deeper[:]...)
	}
	return deeper[:]
}

// places lists where to search for a commit that was found in ref, the most likely place first. A commit without a ref is most
// likely in the main branch.
func (a *Refs) places(ref string, commit plan.ID) []place {
	if ref == "" {
		ref = HeadName
	}
	var out []place
	if name, target, ok := a.named(ref); ok {
		tip := a.ByName[name]
		out = append(out, place{[]plan.ID{tip}, "the history of " + failure.Quote(ref), target == commit && tip != commit})
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
	return append(out, place{tips: all[:min(len(all), maxTips)], name: "that of all branches and tags"})
}

func compareIDs(a, b plan.ID) int { return bytes.Compare(a[:], b[:]) }
