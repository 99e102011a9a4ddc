package sync

import (
	"context"
	"fmt"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/schedule"
	"stoker.io/stoker/internal/failure"
)

// checkWindows returns an error if the maintenance windows do not allow this sync to change the gateway now. They delay only what makes a
// gateway that has been synced different: not a repair, which brings back what was delivered, and not what an operator requests because
// the plant needs it now.
//
// The gateway still loads what was delivered before: a sync that has begun ends.
func (j *job) checkWindows(ctx context.Context) error {
	if len(j.t.Profile.Windows) == 0 || j.t.BeforeStart || j.t.Profile.DryRun || j.t.Repair || j.t.Rollback || j.t.WindowApproved || j.force ||
		j.node.Moved() || j.dir.Manifest().Header().Commit.IsZero() {
		return nil
	}
	all, errs := schedule.ParseWindows(j.t.Profile.Windows, j.t.Facts.GatewayName)
	if len(errs) > 0 {
		return failure.New(v1alpha1.ReasonProfilesInvalid, "%w", errs.ToAggregate())
	}
	now := j.Now()
	window, until := all.Closed(now)
	if window == "" {
		return nil
	}
	if !j.unloaded.empty() {
		if err := j.loadCurrent(ctx); err != nil {
			return fmt.Errorf("load %s before %s: %w", j.dir.Manifest().Header().Commit.Short(), j.t.Commit.Short(), err)
		}
	}
	opens := "no time is known at which syncs are allowed"
	if !until.IsZero() {
		j.r.Again = until
		opens = fmt.Sprintf("syncs are allowed at %s", until.UTC().Format(time.RFC3339))
	}
	return failure.New(v1alpha1.ReasonMaintenanceWindow, "%s waits: %s (maintenance window %s); to deliver it now: stoker approve NAME --window",
		j.t.Commit.Short(), opens, window)
}
