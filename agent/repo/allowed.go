package repo

import (
	"context"
	"fmt"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"stoker.io/stoker/agent/repo/wire"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Allowed checks the ref of a request against the patterns of the refs that a request may name (spec.git.allowedRefs): a ref by
// its full name, a commit by the refs whose history has it. Without a store, a commit that is not a tip is refused. The error is
// RefNotAllowed, or says why the history could not be searched.
func (a *Refs) Allowed(ctx context.Context, s *Store, r *Remote, patterns []string, at Resolution) error {
	if at.Ref != "" {
		if admits(patterns, at.Ref) {
			return nil
		}
		return failure.New(v1alpha1.ReasonRefNotAllowed, "a request may not name %s: allowedRefs of the spec admits %s", at.Ref, shown(patterns))
	}
	var names []string
	for name, id := range a.All() {
		if admits(patterns, name) {
			if id == at.Commit {
				return nil
			}
			names = append(names, name)
		}
	}
	if s != nil && len(names) > 0 {
		ok, err := s.Reaches(ctx, r, a, names, at.Commit)
		if err != nil || ok {
			return err
		}
	}
	return failure.New(v1alpha1.ReasonRefNotAllowed, "commit %s is not part of a ref that a request may name: allowedRefs of the spec admits %s", at.Commit, shown(patterns))
}

// admits matches a full name against patterns. A pattern that starts with refs/ matches full names, others match branches and tags.
func admits(patterns []string, full string) bool {
	short, ok := strings.CutPrefix(full, wire.BranchPrefix)
	if !ok {
		if short, ok = strings.CutPrefix(full, wire.TagPrefix); !ok {
			short = ""
		}
	}
	for _, p := range patterns {
		name := short
		if strings.HasPrefix(p, "refs/") {
			name = full
		}
		if match, err := doublestar.Match(p, name); err == nil && match && name != "" {
			return true
		}
	}
	return false
}

const (
	maxPatterns = 8
	maxPattern  = 80
)

// shown lists the first patterns for a message.
func shown(patterns []string) string {
	var list []string
	for _, p := range patterns[:min(len(patterns), maxPatterns)] {
		list = append(list, fmt.Sprintf("%.*s", maxPattern, p))
	}
	if more := len(patterns) - maxPatterns; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(list, ", "), more)
	}
	return strings.Join(list, ", ")
}
