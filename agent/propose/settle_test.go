package propose

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
)

// TestDebounce: the debounce runs from the save, as far as the file system reports it.
func TestDebounce(t *testing.T) {
	for name, tc := range map[string]struct {
		saved time.Duration // before the comparison; negative if there was no file event
		want  v1alpha1.ProposalState
	}{
		"no file event":       {-1, v1alpha1.ProposalSettling},
		"recent event":        {time.Second, v1alpha1.ProposalSettling},
		"older event":         {minute, v1alpha1.ProposalPushing},
		"event in the future": {-minute, v1alpha1.ProposalSettling},
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

// TestContentIsReleased: the files of an open proposal are not held in memory, and another push reads them again.
func TestContentIsReleased(t *testing.T) {
	pl := newPlant(t)
	g := pl.gateway("a")
	g.save(`{"v":2}`)
	g.settle(minute)
	require.Equal(t, v1alpha1.ProposalOpen, g.state())
	require.NotNil(t, g.p.built)
	assert.Nil(t, g.p.built.Draft)
	assert.Nil(t, g.p.built.edits)
	assert.Len(t, g.p.built.Files, 3)

	g.p.rec.Number = 0 // the pull request is opened again
	g.step()
	g.settle(minute)
	assert.Equal(t, v1alpha1.ProposalOpen, g.state())
	assert.Len(t, pl.hub.open(), 1)
}
