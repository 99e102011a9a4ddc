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
// delay the first sync, a dry run, a repair of what was delivered, a requested rollback, a forced sync, an approved commit, or
// a node of a pair whose config access changed. They do not delay a sync of what was delivered before, before the gateway's start or on a new
// volume, if the manifest is incomplete, because files may be missing. Package record says what is evidence of this.
//
// While the sync waits, the gateway still loads what an earlier sync delivered.
func (j *job) checkWindows(ctx context.Context) error {
	h := j.dir.Manifest().Header()
	repair, lacksFiles := j.t.Repair && j.describesTarget(h), (j.t.BeforeStart || j.t.NewVolume) && !h.Complete
	if len(j.t.Profile.Windows) == 0 || j.t.Profile.DryRun || repair || j.t.RequestedRollback || j.t.WindowApproved ||
		h.Commit.IsZero() || j.node.AccessChanged() || j.force && j.Record.NewForce(j.t.Force) || lacksFiles && j.Record.Allows(j.t.Commit) {
		return nil
	}
	windows, errs := schedule.ParseWindows(j.t.Profile.Windows, j.t.Facts.GatewayName, j.t.Facts.PodName)
	if len(errs) > 0 {
		return failure.New(v1alpha1.ReasonProfilesInvalid, "%w", errs.ToAggregate())
	}
	window, until := windows.Closed(j.Now())
	if window == "" {
		return nil
	}
	if !j.unloaded.empty() && !j.t.BeforeStart {
		if err := j.loadDiskCommit(ctx); err != nil {
			return fmt.Errorf("load %s before %s: %w", h.Commit.Short(), j.t.Commit.Short(), err)
		}
	}
	opens := "no time is known at which syncs are allowed"
	if !until.IsZero() {
		j.r.RetryAt = until
		opens = fmt.Sprintf("syncs are allowed at %s", until.UTC().Format(time.RFC3339))
	}
	return failure.New(v1alpha1.ReasonMaintenanceWindow, "%s waits: %s (maintenance window %s); to deliver it now: %s",
		j.t.Commit.Short(), opens, window, j.t.ask("approve", "--window", v1alpha1.AnnotationApproved, v1alpha1.WindowApproval+"@"+j.t.Commit.String()))
}
