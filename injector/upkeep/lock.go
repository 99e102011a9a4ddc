package upkeep

import (
	"time"

	"stoker.io/stoker/api/v1alpha1"
)

const (
	// lockFor counts where a lock does not say how long it holds, and is how long one that was let go is left to the next lead.
	lockFor = 15 * time.Second
	// lockLook is how often a lock that is being renewed is looked at.
	lockLook = time.Minute
)

// lock is what was seen of a lead's lock. Its times are ours: the clock of another pod may be wrong.
type lock struct {
	holder, renewed string
	since           time.Time // when it was first seen like this
	next            time.Time // when to look again
}

// free reports whether nobody leads, as far as can be told at now: nobody holds the lock, or whoever does has not renewed it
// for as long as it holds. A lead that ends lets go of it, and another agent takes it in a moment: that is no absence.
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
		return l.over(lockFor, now)
	}
	renewed := ""
	if lead.Renewed != nil {
		renewed = lead.Renewed.UTC().Format(time.RFC3339Nano)
	}
	holds := lead.Lasts()
	if holds == 0 {
		holds = lockFor
	}
	if l.holder != lead.Holder || l.renewed != renewed {
		first := l.holder == ""
		*l = lock{holder: lead.Holder, renewed: renewed, since: now, next: now.Add(lockLook)}
		if first {
			l.next = now.Add(holds + holds/3) // nothing is known of it yet
		}
		return false
	}
	return l.over(holds, now)
}

// over reports whether it has been like this for longer than d.
func (l *lock) over(d time.Duration, now time.Time) bool {
	if now.Sub(l.since) > d {
		l.next = time.Time{}
		return true
	}
	l.next = l.since.Add(d + time.Second)
	return false
}
