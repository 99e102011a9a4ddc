package lead

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/api/v1alpha1"
)

// A client that can write SyncTargets can enter a holder that does not exist. This delays other agents by at most a minute.
func TestLockDurationIsCapped(t *testing.T) {
	for _, c := range []struct {
		seconds int32
		expires time.Duration
	}{{15, 15 * time.Second}, {60, time.Minute}, {3600, time.Minute}, {1 << 30, time.Minute}, {0, v1alpha1.LeadDuration}, {-1, v1alpha1.LeadDuration}} {
		t.Run(fmt.Sprintf("%d seconds", c.seconds), func(t *testing.T) {
			now := time.Unix(1, 0)
			s := newLockWatch("gw-0_1", func() time.Time { return now })
			s.saw(&v1alpha1.SyncTarget{Spec: v1alpha1.SyncTargetSpec{Lead: v1alpha1.LeadRecord{Holder: "gone", DurationSeconds: c.seconds}}})
			st := s.state()
			assert.True(t, st.heldByOther)
			assert.Equal(t, c.expires, st.expiresIn)
			now = now.Add(c.expires - time.Millisecond)
			assert.False(t, s.state().free)
			now = now.Add(time.Millisecond)
			assert.True(t, s.state().free)
		})
	}
}

// The table of type role.
func TestRoleTransitions(t *testing.T) {
	for from, c := range map[role]struct {
		released, barred role
		led              bool
	}{
		campaigning: {campaigning, excluded, false}, holding: {former, deposed, true}, former: {former, deposed, true},
		excluded: {excluded, excluded, false}, deposed: {deposed, deposed, true},
	} {
		t.Run(string(from), func(t *testing.T) {
			assert.Equal(t, c.released, from.released())
			assert.Equal(t, c.barred, from.barred())
			assert.Equal(t, c.led, from.led())
		})
	}
}
