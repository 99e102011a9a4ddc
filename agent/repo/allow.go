package repo

import (
	"context"
	"fmt"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Allowed holds what a request resolved to against the patterns of refs that a request may name (spec.git.allowedRefs): a
// ref by its full name, a commit by the refs that it is behind. Without a store a commit that is no tip is refused. The
// error is RefNotAllowed, or says why it cannot be told.
func (a *Refs) Allowed(ctx context.Context, s *Store, r *Remote, patterns []string, at Resolution) error {
	if at.Ref != "" {
		if admits(patterns, at.Ref) {
			return nil
		}
		return failure.New(v1alpha1.ReasonRefNotAllowed, "a request may not name %s: spec.git.allowedRefs admits %s", at.Ref, shown(patterns))
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
	return failure.New(v1alpha1.ReasonRefNotAllowed, "commit %s is not part of a ref that a request may name: spec.git.allowedRefs admits %s", at.Commit, shown(patterns))
}

// admits matches a full name by patterns: one that starts with refs/ speaks of full names, others of branches and tags.
func admits(patterns []string, full string) bool {
	short, ok := strings.CutPrefix(full, "refs/heads/")
	if !ok {
		if short, ok = strings.CutPrefix(full, "refs/tags/"); !ok {
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

// shown writes the first of the patterns.
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
