package leak

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestLeaks(t *testing.T) {
	before, end := goleak.IgnoreCurrent(), make(chan struct{})
	go func() { <-end }()
	require.ErrorContains(t, find(0, before), "found unexpected goroutines")
	time.AfterFunc(time.Second, func() { close(end) }) // longer than goleak waits
	assert.NoError(t, find(endTimeout, before))
	None(t, before)
}
