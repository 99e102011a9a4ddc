package propose

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/api/v1alpha1"
)

// TestDebounce: the debounce runs from the save, as far as the file system reports it.
func TestDebounce(t *testing.T) {
	for name, tc := range map[string]struct {
		saved time.Duration // before the comparison; negative if there was no file event
		want  v1alpha1.ProposalState
	}{
		"without a file event":            {-1, v1alpha1.ProposalSettling},
		"an event less than it ago":       {time.Second, v1alpha1.ProposalSettling},
		"an event longer ago":             {minute, v1alpha1.ProposalPushing},
		"an event of a clock that is off": {-minute, v1alpha1.ProposalSettling},
	} {
		t.Run(name, func(t *testing.T) {
			g := newPlant(t).gateway("a")
			g.save(`{"v":2}`)
			if tc.saved != -1 {
				g.saved = g.clock.Add(-tc.saved)
			}
			g.step()
			assert.Equal(t, tc.want, g.state())
			g.settle(minute)
			assert.Equal(t, v1alpha1.ProposalOpen, g.state())
		})
	}
}
