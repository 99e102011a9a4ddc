package lead

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/metrics"
	"stoker.io/stoker/internal/status"
)

// fleetState returns what the metrics show of a summary. A condition that status.Conditions does not list is from elsewhere, and gets no series.
func fleetState(sum status.Summary, target v1alpha1.SyncTargetSpec) metrics.FleetState {
	s := metrics.FleetState{Discovered: sum.Discovered, Synced: sum.Synced, States: sum.States}
	for _, row := range status.Conditions {
		if c := meta.FindStatusCondition(sum.Status.Conditions, row.Type); c != nil {
			s.Conditions = append(s.Conditions, *c)
		}
	}
	if at := target.ResolvedAt; at != nil && target.Commit != "" {
		s.Target = at.Time
	}
	return s
}

// longRequest is the longest time between a request and its target. The time of a request that is older, or later than the target, does not
// count, because the clock of its sender may be wrong.
const longRequest = time.Hour

// begun returns when a new target was set, or when the request that led to it was made.
func begun(was, is v1alpha1.SyncTargetSpec) time.Time {
	if is.ResolvedAt == nil {
		return time.Time{}
	}
	set := is.ResolvedAt.Time
	asked, err := time.Parse(time.RFC3339Nano, is.RequestedAt)
	if err != nil || is.RequestedAt == was.RequestedAt || asked.After(set) || set.Sub(asked) > longRequest {
		return set
	}
	return asked
}

// converged measures how long the fleet took, if all its gateways run a target that they did not run before.
func (t *term) converged(was, is *v1alpha1.CommitRecord) {
	if is == nil || was != nil && was.Commit == is.Commit && was.Ref == is.Ref {
		return
	}
	since := t.targetSince
	if at := t.target().ResolvedAt; since.IsZero() && at != nil {
		since = at.Time
	}
	if !since.IsZero() {
		t.metrics.Converged(t.stamp().Sub(since))
	}
}
