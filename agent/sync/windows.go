package sync

import (
	"context"
	"fmt"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/schedule"
	"stoker.io/stoker/internal/failure"
)

// checkWindows returns an error if the maintenance windows do not allow this sync to change the gateway now. They do not
// delay a gateway's first sync, a repair, which restores what was delivered, and what an operator requests because the plant
// needs it now.
//
// While the sync waits, the gateway still loads what an earlier sync delivered.
func (j *job) checkWindows(ctx context.Context) error {
	if len(j.t.Profile.Windows) == 0 || j.t.BeforeStart || j.t.Profile.DryRun || j.t.Repair || j.t.RequestedRollback || j.t.WindowApproved || j.force ||
		j.node.AccessChanged() || j.dir.Manifest().Header().Commit.IsZero() {
		return nil
	}
	windows, errs := schedule.ParseWindows(j.t.Profile.Windows, j.t.Facts.GatewayName)
	if len(errs) > 0 {
		return failure.New(v1alpha1.ReasonProfilesInvalid, "%w", errs.ToAggregate())
	}
	window, until := windows.Closed(j.Now())
	if window == "" {
		return nil
	}
	if !j.unloaded.empty() {
		if err := j.loadDiskCommit(ctx); err != nil {
			return fmt.Errorf("load %s before %s: %w", j.dir.Manifest().Header().Commit.Short(), j.t.Commit.Short(), err)
		}
	}
	opens := "no time is known at which syncs are allowed"
	if !until.IsZero() {
		j.r.RetryAt = until
		opens = fmt.Sprintf("syncs are allowed at %s", until.UTC().Format(time.RFC3339))
	}
	return failure.New(v1alpha1.ReasonMaintenanceWindow, "%s waits: %s (maintenance window %s); to deliver it now: stoker approve NAME --window",
		j.t.Commit.Short(), opens, window)
}
