package reconcile

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
)

// The clock of the lead may be wrong. Only the time without a change counts, measured by our clock.
func TestLockIsFree(t *testing.T) {
	const held = 15 // seconds, which is also LeadDuration
	target := func(holder string, renewed time.Time, seconds int32) *v1alpha1.SyncTarget {
		st := &v1alpha1.SyncTarget{}
		st.Spec.Lead = v1alpha1.LeadRecord{Holder: holder, Renewed: &metav1.MicroTime{Time: renewed}, DurationSeconds: seconds}
		return st
	}
	after := func(d time.Duration) time.Time { return noon.Add(d) }
	expired := v1alpha1.LeadDuration + time.Second // when a lock without a change is read again, and found to be free
	t.Run("no SyncTarget", func(t *testing.T) {
		var l lock
		assert.True(t, l.free(nil, noon))
	})
	t.Run("released", func(t *testing.T) {
		var l lock
		released := target("", noon, held)
		assert.False(t, l.free(released, noon), "a lock released now is not free")
		assert.Equal(t, after(expired), l.nextRead)
		assert.False(t, l.free(released, after(v1alpha1.LeadDuration)))
		assert.True(t, l.free(released, after(expired)))
		assert.True(t, l.free(released, after(expired+time.Second)))
	})
	t.Run("renewed", func(t *testing.T) {
		var l lock
		yesterday := noon.Add(-24 * time.Hour) // the lead's clock is a day behind
		assert.False(t, l.free(target("a", yesterday, held), noon), "a lock is not free when it is first seen")
		second := v1alpha1.LeadDuration * 4 / 3 // a lock that was never seen before is read again after 4/3 of its duration
		assert.Equal(t, after(second), l.nextRead)
		renewed := target("a", yesterday.Add(5*time.Second), held)
		assert.False(t, l.free(renewed, after(second)), "a renewed lock is not free")
		third := second + lockReadInterval // one that is being renewed is read once in this interval
		assert.Equal(t, after(third), l.nextRead)
		assert.True(t, l.free(renewed, after(third)))
		assert.False(t, l.free(target("b", noon, held), after(third+time.Second)), "a lock with a new holder is not free")
	})
	t.Run("handover", func(t *testing.T) { // the lock has no holder for a second
		l := lock{holder: "b", renewed: "before", since: noon}
		assert.False(t, l.free(target("", noon, held), noon))
		assert.False(t, l.free(target("c", noon, held), after(time.Second)))
		released := 8 * time.Second
		assert.False(t, l.free(target("", noon, held), after(released)))
		assert.False(t, l.free(target("", noon, held), after(released+v1alpha1.LeadDuration)))
		assert.True(t, l.free(target("", noon, held), after(released+expired)))
	})
	t.Run("lock without duration", func(t *testing.T) { // LeadDuration counts
		var l lock
		assert.False(t, l.free(target("a", noon, 0), noon))
		assert.False(t, l.free(target("a", noon, 0), after(10*time.Second)))
		assert.True(t, l.free(target("a", noon, 0), after(expired)))
	})
	t.Run("lock with a long duration", func(t *testing.T) {
		var l lock
		assert.False(t, l.free(target("gone", noon, 3600), noon))
		assert.False(t, l.free(target("gone", noon, 3600), after(v1alpha1.MaxLeadDuration)))
		assert.True(t, l.free(target("gone", noon, 3600), after(v1alpha1.MaxLeadDuration+time.Second)), "the duration must be limited to MaxLeadDuration")
	})
}
