package reconcile

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestReportedEventsAreBounded(t *testing.T) {
	var s sentEvents
	for i := range 3 * maxSent {
		s.add(strconv.Itoa(i))
	}
	assert.LessOrEqual(t, len(s.current)+len(s.previous), maxSent)
	assert.True(t, s.has(strconv.Itoa(3*maxSent-1)))
	assert.False(t, s.has("0"))
}

func TestEventName(t *testing.T) {
	long := "a" + strings.Repeat("-", 253)
	assert.Len(t, eventName(long, "k"), len("a")+len(".")+16, "a name without trailing dashes, and 16 hex digits")
	assert.NotEqual(t, eventName("gw-0", "a"), eventName("gw-0", "b"))
	assert.Equal(t, eventName("gw-0", "a"), eventName("gw-0", "a"))
}
