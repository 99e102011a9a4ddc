package repo

import (
	"context"
	"iter"
	"strings"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/wire"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Refs are the refs of a repository at one moment: one advertisement, which answers any number of questions.
type Refs struct {
	url URL
	all *wire.Refs
}

// Refs asks for all refs.
func (r *Remote) Refs(ctx context.Context) (*Refs, error) {
	all, err := r.source.Refs(ctx)
	if err != nil {
		return nil, err
	}
	return &Refs{r.url, all}, nil
}

// All returns the full names of all refs except HEAD with their commits, in no order.
func (a *Refs) All() iter.Seq2[string, plan.ID] {
	return func(yield func(string, plan.ID) bool) {
		for name, id := range a.all.ByName {
			if to, ok := a.all.Peeled[name]; ok {
				id = to
			}
			if name != wire.HeadName && !yield(name, id) {
				return
			}
		}
	}
}

// Resolve finds the commit of a ref. The id of a commit stands for itself, whether or not the repository has the commit. A short
// name must be a branch or a tag, and not both.
func (a *Refs) Resolve(ref Ref) (Resolution, error) {
	if res, ok, err := resolveCommit(ref); ok || err != nil {
		return res, err
	}
	if len(a.all.ByName) == 0 {
		return Resolution{}, failure.New(v1alpha1.ReasonRefNotFound,
			"the repository %s is empty: push a first commit to %s", a.url, failure.Quote(ref.name))
	}
	if ref.full() {
		if found, ok := a.lookup(ref.name); ok {
			return found, nil
		}
		return Resolution{}, a.notFound(ref)
	}
	branch, isBranch := a.lookup(wire.BranchPrefix + ref.name)
	tag, isTag := a.lookup(wire.TagPrefix + ref.name)
	switch {
	case isBranch && isTag:
		return Resolution{}, failure.New(v1alpha1.ReasonAmbiguousRef,
			"%s is both a branch and a tag of %s: ask for %s or %s", failure.Quote(ref.name), a.url, branch.Ref, tag.Ref)
	case isBranch:
		return branch, nil
	case isTag:
		return tag, nil
	}
	return Resolution{}, a.notFound(ref)
}

func (a *Refs) lookup(name string) (Resolution, bool) {
	full, commit, ok := a.all.Lookup(name)
	return Resolution{full, commit}, ok
}

func (a *Refs) notFound(ref Ref) error {
	what := "branch or tag"
	if ref.full() {
		what = "ref"
	}
	near := suggestions(ref.name, a.all.ByName)
	if len(near) == 0 {
		return failure.New(v1alpha1.ReasonRefNotFound, "%s has no %s %s", a.url, what, failure.Quote(ref.name))
	}
	return failure.New(v1alpha1.ReasonRefNotFound, "%s has no %s %s; did you mean %s?", a.url, what, failure.Quote(ref.name), strings.Join(near, ", "))
}
