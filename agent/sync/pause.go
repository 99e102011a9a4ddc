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
	in := j.in
	if !in.t.Profile.DryRun {
		return nil
	}
	if in.r.DryRun { // stager.dryRun has reported the plan
		return errEnd
	}
	confirmed, err := confirm(ctx, in, &j.unloaded)
	if err != nil {
		return err
	}
	if !confirmed {
		in.r.Phase, in.r.Reason, in.r.DryRun = v1alpha1.GatewayApplied, v1alpha1.ReasonDryRun, true
		in.r.Message = fmt.Sprintf("dry run: no scan was requested; the files of %s are on the disk, but the gateway has not confirmed that it loaded them", in.t.Commit.Short())
	}
	return errEnd
}

// pause ends a sync while syncing is paused. If the gateway already runs the target, the report says so.
func (j *job) pause(ctx context.Context) error {
	in := j.in
	if !in.t.Profile.Paused {
		return nil
	}
	held := failure.New(v1alpha1.ReasonPaused, "syncing is paused; the files on the disk stay")
	in.r.Phase = v1alpha1.GatewayHeld
	if j.openDir() != nil || j.open(ctx) != nil || !in.filesDone() { // openDir first: invalid rules must not hide the commit
		return held
	}
	upToDate, err := confirm(ctx, in, &j.unloaded)
	if upToDate {
		upToDate, err = j.accessUnchanged(ctx)
	}
	if err != nil {
		return err
	}
	if !upToDate {
		return held
	}
	in.r.Phase, in.r.Reason = v1alpha1.GatewaySynced, v1alpha1.ReasonPaused
	if in.node.Standby() {
		in.r.Phase = v1alpha1.GatewayStandby
	}
	in.r.Message = "syncing is paused; " + in.t.Commit.Short() + " is on the disk already"
	return errEnd
}

// accessUnchanged reports whether the node's config access is the same as when its files were last compared.
func (j *job) accessUnchanged(ctx context.Context) (bool, error) {
	if !j.in.node.Paired() {
		return true, nil
	}
	j.in.r.Paired = true
	state, _ := j.in.gateway.state(ctx)
	return j.in.node.AccessUnchanged(ctx, j.in.gateway.pairSource(state))
}

// PausedError returns the error of Task.Stop for a sync that was paused while it ran. Its reason is not Paused, so that the sync is tried again
// if no paused order follows.
func PausedError() error {
	return failure.New(v1alpha1.ReasonProgressing, "syncing was paused during the sync; nothing was written")
}
