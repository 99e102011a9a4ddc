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
	if !in.task.Profile.DryRun {
		return nil
	}
	if in.report.DryRun { // stager.dryRun has reported the plan
		return errEnd
	}
	confirmed, err := confirm(ctx, in, &j.unloaded)
	if err != nil {
		return err
	}
	if !confirmed {
		in.report.Phase, in.report.Reason, in.report.DryRun = v1alpha1.GatewayApplied, v1alpha1.ReasonDryRun, true
		in.report.Message = fmt.Sprintf("dry run: no scan was requested; the files of %s are on the disk, but the gateway has not confirmed that it loaded them", in.task.Commit.Short())
	}
	return errEnd
}

// pause ends a sync while syncing is paused. If the gateway already runs the target, the report says so.
func (j *job) pause(ctx context.Context) error {
	in := j.in
	if !in.task.Profile.Paused {
		return nil
	}
	held := failure.New(v1alpha1.ReasonPaused, "syncing is paused; the files on the disk stay")
	in.report.Phase = v1alpha1.GatewayHeld
	// openDir comes first, so that the report has the commit on the disk even if open finds that the rules are invalid.
	if j.openDir() != nil || j.open(ctx) != nil || !in.filesDone() {
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
	in.report.Phase, in.report.Reason = v1alpha1.GatewaySynced, v1alpha1.ReasonPaused
	if in.node.Standby() {
		in.report.Phase = v1alpha1.GatewayStandby
	}
	in.report.Message = "syncing is paused; " + in.task.Commit.Short() + " is on the disk already"
	return errEnd
}

// accessUnchanged reports whether the node's config access is the same as when its files were last compared.
func (j *job) accessUnchanged(ctx context.Context) (bool, error) {
	if !j.in.node.Paired() {
		return true, nil
	}
	j.in.report.Paired = true
	state, _ := j.in.gateway.state(ctx)
	return j.in.node.AccessUnchanged(ctx, j.in.gateway.pairSource(state))
}

// PausedError returns the error of Task.Stop for a sync that was paused while it ran. Its reason is not Paused, which would end the sync for
// good: the agent tries again, unless syncing is still paused then.
func PausedError() error {
	return failure.New(v1alpha1.ReasonProgressing, "syncing was paused during the sync; nothing was written")
}
