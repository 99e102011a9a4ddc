package sync

import (
	"context"
	"fmt"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// A dry run and a pause do not make the gateway scan. If the target's files are on the disk, they report whether the gateway has
// loaded them.

// endDryRun ends a dry run.
func (j *job) endDryRun(ctx context.Context) error {
	if j.r.DryRun { // files.dryRun has reported the plan
		return nil
	}
	confirmed, err := j.confirmed(ctx)
	if err != nil || confirmed {
		return err
	}
	j.r.Phase, j.r.Reason, j.r.DryRun = Applied, v1alpha1.ReasonDryRun, true
	j.r.Message = fmt.Sprintf("dry run: no scan was requested; the files of %s are on the disk, but the gateway has not confirmed that it loaded them", j.t.Commit.Short())
	return nil
}

// paused ends a sync while syncing is paused. If the gateway already runs the target, the report says so.
func (j *job) paused(ctx context.Context) error {
	held := failure.New(v1alpha1.ReasonPaused, "syncing is paused; the files on the disk stay")
	j.r.Phase = Held
	if j.openDir() != nil || j.open() != nil || !j.filesDone() { // openDir first: invalid rules must not hide the commit
		return held
	}
	upToDate, err := j.confirmed(ctx)
	if upToDate {
		upToDate, err = j.accessUnchanged(ctx)
	}
	if err != nil {
		return err
	}
	if !upToDate {
		return held
	}
	j.r.Phase, j.r.Reason = Synced, v1alpha1.ReasonPaused
	if j.node.Standby() {
		j.r.Phase = Standby
	}
	j.r.Message = "syncing is paused; " + j.t.Commit.Short() + " is on the disk already"
	return nil
}

// accessUnchanged reports whether the node's config access is the same as when its files were last compared.
func (j *job) accessUnchanged(ctx context.Context) (bool, error) {
	if !j.node.Paired() {
		return true, nil
	}
	j.r.Paired = true
	state, _ := j.gateway.state(ctx)
	return j.node.AccessUnchanged(ctx, j.gateway.pairSource(state))
}
