package reconcile

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// G9: namespaces with slow git hosts leave places for others.
func TestSlots(t *testing.T) {
	r := &Reconciler{runs: map[string]int{}}
	for i := range 2 {
		require.True(t, r.acquireSlot("slow"), i)
		require.True(t, r.acquireSlot("slower"), i)
	}
	assert.False(t, r.acquireSlot("slow"))
	for i := range maxRuns - 4 {
		namespace := fmt.Sprint("line-", i)
		require.True(t, r.acquireSlot(namespace))
		assert.False(t, r.acquireSlot(namespace), "a second run must wait while half of all are under way")
	}
	r.releaseSlot("slow")
	r.releaseSlot("slow")
	assert.True(t, r.acquireSlot("slow"))
	assert.False(t, r.acquireSlot("slow"))
}
