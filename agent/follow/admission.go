package follow

import (
	"context"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/failure"
)

// Any gateway in the namespace can write the SyncTarget with its service account token, and git hosts also serve the commits of forks and
// pull requests to any client that has their ids. So a follower takes the requests from the GatewaySync, and checks the target against it
// and git:
//   - its hash is that of the annotations (checkRequests);
//   - its ref is spec.git.ref, or the one of stoker.io/requested-ref at the commit that is requested with it (checkRequests);
//   - a requested ref is one that spec.git.allowedRefs admits, and the commit is the tip of the ref or in its history (admit).
//
// A commit that is completely on the disk was admitted before, so the follower accepts it again under the same ref, even while a newer request
// is refused. Another ref can change what templates render.

// checkRequests returns why a GatewaySync that was just read does not ask for what the target says; nil if it does.
func checkRequests(gs *v1alpha1.GatewaySync, in *instruction, onDisk volume) error {
	var err error
	switch commit := desiredref.InputsOf(gs).Commit(); {
	case in.Ref == "" || in.Ref == gs.Spec.Git.Ref || onDisk.holds(in.Ref, in.Commit):
	case in.Ref != gs.Annotations[v1alpha1.AnnotationRequestedRef]:
		err = failure.New(v1alpha1.ReasonWaitingForLead, "the SyncTarget says %q, which neither spec.git.ref nor a request asks for: waiting for its lead", in.Ref)
	case commit != "" && !in.Commit.IsZero() && commit != in.Commit.String():
		err = failure.New(v1alpha1.ReasonWaitingForLead, "the SyncTarget says commit %s for %q, which is requested at %s: waiting for its lead", in.Commit, in.Ref, commit)
	}
	if p, ok := in.unresolved(gs.Generation); ok && err != nil { // the lead refuses the current request: only an operator can help
		err = failure.New(p.Reason, "%s", p.Message)
	}
	if err != nil {
		return err
	}
	if in.hash != annotation.Hash(gs) {
		return failure.New(v1alpha1.ReasonWaitingForLead, "the SyncTarget was made from other requests than the annotations of the GatewaySync: waiting for its lead")
	}
	return nil
}

// admission checks one commit of a SyncTarget against git. After the first success it does not ask again.
type admission struct {
	git     v1alpha1.GitSpec
	remote  *repo.Remote
	store   *repo.Store
	ref     string
	commit  plan.ID
	earlier bool // the commit ran on this gateway, or everywhere; its ref may have moved since, or not be admitted any more

	admitted bool
	name     string // the full name of the ref, once admitted
	misses   int    // how often git did not confirm the commit
}

// maxMisses is how often a commit that git does not confirm is treated as not there yet, instead of refused. A mirror, or another server
// of the host, may lag behind the one that the lead asked, and a refusal would make a waiting promotion fail.
const maxMisses = 2

// admit returns the full name of the ref that has the commit as its tip or in its history; "" for a commit that was requested by its id. For
// an earlier commit, the history of any ref that spec.git.allowedRefs admits will do; then the name is "", too.
func (a *admission) admit(ctx context.Context) (string, error) {
	if a.admitted {
		return a.name, nil
	}
	name, err := a.store.Admit(ctx, a.remote, &a.git, a.ref, a.commit)
	if a.earlier && isRefused(err) {
		name, err = a.store.Admit(ctx, a.remote, &a.git, a.commit.String(), a.commit)
	}
	a.admitted, a.name = err == nil, name
	if isRefused(err) {
		if a.misses++; a.misses <= maxMisses {
			return "", failure.New(v1alpha1.ReasonWaitingForLead, "git does not confirm the SyncTarget yet; retrying: %w", err)
		}
	}
	return name, err
}

func isRefused(err error) bool {
	return failure.Is(err, v1alpha1.ReasonRefNotFound) || failure.Is(err, v1alpha1.ReasonRefNotAllowed)
}
