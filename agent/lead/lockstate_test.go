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
		says int32
		free time.Duration
	}{{15, 15 * time.Second}, {60, time.Minute}, {3600, time.Minute}, {1 << 30, time.Minute}, {0, v1alpha1.LeadDuration}, {-1, v1alpha1.LeadDuration}} {
		t.Run(fmt.Sprintf("%d seconds", c.says), func(t *testing.T) {
			now := time.Unix(1, 0)
			s := newLockWatch("gw-0_1", func() time.Time { return now })
			s.saw(&v1alpha1.SyncTarget{Spec: v1alpha1.SyncTargetSpec{Lead: v1alpha1.LeadRecord{Holder: "gone", DurationSeconds: c.says}}})
			st := s.state()
			assert.True(t, st.heldByOther)
			assert.Equal(t, c.free, st.expiresIn)
			now = now.Add(c.free - time.Millisecond)
			assert.False(t, s.state().free)
			now = now.Add(time.Millisecond)
			assert.True(t, s.state().free)
		})
	}
}

func TestStanding(t *testing.T) {
	for is, c := range map[standing]struct {
		released, barred standing
		led              bool
	}{
		campaigning: {campaigning, excluded, false}, holding: {former, deposed, true}, former: {former, deposed, true},
		excluded: {excluded, excluded, false}, deposed: {deposed, deposed, true},
	} {
		t.Run(string(is), func(t *testing.T) {
			assert.Equal(t, c.released, is.released())
			assert.Equal(t, c.barred, is.barred())
			assert.Equal(t, c.led, is.led())
		})
	}
}
