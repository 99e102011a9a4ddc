package follow

import (
	"context"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// The service account token of any gateway in the namespace can write the SyncTarget, and git hosts also serve the commits of forks and
// pull requests to any client that has their ids. So a follower believes a target only as far as the GatewaySync and git bear it out:
//   - its ref is spec.git.ref, or the one that stoker.io/requested-ref asks for, at the commit that is asked for with it (vouched);
//   - a requested ref is one that spec.git.allowedRefs admits, and the commit is the tip of the ref or in its history (admit).
//
// A commit that is completely on the disk was admitted before, so it is accepted again, even while a newer request is
// refused.

// vouched returns why a GatewaySync that was just read does not ask for what the target says; nil if it does.
func (f *Follower) vouched(gs *v1alpha1.GatewaySync, in *instruction) error {
	var err error
	switch commit := gs.RequestedCommit(); {
	case in.Ref == "" || in.Ref == gs.Spec.Git.Ref || f.holds(in.Commit):
	case in.Ref != gs.Annotations[v1alpha1.AnnotationRequestedRef]:
		err = failure.New(v1alpha1.ReasonWaitingForLead, "the SyncTarget says %q, which neither spec.git.ref nor a request asks for: waiting for its lead", in.Ref)
	case commit != "" && !in.Commit.IsZero() && commit != in.Commit.String():
		err = failure.New(v1alpha1.ReasonWaitingForLead, "the SyncTarget says commit %s for %q, which is requested at %s: waiting for its lead", in.Commit, in.Ref, commit)
	}
	if p, ok := in.unresolved(gs.Generation); ok && err != nil { // what is requested now is refused: only a person can help
		err = failure.New(p.Reason, "%s", p.Message)
	}
	if err != nil {
		return err
	}
	if in.ForceID != "" && in.ForceID != clip(gs.ForceSync(), maxForce) {
		return failure.New(v1alpha1.ReasonWaitingForLead, "the SyncTarget says forceSync %q, and the GatewaySync does not: waiting for its lead", in.ForceID)
	}
	if in.ConfirmDeletion != "" && in.ConfirmDeletion != gs.ConfirmedDeletion() {
		return failure.New(v1alpha1.ReasonWaitingForLead, "the SyncTarget confirms the deletion of %q, and the GatewaySync does not: waiting for its lead", in.ConfirmDeletion)
	}
	if in.Propose != "" && in.Propose != gs.Propose() {
		return failure.New(v1alpha1.ReasonWaitingForLead, "the SyncTarget says propose %q, and the GatewaySync does not: waiting for its lead", in.Propose)
	}
	if in.Restore != "" && in.Restore != gs.Restore() {
		return failure.New(v1alpha1.ReasonWaitingForLead, "the SyncTarget says restore %q, and the GatewaySync does not: waiting for its lead", in.Restore)
	}
	if in.Retry != "" && in.Retry != gs.Retry() {
		return failure.New(v1alpha1.ReasonWaitingForLead, "the SyncTarget says retry %q, and the GatewaySync does not: waiting for its lead", in.Retry)
	}
	return nil
}

// holds reports whether the whole commit lies on the disk.
func (f *Follower) holds(commit plan.ID) bool {
	d, err := f.Engine.Open()
	if err != nil {
		return false
	}
	h := d.Manifest().Header()
	return h.Complete && !commit.IsZero() && h.Commit == commit
}

// admission checks one commit of a SyncTarget against git. After the first success it does not ask again.
type admission struct {
	git    v1alpha1.GitSpec
	remote *repo.Remote
	store  *repo.Store
	ref    string
	commit plan.ID

	found bool
	name  string // of the ref that the commit was found by
	lacks int    // how often git did not bear out the commit
}

// lags is how many times a commit that git does not confirm is treated as not there yet, instead of refused. A mirror, or another server
// of the host, may lag behind the one that the lead asked, and a refusal would make a waiting promotion fail.
const lags = 2

// admit returns the full name of the ref that the commit is the tip of, or in the history of; "" for a commit that was asked for
// by its id.
func (a *admission) admit(ctx context.Context) (string, error) {
	if a.found {
		return a.name, nil
	}
	name, err := a.find(ctx)
	a.found, a.name = err == nil, name
	if failure.Is(err, v1alpha1.ReasonRefNotFound) || failure.Is(err, v1alpha1.ReasonRefNotAllowed) {
		if a.lacks++; a.lacks <= lags {
			return "", failure.New(v1alpha1.ReasonWaitingForLead, "git does not bear out the SyncTarget yet, and is asked again: %w", err)
		}
	}
	return name, err
}

func (a *admission) find(ctx context.Context) (string, error) {
	return a.store.Admit(ctx, a.remote, &a.git, a.ref, a.commit)
}
