package repo

import (
	"context"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// Admit holds what a SyncTarget says against git: the commit must be the tip of ref or in its history, and a ref other than spec.git.ref
// must be one that a request may name. Any gateway of the namespace can write the SyncTarget, and git hosts also give the commits of
// forks by their id. It returns the full name of the ref; "" for a commit that the spec names by its id.
func (s *Store) Admit(ctx context.Context, r *Remote, git *v1alpha1.GitSpec, name string, commit plan.ID) (string, error) {
	ref, err := ParseRef(name)
	if err != nil {
		return "", err
	}
	requested := name != git.Ref
	id, fixed := ref.Commit()
	if fixed && id != commit {
		return "", failure.New(v1alpha1.ReasonRefNotAllowed, "the SyncTarget says commit %s for %s", commit, id)
	}
	if fixed && !requested {
		return "", nil
	}
	all, err := r.Refs(ctx)
	if err != nil {
		return "", err
	}
	at, err := all.Resolve(ref)
	if err != nil {
		return "", err
	}
	if requested {
		if err := all.Allowed(ctx, s, r, git.RequestableRefs(), at); err != nil {
			return "", err
		}
	}
	if at.Commit == commit {
		return at.Ref, nil
	}
	behind, err := s.Reaches(ctx, r, all, []string{at.Ref}, commit)
	if err == nil && !behind {
		err = failure.New(v1alpha1.ReasonRefNotAllowed, "commit %s of the SyncTarget is not in the history of %s", commit, at.Ref)
	}
	return at.Ref, err
}
