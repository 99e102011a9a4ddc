package follow

import (
	"context"
	"errors"

	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
)

// stopCheck says whether a running sync may still change files. Staging, a backup and the gateway's lock can take an hour.
type stopCheck struct {
	targets    *targetWatch
	spec       *specReader
	effective  func(*v1alpha1.GatewaySync) (effective.Settings, error)
	generation int64 // of the spec of the sync
}

// check returns an error if an operator has paused syncing since the sync began, or if the SyncTarget is gone. Another commit does not stop a
// sync, because commits may come faster than a sync ends.
func (c stopCheck) check(ctx context.Context) error {
	t, err := c.targets.get()
	switch {
	case errors.Is(err, kube.ErrNotSeen) && c.targets.listed():
		return failure.New(v1alpha1.ReasonWaitingForLead, "SyncTarget %s is gone; nothing was written", c.spec.name)
	case err != nil:
		return nil //nolint:nilerr // the order stays in force
	case t.Spec.Paused, t.Spec.Generation != c.generation && c.pauses(ctx, t.Spec.Generation):
		return sync.PausedError()
	}
	return nil
}

// pauses reports whether a generation of the spec pauses this gateway. If it cannot be read, the earlier one stays in force.
func (c stopCheck) pauses(ctx context.Context, generation int64) bool {
	ctx, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	gs, err := c.spec.objects.Get(ctx, c.spec.name)
	if err != nil || gs.Generation != generation {
		return false
	}
	delete(gs.Annotations, v1alpha1.AnnotationPaused) // a pause by annotation comes through the target
	settings, _ := c.effective(gs)                    // Paused is set even with an error
	return settings.Paused
}
