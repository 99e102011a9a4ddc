package sync

import (
	"context"
	"fmt"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// A dry run and a pause send nothing to the gateway. About files that are on the disk, they report what is known.

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
	j.r.Message = fmt.Sprintf("dry run, nothing was sent to the gateway: the files of %s are on the disk, and it has not confirmed them", j.t.Commit.Short())
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

// confirmed reports whether the gateway has loaded the files on the disk, or true if there is no gateway or no API token. It
// returns an error if the gateway was not seen running since its start.
func (j *job) confirmed(ctx context.Context) (bool, error) {
	if j.conn.Gateway == nil || !j.conn.HasAPIToken {
		return true, nil
	}
	if err := j.unloaded.dropContradicted(j.dir); err != nil {
		return false, err
	}
	if j.t.BeforeStart {
		return false, j.reportNotStarted()
	}
	if !j.gateway.seenRunning() {
		if err := j.checkStarted(ctx); err != nil {
			return false, err
		}
	}
	return j.unloaded.empty(), nil
}
