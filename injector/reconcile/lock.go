package reconcile

import (
	"time"

	"stoker.io/stoker/api/v1alpha1"
)

// lockReadInterval is how often a lock that is being renewed is read.
const lockReadInterval = time.Minute

// lock is the last seen state of a lead's lock. Its times are from our clock, because that of another pod may be wrong.
type lock struct {
	holder, renewed string
	since           time.Time // when this state was first seen
	nextRead        time.Time // when to read the SyncTarget again; zero to read it in every iteration
	leadMissing     bool      // no agent leads, although there are gateways
}

// free updates the lock by the SyncTarget t, sets nextRead, and reports whether no agent leads at the time now: t is nil, there is no holder,
// or the holder has not renewed the lock within its duration. A released lock counts as free only after LeadDuration, because another agent
// usually takes it at once.
func (l *lock) free(t *v1alpha1.SyncTarget, now time.Time) bool {
	if t == nil {
		*l = lock{}
		return true
	}
	lead := t.Spec.Lead
	if lead.Holder == "" {
		if l.holder != "" || l.since.IsZero() {
			*l = lock{since: now}
		}
		return l.expired(v1alpha1.LeadDuration, now)
	}
	renewed := ""
	if lead.Renewed != nil {
		renewed = lead.Renewed.UTC().Format(time.RFC3339Nano)
	}
	holds := lead.ValidFor()
	if l.holder != lead.Holder || l.renewed != renewed {
		first := l.holder == ""
		*l = lock{holder: lead.Holder, renewed: renewed, since: now, nextRead: now.Add(lockReadInterval)}
		if first {
			l.nextRead = now.Add(holds + holds/3) // nothing is known about this lock yet
		}
		return false
	}
	return l.expired(holds, now)
}

// expired reports whether the state is older than d, and sets nextRead.
func (l *lock) expired(d time.Duration, now time.Time) bool {
	if now.Sub(l.since) > d {
		l.nextRead = time.Time{}
		return true
	}
	l.nextRead = l.since.Add(d + time.Second)
	return false
}
