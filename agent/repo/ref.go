package repo

import (
	"strings"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/wire"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

const maxRefName = 1024 // bytes

// Ref names what to fetch: a branch, a tag, a full name (refs/…), HEAD, or the full id of a commit.
type Ref struct {
	name   string // "" for a commit
	commit plan.ID
}

// ParseRef reads a ref by the rules of git check-ref-format. 40 hex digits are always a commit, never a branch.
func ParseRef(s string) (Ref, error) {
	if id, err := plan.ParseID(s); err == nil {
		if id.IsZero() {
			return Ref{}, failure.New(v1alpha1.ReasonRefNotFound, "git.ref: the null id names no commit")
		}
		return Ref{commit: id}, nil
	}
	if problem := refProblem(s); problem != "" {
		return Ref{}, failure.New(v1alpha1.ReasonRefNotFound,
			"git.ref %s is not a valid ref: %s; give a branch, a tag, refs/… or a full commit id", failure.Quote(s), problem)
	}
	return Ref{name: s}, nil
}

// Commit returns the commit if the ref is the id of one.
func (r Ref) Commit() (plan.ID, bool) { return r.commit, !r.commit.IsZero() }

// IsZero reports whether r is the zero Ref, which names nothing.
func (r Ref) IsZero() bool { return r == Ref{} }

// full reports whether the ref is HEAD or a full name.
func (r Ref) full() bool { return r.name == wire.HeadName || strings.HasPrefix(r.name, "refs/") }

// String returns the text of the ref; for the id of a commit, in lower case.
func (r Ref) String() string {
	if r.name == "" && !r.commit.IsZero() {
		return r.commit.String()
	}
	return r.name
}

// refProblem says why a name cannot be a ref of a server, or "".
func refProblem(name string) string {
	switch {
	case len(name) > maxRefName:
		return "it is too long"
	case name == "refs", strings.HasPrefix(name, "refs/") && strings.Count(name, "/") < 2:
		return "a full name has at least three parts, as in refs/heads/main"
	}
	return v1alpha1.RefProblem(name)
}
