package sync

import (
	"context"
	"fmt"
	"time"

	"stoker.io/stoker/agent/decide"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/schedule"
	"stoker.io/stoker/internal/failure"
)

// delivery returns what package decide needs to know about this sync.
func (j *job) delivery() decide.Delivery {
	h := j.dir.Manifest().Header()
	return decide.Delivery{
		First: h.Commit.IsZero(), DryRun: j.t.Profile.DryRun, Repair: j.t.Repair && j.describesTarget(h), Rollback: j.t.RequestedRollback,
		Approved: j.t.WindowApproved, Forced: j.force && j.Record.NewForce(j.t.Force), AccessChanged: j.node.AccessChanged(),
		SameCommit: h.Commit == j.t.Commit, SameRules: h.Rules == j.rules.Fingerprint(),
		LacksFiles: (j.t.BeforeStart || j.t.NewVolume) && !h.Complete, Recorded: j.Record.Allows(j.t.Commit),
	}
}

// checkWindows returns an error if the maintenance windows do not allow this sync to change the gateway now. While the sync waits, the gateway
// still loads what an earlier sync delivered.
func (j *job) checkWindows(ctx context.Context) error {
	if len(j.t.Profile.Windows) == 0 || !j.delivery().WaitsForWindow() {
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
			return fmt.Errorf("load %s before %s: %w", j.dir.Manifest().Header().Commit.Short(), j.t.Commit.Short(), err)
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
