package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestSteady(t *testing.T) {
	now, ready := time.Unix(0, 0), false
	is := readyFor(func() bool { return ready }, 10*time.Second, func() time.Time { return now })
	assert.False(t, is())
	ready = true
	assert.False(t, is(), "the replica must stay ready for a time before it leads")
	now = now.Add(9 * time.Second)
	assert.False(t, is())
	now = now.Add(time.Second)
	assert.True(t, is())
	ready = false
	assert.False(t, is())
	ready = true
	assert.False(t, is(), "the time must start again")
}
