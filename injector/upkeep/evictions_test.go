package upkeep

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestNoNameIsEvictedTwiceAndNoMorePodsThanThereWereAtATime(t *testing.T) {
	var none *evictions
	assert.False(t, none.spent("a"))
	stateful := &evictions{names: map[string]bool{"site-0": true}, most: 3}
	assert.True(t, stateful.spent("site-0"), "its successor has the same name")
	assert.False(t, stateful.spent("site-1"))
	replicas := &evictions{names: map[string]bool{"gw-abc": true, "gw-def": true}, most: 2}
	assert.True(t, replicas.spent("gw-xyz"), "a successor of one of the two, whatever its name")
}
