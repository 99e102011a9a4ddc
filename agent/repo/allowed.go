package repo

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bmatcuk/doublestar/v4"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/store"
	"stoker.io/stoker/agent/repo/wire"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/internal/failure"
)

// Admit checks the ref name and the commit of a SyncTarget, because the token of any agent in the namespace can write it, and
// git hosts also serve the commits of forks by their id. The commit must be the tip of the ref or in its history. If name is
// not spec.git.ref, a request must be allowed to name it. Admit returns the full name of the ref, or "" if name is a commit id. For a
// registry, which has no history, Reaches says which commits count instead.
func (s *Store) Admit(ctx context.Context, r *Remote, git *v1alpha1.GitSpec, name string, commit plan.ID) (string, error) {
	ref, err := ParseRef(name)
	if err != nil {
		return "", err
	}
	requested := name != git.Ref
	id, isCommit := ref.Commit()
	if isCommit && id != commit {
		return "", failure.New(v1alpha1.ReasonRefNotAllowed, "the SyncTarget says commit %s for %s", commit, id)
	}
	if isCommit && !requested {
		return "", nil
	}
	all, err := r.Refs(ctx)
	if err != nil {
		return "", err
	}
	resolved, err := all.Resolve(ref)
	if err != nil {
		return "", err
	}
	if requested {
		if err := all.CheckAllowed(ctx, s, r, git.RequestableRefs(), resolved); err != nil {
			return "", err
		}
	}
	if resolved.Commit == commit {
		return resolved.Ref, nil
	}
	reached, err := s.Reaches(ctx, r, all, []string{resolved.Ref}, commit)
	switch {
	case err != nil || reached:
	case all.registry != nil:
		err = failure.New(v1alpha1.ReasonRefNotAllowed, "%s is at %s now, and this gateway never had %s: request its digest (sha256:…)",
			resolved.Ref, resolved.Commit.Short(), commit)
	default:
		err = failure.New(v1alpha1.ReasonRefNotAllowed, "commit %s of the SyncTarget is not in the history of %s", commit, resolved.Ref)
	}
	return resolved.Ref, err
}

// CheckAllowed returns nil if a request may name a resolved ref. patterns are those of spec.git.allowedRefs: a ref must match one
// by its full or short name, and a commit must be in the history of a matching ref. If s is nil, a commit must be the tip of one. For a
// digest or a commit of a registry, see admitArtifact. The error is RefNotAllowed, or says why the history could not be searched.
func (a *Refs) CheckAllowed(ctx context.Context, s *Store, r *Remote, patterns []string, resolved Resolution) error {
	if a.registry != nil && !strings.HasPrefix(resolved.Ref, wire.TagPrefix) {
		return a.admitArtifact(ctx, s, patterns, resolved)
	}
	if resolved.Ref != "" {
		if matchesAny(patterns, resolved.Ref) {
			return nil
		}
		return failure.New(v1alpha1.ReasonRefNotAllowed, "a request may not name %s: allowedRefs of the spec admits %s", resolved.Ref, listPatterns(patterns))
	}
	var names []string
	for name, id := range a.All() {
		if matchesAny(patterns, name) {
			if id == resolved.Commit {
				return nil
			}
			names = append(names, name)
		}
	}
	if s != nil && len(names) > 0 {
		ok, err := s.Reaches(ctx, r, a, names, resolved.Commit)
		if err != nil || ok {
			return err
		}
	}
	return failure.New(v1alpha1.ReasonRefNotAllowed, "commit %s is not part of a ref that a request may name: allowedRefs of the spec admits %s", resolved.Commit, listPatterns(patterns))
}

// matchesAny reports whether a pattern matches the ref with this full name. A pattern that starts with refs/ matches full names;
// others match the short names of branches and tags. An invalid pattern matches nothing.
func matchesAny(patterns []string, full string) bool {
	short := shortName(full)
	for _, p := range patterns {
		name := short
		switch {
		case strings.HasPrefix(p, "refs/"):
			name = full
		case short == full: // neither a branch nor a tag, so it has no short name
			continue
		}
		if validation.PatternProblem(p) == "" && doublestar.MatchUnvalidated(p, name) {
			return true
		}
	}
	return false
}

const (
	maxListedPatterns = 8  // in a message
	maxPatternLength  = 80 // characters of a pattern in a message
)

// listPatterns lists the first patterns for a message.
func listPatterns(patterns []string) string {
	var list []string
	for _, p := range patterns {
		list = append(list, fmt.Sprintf("%.*s", maxPatternLength, p))
	}
	return failure.First(list, maxListedPatterns)
}

// maxReachTips is the maximum number of refs whose history Reaches searches.
const maxReachTips = 5000

// Reaches reports whether one of the named refs points to commit or to a descendant of it. A successful fetch of the commit does
// not prove that: hosts also serve commits of forks by their id. Reaches requests commits only, without trees. A server that
// cannot leave out trees sends the history with its files; for such a server, Reaches searches fewer commits. During the search, the
// fetched packs are in the store's directory. If the history is too long or too large, the error is RefNotAllowed. Reaches searches
// the history of the first maxReachTips refs by name; if there are more and it did not find the commit, the error is LimitExceeded.
//
// The tags of a registry have no history. There, Reaches reports whether the store has the commit, as the commit of an artifact of the registry.
func (s *Store) Reaches(ctx context.Context, r *Remote, all *Refs, names []string, commit plan.ID) (bool, error) {
	if all.registry != nil {
		return s.imported(ctx, all.registry, commit)
	}
	var tips []plan.ID
	seen := map[plan.ID]bool{}
	for _, name := range slices.Sorted(slices.Values(names)) {
		if found, ok := all.lookup(name); ok && found.Commit == commit {
			return true, nil
		}
		// Use the advertised id, because servers refuse requests for the target of an annotated tag.
		if id, ok := all.advertised.ByName[name]; ok && !seen[id] {
			seen[id] = true
			if len(tips) < maxReachTips {
				tips = append(tips, id)
			}
		}
	}
	if len(tips) == 0 {
		return false, nil
	}
	found, err := s.search(ctx, r, commit, tips)
	if err == nil && !found && len(seen) > len(tips) {
		err = store.OverLimit("commit %s is not in the history of the first %d of %d refs of %s that may have it: ask for a branch or a tag, or narrow allowedRefs",
			commit, len(tips), len(seen), r.url)
	}
	return found, err
}

// search reports whether one of tips is commit or a descendant of it.
func (s *Store) search(ctx context.Context, r *Remote, commit plan.ID, tips []plan.ID) (bool, error) {
	if err := s.searching.lock(ctx); err != nil {
		return false, err
	}
	defer s.searching.unlock()
	if last := &s.lastMiss; last.remote == r && last.commit == commit && slices.Equal(last.tips, tips) && s.now().Before(last.end) {
		return false, last.err
	}
	t, err := s.Begin(commit)
	if err != nil {
		return false, err
	}
	defer t.Close()
	found, err := r.source.Reaches(ctx, t, tips)
	if !found && (err == nil || failure.Is(err, v1alpha1.ReasonRefNotAllowed)) {
		s.lastMiss = miss{r, commit, tips, err, s.now().Add(missLifetime)}
	}
	return found, err
}

// missLifetime bounds how long a miss holds if no ref moves: a user may deepen a shallow clone, or let a server omit trees.
const missLifetime = 10 * time.Minute

// miss is a call of Reaches that did not find its commit, with its error, if any. The Store keeps the last one, because such a
// search costs the most.
type miss struct {
	remote *Remote
	commit plan.ID
	tips   []plan.ID
	err    error
	end    time.Time
}
