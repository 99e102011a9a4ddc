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

// alternatesRef is how git-receive-pack advertises objects of another repository. It is not a ref.
const alternatesRef = ".have"

// Refs is what a repository advertises.
type Refs struct {
	ByName map[string]plan.ID // full names, and HEAD
	Peeled map[string]plan.ID // by the full names of refs to annotated tags: the targets of the tags
	Head   string             // full name of the branch of HEAD; "" if it is not known
}

// Lookup returns the full name and the commit of a ref, by its full name or HEAD. For HEAD, it returns the name of the branch if
// that is known. For an annotated tag, it returns the target.
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

// lookupShort is Lookup by a full or a short name.
func (r *Refs) lookupShort(ref string) (full string, commit plan.ID, ok bool) {
	for _, name := range []string{ref, BranchPrefix + ref, TagPrefix + ref} {
		if full, commit, ok := r.Lookup(name); ok {
			return full, commit, true
		}
	}
	return "", plan.ID{}, false
}

// readRefs converts an advertisement of go-git.
func readRefs(a *packp.AdvRefs) *Refs {
	r := &Refs{ByName: make(map[string]plan.ID, len(a.References)+1), Peeled: make(map[string]plan.ID, len(a.Peeled))}
	for name, id := range a.References {
		if name != alternatesRef {
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
