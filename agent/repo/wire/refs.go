package wire

import (
	"strings"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"

	"stoker.io/stoker/agent/plan"
)

// Names of refs.
const (
	HeadName     = "HEAD"
	BranchPrefix = "refs/heads/"
	TagPrefix    = "refs/tags/"
)

// alternateName stands for objects that git-receive-pack has from another repository. It is not a ref.
const alternateName = ".have"

// Refs is what a repository advertises.
type Refs struct {
	ByName map[string]plan.ID // full names, and HEAD
	Peeled map[string]plan.ID // the targets of annotated tags
	Head   string             // the branch of HEAD, "" if it is not known
}

// Lookup finds a ref by its full name, or HEAD. It returns the name of the branch for HEAD if that is known, and the target of
// an annotated tag.
func (r *Refs) Lookup(name string) (full string, commit plan.ID, ok bool) {
	if name == HeadName && r.Head != "" {
		if _, ok := r.ByName[r.Head]; ok {
			name = r.Head
		}
	}
	if id, ok := r.Peeled[name]; ok {
		return name, id, true
	}
	id, ok := r.ByName[name]
	return name, id, ok
}

// named looks a ref up by its full or short name.
func (r *Refs) named(ref string) (full string, commit plan.ID, ok bool) {
	for _, name := range []string{ref, BranchPrefix + ref, TagPrefix + ref} {
		if full, commit, ok := r.Lookup(name); ok {
			return full, commit, true
		}
	}
	return "", plan.ID{}, false
}

// readRefs converts go-git's maps.
func readRefs(a *packp.AdvRefs) *Refs {
	r := &Refs{ByName: make(map[string]plan.ID, len(a.References)+1), Peeled: make(map[string]plan.ID, len(a.Peeled))}
	for name, id := range a.References {
		if name != alternateName {
			r.ByName[name] = plan.ID(id)
		}
	}
	for name, id := range a.Peeled {
		r.Peeled[name] = plan.ID(id)
	}
	if a.Head != nil {
		r.ByName[HeadName] = plan.ID(*a.Head)
	}
	for _, s := range a.Capabilities.Get(capability.SymRef) {
		if target, ok := strings.CutPrefix(s, HeadName+":"); ok {
			r.Head = target
		}
	}
	return r
}
