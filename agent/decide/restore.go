package decide

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
)

// RestoreNote is the note in the data directory about the last request to restore a snapshot, or the last automatic rollback. It is in one of
// three states:
//
//	Snapshot  Done
//	named     false  the snapshot replaces the target, and its files are still to be written
//	named     true   its files are written, and the target is blocked
//	""        -      nothing replaces the target: the request is not for this gateway, or has lapsed
//
// In the last state, Request still counts: the same request is not carried out again. The zero note is that of a gateway that never restored
// anything.
type RestoreNote struct {
	Request  string  `json:"request"` // as in annotation.Requests.Restore
	Snapshot string  `json:"snapshot,omitempty"`
	Commit   plan.ID `json:"commit,omitzero"` // the target that is blocked
	Retry    string  `json:"retry,omitempty"` // the request to retry at that time
	Done     bool    `json:"done,omitempty"`
	// Trigger and Cause say why the gateway rolled back automatically; "" for a requested restore.
	Trigger v1alpha1.AutoRollbackTrigger `json:"trigger,omitempty"`
	Cause   string                       `json:"cause,omitempty"`
	// RolledBackFrom is the commit of the last automatic rollback. It is kept in every state, unless the note is damaged.
	RolledBackFrom plan.ID `json:"rolledBackFrom,omitzero"`
}

// UnknownSnapshot is the Snapshot of the note that replaces a damaged one. No snapshot has this name.
const UnknownSnapshot = "unknown"

// maxRequestAge is the age from which a new data volume ignores a request to restore a snapshot.
const maxRequestAge = 24 * time.Hour

// Asked is what is asked of a gateway, as far as restores depend on it.
type Asked struct {
	Gateway string
	Commit  plan.ID // the target
	annotation.Requests
	// Disk is the commit on the disk; zero on a new volume.
	Disk plan.ID
	Now  time.Time
}

// RestoreOf returns a note that a snapshot replaces the target.
func (a Asked) RestoreOf(snapshot string) RestoreNote {
	return RestoreNote{Request: a.Restore, Snapshot: snapshot, Commit: a.Commit, Retry: a.Retry}
}

// Damaged returns the note that replaces a damaged one. It may have blocked the target, so the target is blocked unless its files are on the
// disk.
func (a Asked) Damaged() RestoreNote {
	if a.Disk == a.Commit {
		return RestoreNote{Request: a.Restore}
	}
	n := a.RestoreOf(UnknownSnapshot)
	n.Done = true
	return n
}

// Restore returns the note after n for what is asked: it takes over a new request, and drops the snapshot of one that has lapsed. A request
// lapses when the target is not, or no longer, the commit that is blocked, and when a user retries the target. remark says why a request is
// ignored; it is "" if none is.
//
//	a new request names a snapshot of this gateway   its snapshot replaces the target
//	a new request names another gateway              nothing replaces the target
//	the target is another commit                     nothing
//	a new request to retry this target               nothing
//	a new force-sync request                         as before: it repairs drift, and only a retry delivers the blocked commit
//	the request is a day old, and the volume is new  nothing: an earlier volume of this gateway probably carried it out
//	otherwise                                        as before
func Restore(n RestoreNote, a Asked) (next RestoreNote, remark string) {
	next = n
	if a.Restore != "" && a.Restore != n.Request {
		next = a.RestoreOf(annotation.RestoresOn(a.Restore, a.Gateway))
		next.RolledBackFrom = n.RolledBackFrom
	}
	switch {
	case next.Snapshot == "": // nothing to drop
	case next.lapsed(a):
		next.Snapshot = ""
	case !next.Done && a.outdated():
		remark = fmt.Sprintf("the request to restore %s is older than this data volume; ask again to restore it", next.Snapshot)
		next.Snapshot = ""
	}
	return next, remark
}

func (n RestoreNote) lapsed(a Asked) bool {
	return n.Commit != a.Commit || n.Retry != a.Retry && annotation.Retries(a.Retry, a.Commit.String())
}

// outdated reports whether the request was probably carried out on an earlier data volume, because this one is new and the request is not. A
// request without a time is part of the spec, and never outdated.
func (a Asked) outdated() bool {
	_, requestedAt, _ := strings.Cut(a.Restore, " ")
	t, err := time.Parse(time.RFC3339, requestedAt)
	return err == nil && a.Disk.IsZero() && a.Now.Sub(t) > maxRequestAge
}

// Why returns the beginning of a message: why the gateway rolled back automatically, or "".
func (n RestoreNote) Why() string {
	if n.Trigger == "" {
		return ""
	}
	return fmt.Sprintf("rolled back automatically (%s: %s); ", n.Trigger, n.Cause)
}

const (
	// loadGrace is how long a commit must keep failing before the gateway rolls back.
	loadGrace = 30 * time.Second
	// requiredScanFailures is the number of scans that must fail within scanWindow.
	requiredScanFailures = 3
	scanWindow           = 2 * time.Minute
	// failurePause is the pause between two attempts while it is not certain yet that the commit is to blame.
	failurePause = 9 * time.Second
)

// Failures are the consecutive failures of a gateway to load one commit. A restart of the agent forgets them.
type Failures struct {
	commit plan.ID
	since  time.Time
	scans  []time.Time // the last requiredScanFailures
}

// LoadFailure is a failure of a gateway to load the target.
type LoadFailure struct {
	Target plan.ID
	// Symptoms are the triggers that the failure matches. An unreachable gateway, a refused token and a lock of another client match none,
	// nor does what failed before the sync.
	Symptoms []v1alpha1.AutoRollbackTrigger
	// Triggers is spec.autoRollback.triggers; empty if it is off.
	Triggers []v1alpha1.AutoRollbackTrigger
	// Known reports that the agent knows what the gateway loaded before the target.
	Known bool
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
	if !l.Known || l.Requested || l.Resumes || l.Standby || !l.Running {
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
//	what the gateway loaded before is not known           none, as without a snapshot
//	the failure matches no trigger that the spec names    none
//	the gateway lacks a project or a resource             due when the target has failed for half a minute
//	a scan fails                                          … and at least three times within two minutes
func (f Failures) Add(l LoadFailure) (next Failures, due v1alpha1.AutoRollbackTrigger, retry time.Time) {
	trigger := l.trigger()
	if trigger == "" {
		return Failures{}, "", time.Time{}
	}
	if f.commit != l.Target || l.Now.Before(f.since) {
		f = Failures{commit: l.Target, since: l.Now}
	}
	if trigger == v1alpha1.TriggerScanFailure {
		f.scans = append(slices.Clone(f.scans), l.Now)
		f.scans = f.scans[max(0, len(f.scans)-requiredScanFailures):]
	}
	enough := l.Now.Sub(f.since) >= loadGrace
	if trigger == v1alpha1.TriggerScanFailure {
		enough = enough && len(f.scans) == requiredScanFailures && l.Now.Sub(f.scans[0]) <= scanWindow
	}
	if !enough {
		return f, "", l.Now.Add(failurePause)
	}
	return f, trigger, time.Time{}
}
