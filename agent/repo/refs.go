package repo

import (
	"context"
	"iter"
	"strings"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/wire"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/suggest"
)

const maxRefName = 1024 // bytes

// Ref names a commit: by a branch, a tag, a full name (refs/…), HEAD, a full commit id, or the digest of an artifact.
type Ref struct {
	name   string // "" for a commit
	commit plan.ID
}

// ParseRef reads a ref, by the rules of git check-ref-format, or the digest of an artifact. 40 hex digits are always a commit id. The error
// is RefNotFound.
func ParseRef(s string) (Ref, error) {
	if id, err := plan.ParseID(s); err == nil {
		if id.IsZero() {
			return Ref{}, failure.New(v1alpha1.ReasonRefNotFound, "git.ref: the null id names no commit")
		}
		return Ref{commit: id}, nil
	}
	if problem := refProblem(s); problem != "" {
		return Ref{}, failure.New(v1alpha1.ReasonRefNotFound,
			"git.ref %s is not a valid ref: %s; use a branch, a tag, refs/…, a full commit id or the digest of an artifact", failure.Quote(s), problem)
	}
	return Ref{name: s}, nil
}

// Commit returns the commit id, and whether the ref is one.
func (r Ref) Commit() (plan.ID, bool) { return r.commit, !r.commit.IsZero() }

// IsZero reports whether r is the zero Ref.
func (r Ref) IsZero() bool { return r == Ref{} }

// full reports whether the ref is HEAD or a full name.
func (r Ref) full() bool { return r.name == wire.HeadName || strings.HasPrefix(r.name, "refs/") }

// String returns the text of the ref. A commit id is in lower case.
func (r Ref) String() string {
	if id, ok := r.Commit(); ok {
		return id.String()
	}
	return r.name
}

// refProblem returns why a name cannot be a ref of a server, or "" if it can.
func refProblem(name string) string {
	switch {
	case len(name) > maxRefName:
		return "it is too long"
	case name == "refs", strings.HasPrefix(name, "refs/") && strings.Count(name, "/") < 2:
		return "a full name has at least three parts, as in refs/heads/main"
	}
	if syntax.IsDigest(name) {
		return ""
	}
	return syntax.RefProblem(name)
}

// Refs are the refs of a repository at one moment.
type Refs struct {
	url        URL
	advertised *wire.Refs
	registry   *registry       // nil for git
	ctx        context.Context //nolint:containedctx // of Remote.Refs, for the registry; see there
}

// Refs requests all refs. For a registry it sends nothing: Resolve asks for the ref, within ctx.
func (r *Remote) Refs(ctx context.Context) (*Refs, error) {
	all, err := r.source.Refs(ctx)
	if err != nil {
		return nil, err
	}
	reg, _ := r.source.(*registry)
	return &Refs{r.url, all, reg, ctx}, nil
}

// All returns the full names and the commits of all refs except HEAD, in random order. It returns none for a registry.
func (a *Refs) All() iter.Seq2[string, plan.ID] {
	return func(yield func(string, plan.ID) bool) {
		for name, id := range a.advertised.ByName {
			if target, ok := a.advertised.Peeled[name]; ok {
				id = target
			}
			if name != wire.HeadName && !yield(name, id) {
				return
			}
		}
	}
}

// Resolve finds the commit of a ref. A short name must be a branch or a tag, and not both. For a commit id, Resolve returns the
// id without checking that the repository has the commit.
func (a *Refs) Resolve(ref Ref) (Resolution, error) {
	if res, ok, err := resolveCommit(ref); ok || err != nil {
		return res, err
	}
	if a.registry != nil {
		return a.registry.resolve(a.ctx, ref)
	}
	if len(a.advertised.ByName) == 0 {
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

// Commit returns the commit of a ref, or "" if the repository has no such ref or a branch and a tag of that name. It fails only if a registry
// fails with an error other than RefNotFound.
func (a *Refs) Commit(name string) (string, error) {
	ref, err := ParseRef(name)
	if err != nil {
		return "", nil //nolint:nilerr // no repository can have such a ref
	}
	switch at, err := a.Resolve(ref); {
	case err == nil:
		return at.Commit.String(), nil
	case a.registry == nil, failure.Is(err, v1alpha1.ReasonRefNotFound):
		return "", nil
	default:
		return "", err
	}
}

func (a *Refs) lookup(name string) (Resolution, bool) {
	full, commit, ok := a.advertised.Lookup(name)
	return Resolution{full, commit}, ok
}

func (a *Refs) notFound(ref Ref) error {
	what := "branch or tag"
	if ref.full() {
		what = "ref"
	}
	near := suggestions(ref.name, a.advertised.ByName)
	if len(near) == 0 {
		return failure.New(v1alpha1.ReasonRefNotFound, "%s has no %s %s", a.url, what, failure.Quote(ref.name))
	}
	return failure.New(v1alpha1.ReasonRefNotFound, "%s has no %s %s; did you mean %s?", a.url, what, failure.Quote(ref.name), strings.Join(near, ", "))
}

// suggestions returns names of refs that the user may have meant.
func suggestions(name string, refs map[string]plan.ID) []string {
	names := suggest.Names(shortName(name), shortNames(refs))
	for i := range names {
		names[i] = failure.Quote(names[i])
	}
	return names
}

func shortNames(refs map[string]plan.ID) iter.Seq[string] {
	return func(yield func(string) bool) {
		for full := range refs {
			if refProblem(full) == "" && full != wire.HeadName && !yield(shortName(full)) {
				return
			}
		}
	}
}

func shortName(full string) string {
	if s, ok := strings.CutPrefix(full, wire.BranchPrefix); ok {
		return s
	}
	return strings.TrimPrefix(full, wire.TagPrefix)
}
