package decide

import (
	"fmt"
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
//	""        -      nothing replaces the target: the request has lapsed
//
// In the last state, Request still counts: the same request is not carried out again. The zero note is that of a gateway that never restored
// anything.
type RestoreNote struct {
	Request  string  `json:"request"`          // as in annotation.Requests.Restore
	OfSpec   string  `json:"ofSpec,omitempty"` // the snapshot of the spec that was carried out, or that an annotation hid
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

// RestoreOf returns the note that replaces n when a snapshot replaces the target.
func (n RestoreNote) RestoreOf(snapshot string, a Asked) RestoreNote {
	next := RestoreNote{Request: a.Restore, OfSpec: n.OfSpec, Snapshot: snapshot, Commit: a.Commit, Retry: a.Retry, RolledBackFrom: n.RolledBackFrom}
	return next.sawSpec(a)
}

// sawSpec records the snapshot of the spec, unless the request for it was dropped and is still to be carried out.
func (n RestoreNote) sawSpec(a Asked) RestoreNote {
	if ofSpec := a.RestoreOfSpec(); a.Restore != "" || ofSpec == "" {
		n.OfSpec = ofSpec
	}
	return n
}

// Damaged returns the note that replaces a damaged one. The damaged note may have blocked the target, so the new one does, unless the target is
// on the disk.
func (a Asked) Damaged() RestoreNote {
	if a.Disk == a.Commit {
		return RestoreNote{}.RestoreOf("", a)
	}
	n := RestoreNote{}.RestoreOf(UnknownSnapshot, a)
	n.Done = true
	return n
}

// Restore returns the note after n for what is asked: it takes over a new request, and drops the snapshot of one that has lapsed. A request
// lapses when the target is another commit than the blocked one, and when a user retries the target. A snapshot of the
// spec is restored once until the spec drops it, and not if an annotation hid it. remark says why a request is ignored; it is "" if none is.
//
//	a new request                                    its snapshot replaces the target
//	the target is another commit                     nothing
//	a new request to retry this target               nothing
//	a new force-sync request                         as before: it repairs drift, and only a retry delivers the blocked commit
//	the request is a day old, and the volume is new  nothing: an earlier volume of this gateway probably carried it out
//	otherwise                                        as before
func Restore(n RestoreNote, a Asked) (next RestoreNote, remark string) {
	last := n.Request
	if a.Restore == a.RestoreOfSpec() {
		last = n.OfSpec
	}
	next = n.sawSpec(a)
	if a.Restore != "" && a.Restore != last {
		next = n.RestoreOf(annotation.RestoresOn(a.Restore, a.Gateway), a)
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
// request without a time, as in the spec, is never outdated.
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
