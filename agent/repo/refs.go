package repo

import (
	"strings"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// refs is what a repository advertises.
type refs struct {
	byName map[string]plan.ID // full names, and HEAD
	peeled map[string]plan.ID // what annotated tags point to
	head   string             // the branch of HEAD, where it is known
}

func (a *refs) lookup(name string) (Resolution, bool) {
	if name == headName && a.head != "" {
		if _, ok := a.byName[a.head]; ok {
			name = a.head
		}
	}
	if id, ok := a.peeled[name]; ok {
		return Resolution{name, id}, true
	}
	id, ok := a.byName[name]
	return Resolution{name, id}, ok
}

// resolve looks for exactly the name that was asked for; a short one must be a branch or a tag, and not both.
func (a *refs) resolve(u URL, ref Ref) (Resolution, error) {
	if len(a.byName) == 0 {
		return Resolution{}, failure.New(v1alpha1.ReasonRefNotFound,
			"the repository %s is empty: push a first commit to %s", u, quoted(ref.name))
	}
	if ref.name == headName || strings.HasPrefix(ref.name, "refs/") {
		if found, ok := a.lookup(ref.name); ok {
			return found, nil
		}
		return Resolution{}, a.notFound(u, ref)
	}
	branch, isBranch := a.lookup(branchSpace + ref.name)
	tag, isTag := a.lookup(tagSpace + ref.name)
	switch {
	case isBranch && isTag:
		return Resolution{}, failure.New(v1alpha1.ReasonAmbiguousRef,
			"%s is both a branch and a tag of %s: ask for %s or %s", quoted(ref.name), u, branch.Ref, tag.Ref)
	case isBranch:
		return branch, nil
	case isTag:
		return tag, nil
	}
	return Resolution{}, a.notFound(u, ref)
}

func (a *refs) notFound(u URL, ref Ref) error {
	what := "branch or tag"
	if strings.HasPrefix(ref.name, "refs/") || ref.name == headName {
		what = "ref"
	}
	near := nearest(ref.name, a.byName)
	if len(near) == 0 {
		return failure.New(v1alpha1.ReasonRefNotFound, "%s has no %s %s", u, what, quoted(ref.name))
	}
	return failure.New(v1alpha1.ReasonRefNotFound, "%s has no %s %s; did you mean %s?", u, what, quoted(ref.name), strings.Join(near, ", "))
}
