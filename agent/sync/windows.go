package sync

import (
	"context"
	"fmt"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/schedule"
	"stoker.io/stoker/internal/failure"
)

// checkWindows returns an error if the maintenance windows do not allow this sync to change the gateway now. While the sync waits, the gateway
// still loads what an earlier sync delivered.
func (j *job) checkWindows(ctx context.Context) error {
	in := j.in
	if len(in.t.Profile.Windows) == 0 || !in.delivery().WaitsForWindow() {
		return nil
	}
	windows, errs := schedule.ParseWindows(in.t.Profile.Windows, in.t.Facts.GatewayName, in.t.Facts.PodName)
	if len(errs) > 0 {
		return failure.New(v1alpha1.ReasonProfilesInvalid, "%w", errs.ToAggregate())
	}
	window, until := windows.Closed(in.Now())
	if window == "" {
		return nil
	}
	if !j.unloaded.empty() && !in.t.BeforeStart {
		var err error
		if j.unloaded, err = loadDiskCommit(ctx, in, j.unloaded); err != nil {
			return fmt.Errorf("load %s before %s: %w", in.dir.Manifest().Header().Commit.Short(), in.t.Commit.Short(), err)
		}
	}
	opens := "no time is known at which syncs are allowed"
	if !until.IsZero() {
		in.r.RetryAt = until
		opens = fmt.Sprintf("syncs are allowed at %s", until.UTC().Format(time.RFC3339))
	}
	return failure.New(v1alpha1.ReasonMaintenanceWindow, "%s waits: %s (maintenance window %s); to deliver it now: %s",
		in.t.Commit.Short(), opens, window, in.t.ask("approve", "--window", v1alpha1.AnnotationApproved, v1alpha1.WindowApproval+"@"+in.t.Commit.String()))
}
