package v1alpha1

import "time"

// MaxLeadDuration is the most that a lock counts without a sign of life, whatever it says. Agents write 15 s; who else may
// write a SyncTarget cannot keep everybody from leading with one word.
const MaxLeadDuration = time.Minute

// Lasts returns how long the lock counts without a sign of life; 0 where it does not say.
func (l LeadRecord) Lasts() time.Duration {
	return min(max(time.Duration(l.DurationSeconds)*time.Second, 0), MaxLeadDuration)
}
