package decide

import (
	"slices"
	"time"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
)

const (
	// loadGrace is how long a commit must keep failing before the gateway rolls back.
	loadGrace = 30 * time.Second
	// requiredScanFailures is the number of scans that must fail in a row. A scan that hangs takes minutes, so any time may lie between them.
	requiredScanFailures = 3
	// failurePause is the pause between two attempts while it is not certain yet that the commit is to blame.
	failurePause = 9 * time.Second
)

// Failures are the consecutive failures of a gateway to load one commit. A restart of the agent forgets them.
type Failures struct {
	commit plan.ID
	since  time.Time
	scans  int // failed ones
}

// LoadFailure is a failure of a gateway to load the target.
type LoadFailure struct {
	Target plan.ID
	// Symptoms are the triggers that the failure matches. An unreachable gateway, a refused token and a lock of another client match none,
	// nor does what failed before the sync.
	Symptoms []v1alpha1.AutoRollbackTrigger
	// Triggers is spec.autoRollback.triggers; empty if it is off.
	Triggers []v1alpha1.AutoRollbackTrigger
	// HasBaseline reports that there is a baseline (unloaded.Baseline): the snapshot to go back to and, if the gateway answered, what it did
	// not show before the target.
	HasBaseline bool
	// Requested reports that an operator requested a rollback to the target, which is not undone.
	Requested bool
	// Resumes reports that the target is only what is on the disk, because git has not been asked yet.
	Resumes bool
	// Standby reports a node of a redundant pair that has no access to its configuration.
	Standby bool
	// Running reports that the gateway runs. One that starts or stops may fail because of that.
	Running bool
	Now     time.Time
}

// trigger returns the trigger that applies; "" for none.
func (l LoadFailure) trigger() v1alpha1.AutoRollbackTrigger {
	if !l.HasBaseline || l.Requested || l.Resumes || l.Standby || !l.Running {
		return ""
	}
	for _, t := range l.Symptoms {
		if slices.Contains(l.Triggers, t) {
			return t
		}
	}
	return ""
}

// Add returns the failures with another one, and the trigger of the automatic rollback that is due; "" if none is. If one may follow, retry is
// when to try again.
//
//	the gateway starts, stops, or is a standby node       the target is not the cause: none
//	an operator requested to go back to the target        none
//	the agent has started, and not asked git yet          none: an operator may have requested to go back to the files on the disk
//	there is no baseline                                  none, for example without a snapshot
//	the failure matches no trigger that the spec names    none
//	the gateway lacks a project or a resource             due when the target has failed for half a minute
//	a scan fails                                          … and at least three scans have failed in a row
func (f Failures) Add(l LoadFailure) (next Failures, due v1alpha1.AutoRollbackTrigger, retry time.Time) {
	trigger := l.trigger()
	if trigger == "" {
		return Failures{}, "", time.Time{}
	}
	if f.commit != l.Target || l.Now.Before(f.since) {
		f = Failures{commit: l.Target, since: l.Now}
	}
	if trigger == v1alpha1.TriggerScanFailure {
		f.scans++
	}
	if l.Now.Sub(f.since) < loadGrace || trigger == v1alpha1.TriggerScanFailure && f.scans < requiredScanFailures {
		return f, "", l.Now.Add(failurePause)
	}
	return f, trigger, time.Time{}
}
