package propose

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
)

// TestStandby: the other node of a redundant pair has the files for a while, and copies git's version of them.
func TestStandby(t *testing.T) {
	open := func(t *testing.T) (*plant, *gateway) {
		pl := newPlant(t)
		g := pl.gateway("a")
		g.save(`{"v":2}`)
		g.settle(minute)
		require.Equal(t, v1alpha1.ProposalOpen, g.state())
		g.standby = true
		g.save(`{"v":1}`)
		g.settle(minute)
		return pl, g
	}
	t.Run("no proposal is withdrawn", func(t *testing.T) {
		pl, g := open(t)
		g.standby = false
		g.settle(minute)
		assert.Equal(t, v1alpha1.ProposalOpen, g.state())
		assert.Len(t, pl.hub.open(), 1)
	})
	t.Run("a merge ends the proposal", func(t *testing.T) {
		pl, g := open(t)
		pl.merge("merge")
		g.pull()
		g.settle(minute)
		assert.Equal(t, v1alpha1.ProposalMerged, g.state())
	})
	t.Run("no proposal", func(t *testing.T) {
		pl := newPlant(t)
		g := pl.gateway("a")
		g.standby = true
		g.save(`{"v":2}`)
		g.settle(minute)
		assert.Empty(t, g.state())
		assert.Empty(t, pl.hub.list)
	})
}
