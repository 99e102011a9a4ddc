package repo

import (
	"context"
	"slices"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// maxReachTips is the number of refs from which a commit is searched for.
const maxReachTips = 5000

// Reaches reports whether one of the named refs points to commit or to a descendant of it. That a commit can be fetched does not
// prove it: hosts also serve commits of forks by their id. Reaches requests commits only, without trees. A server that cannot leave
// out trees sends the history with its files, which is searched less deep. The history is in the store's directory during the
// search; a Fetch may run at the same time.
//
// The error says why the question has no answer: the history is too long or too large.
func (s *Store) Reaches(ctx context.Context, r *Remote, a *Refs, names []string, commit plan.ID) (bool, error) {
	var tips []plan.ID
	for _, name := range slices.Sorted(slices.Values(names)) {
		if found, ok := a.lookup(name); ok && found.Commit == commit {
			return true, nil
		}
		// As advertised, because servers refuse the target of an annotated tag.
		if id, ok := a.all.ByName[name]; ok && !slices.Contains(tips, id) && len(tips) < maxReachTips {
			tips = append(tips, id)
		}
	}
	if len(tips) == 0 {
		return false, nil
	}
	if err := s.looking.lock(ctx); err != nil {
		return false, err
	}
	defer s.looking.unlock()
	if last := &s.unreached; last.remote == r && last.commit == commit && slices.Equal(last.tips, tips) {
		return false, last.err
	}
	t, err := s.packs.Begin(commit)
	if err != nil {
		return false, err
	}
	defer t.Close()
	found, err := r.source.Reaches(ctx, t, tips)
	if !found && (err == nil || failure.Is(err, v1alpha1.ReasonRefNotAllowed)) {
		s.unreached = unreached{r, commit, tips, err}
	}
	return found, err
}

// unreached is the answer of a Reaches that did not find its commit. That answer costs the most, and holds until a ref moves.
type unreached struct {
	remote *Remote
	commit plan.ID
	tips   []plan.ID
	err    error
}
