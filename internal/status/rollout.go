package status

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/api/v1alpha1/syntax"
)

// Standing is the state of a gateway for the published target. From the Standings, the lead decides how a rollout goes on.
type Standing struct {
	Name string
	// Pod is the name of its pod.
	Pod string
	// Label also names the pod if its name differs.
	Label string
	// Synced means that the gateway runs the target, verified.
	Synced bool
	// Stale means that the gateway ran the commit of the target, verified, when it last reported, which was about an earlier revision.
	Stale   bool
	Phase   v1alpha1.GatewaySyncState
	Reason  v1alpha1.Reason
	Message string
	// Commit is the commit on its disk.
	Commit string
	// AutoRollback is the commit from which it went back by itself, while that commit is blocked.
	AutoRollback string
	// Planned is the commit of its dry run.
	Planned string
}

// Standings returns the states of the gateways, sorted by name. A gateway that reports about an earlier target is Pending, and so is one
// whose pod terminates, because the target may have broken it. A paused one keeps its state.
func Standings(s Seen) []Standing {
	rows := gateways(&s, true)
	out := make([]Standing, len(rows))
	for i := range rows {
		g := &rows[i]
		out[i] = Standing{Name: g.Name, Pod: g.PodName, Label: gatewaypod.GatewayLabel(g.Name, g.PodName), Synced: g.synced, Stale: g.stale, Phase: g.SyncStatus, Reason: g.Reason,
			Message: g.Message, Commit: g.SyncedCommit, AutoRollback: g.AutoRollback, Planned: g.planned}
	}
	return out
}

// rolloutVerdict returns the state of a fleet during a rollout.
func rolloutVerdict(f *facts) verdict {
	r := f.Rollout
	stage := func(reason v1alpha1.Reason) string {
		if r.Stage == "" {
			return ""
		}
		return nameWithReason("stage "+r.Stage, reason, 0)
	}
	says := func(reason v1alpha1.Reason) verdict {
		return verdict{metav1.ConditionFalse, reason, f.fleet.countSynced(f.describeTarget()) + "; " + r.Message, stage(reason)}
	}
	switch r.Phase {
	case v1alpha1.RolloutAborted:
		return verdict{metav1.ConditionFalse, v1alpha1.ReasonCanaryStageFailed, r.Message, stage(v1alpha1.ReasonCanaryStageFailed)}
	case v1alpha1.RolloutWaiting:
		return says(v1alpha1.ReasonApprovalNeeded)
	case v1alpha1.RolloutSoaking:
		return says(v1alpha1.ReasonRolloutSoaking)
	case v1alpha1.RolloutPlanning:
		return says(v1alpha1.ReasonProgressing)
	}
	if f.fleet.synced() == len(f.fleet) {
		return says(v1alpha1.ReasonProgressing)
	}
	v := f.fleet.behind(f.describeTarget())
	if planned(v.reason) && v.reason != v1alpha1.ReasonMaintenanceWindow { // the reports of the open step are on their way
		return says(v1alpha1.ReasonProgressing)
	}
	return v
}

// rolloutEvents emits the Event of a stage that was opened, waits for an approval or failed.
func rolloutEvents(f *facts, emit eventFunc) {
	was, is := f.last.Rollout, f.Rollout
	if is == nil || was != nil && was.Commit == is.Commit && was.Phase == is.Phase && was.Stage == is.Stage {
		return
	}
	if was == nil || was.Commit != is.Commit {
		was = &v1alpha1.RolloutStatus{}
	}
	switch is.Phase {
	case v1alpha1.RolloutProgressing, v1alpha1.RolloutSoaking:
		if is.Step > was.Step && is.Stage != "" && (is.Stage != was.Stage || was.Phase == v1alpha1.RolloutWaiting) {
			approved := ""
			if annotation.Approved(f.GatewaySync, is.Stage, is.Commit) {
				approved = "; approved as " + is.Stage + "@" + is.Commit
			}
			emit(false, v1alpha1.EventStageOpened, "stage %s: its gateways may follow %s%s", is.Stage, syntax.ShortCommit(is.Commit), approved)
		}
	case v1alpha1.RolloutWaiting:
		emit(true, v1alpha1.EventSyncHeld, "%s: %s", v1alpha1.ReasonApprovalNeeded, is.Message)
	case v1alpha1.RolloutAborted:
		emit(true, v1alpha1.EventCanaryStageFailed, "%s", is.Message)
	case v1alpha1.RolloutPlanning, v1alpha1.RolloutDone:
	}
}
