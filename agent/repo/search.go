package repo

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// deeper is how far refs are followed back to a commit that the server does not give by its id.
var deeper = [...]int{64, 1024, 16384}

// maxTips is in the history of how many branches and tags a commit is looked for.
const maxTips = 1000

// place is where a commit may be found.
type place struct {
	tips []plan.ID // as they are advertised: of an annotated tag its object, as servers do not count what it points to
	name string
	here bool // the one tip is an annotated tag of the commit itself
}

// search looks for exactly the commit of f in what the server does give: first in its ref, then in all branches and tags,
// each with growing depth. All of it together is bounded by RemoteOptions.SearchBytes.
func (w *smart) search(ctx context.Context, dog *watchdog, a *advert, f *fetch, refusal error) (*incoming, error) {
	places := a.refs.places(f.ref, f.commit)
	if len(places) > 0 && places[0].tips[0] == f.commit {
		return nil, failure.New(v1alpha1.ReasonGitUnreachable, "%s advertises commit %s and refuses to send it: %w", w.url, f.commit, refusal)
	}
	f.base, f.cap = plan.ID{}, f.stats.Bytes+w.opts.SearchBytes
	var looked []string
	for _, p := range places {
		looked = append(looked, p.name)
		for _, depth := range a.depths(p) {
			in, whole, err := w.attempt(ctx, dog, a, f, step{want: p.tips[0], more: p.tips[1:], depth: depth})
			if f.stats.Bytes >= f.cap {
				return nil, failure.New(v1alpha1.ReasonLimitExceeded,
					"%s does not give commit %s by its id, and to look for it takes more than %d bytes: ask for a branch or a tag, or allow the server to serve commits by id",
					w.url, f.commit, w.opts.SearchBytes)
			}
			if in != nil || (err != nil && !refused(err)) {
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
		w.url, f.commit, refusal, strings.Join(looked, ", then in "))
}

// depths lists how deep to look.
func (a *advert) depths(p place) []int {
	switch {
	case !a.caps.Supports(capability.Shallow):
		return []int{0}
	case p.here:
		return append([]int{1}, deeper[:]...)
	}
	return deeper[:]
}

// places lists where to look for a commit that was found in ref, the likeliest first. A commit that was asked for by its id
// is most likely in the main branch.
func (a *refs) places(ref string, commit plan.ID) []place {
	if ref == "" {
		ref = headName
	}
	var out []place
	if found, ok := a.named(ref); ok {
		tip := a.byName[found.Ref]
		out = append(out, place{[]plan.ID{tip}, "the history of " + quoted(ref), found.Commit == commit && tip != commit})
	}
	tips := map[plan.ID]bool{}
	for name, id := range a.byName {
		if strings.HasPrefix(name, branchSpace) || strings.HasPrefix(name, tagSpace) {
			tips[id] = true
		}
	}
	all := slices.SortedFunc(maps.Keys(tips), compareIDs)
	if len(all) == 0 || len(out) == 1 && len(all) == 1 && all[0] == out[0].tips[0] {
		return out
	}
	return append(out, place{tips: all[:min(len(all), maxTips)], name: "that of all branches and tags"})
}

// named looks a ref up by its full or short name.
func (a *refs) named(ref string) (Resolution, bool) {
	for _, name := range []string{ref, branchSpace + ref, tagSpace + ref} {
		if found, ok := a.lookup(name); ok {
			return found, true
		}
	}
	return Resolution{}, false
}

func compareIDs(a, b plan.ID) int { return bytes.Compare(a[:], b[:]) }
