package reconcile

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/cache"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync"
	"stoker.io/stoker/internal/configsync/plan"
	"stoker.io/stoker/internal/failure"
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

// The deadline of the wait for healthy objects counts from the first run that has a plan, and not from one whose build got no CPU time.
func TestWaitStartsWithPlan(t *testing.T) {
	r, cs, s, began := &Reconciler{Config: Config{Log: slog.New(slog.DiscardHandler)}}, &v1alpha1.ConfigSync{}, &state{commit: "one"}, time.Now()
	err := fmt.Errorf("a build: %w", failure.New(v1alpha1.ReasonProgressing, "it got only 1s of CPU time"))
	pause := r.pause(cache.ObjectName{}, cs, s, &configsync.Run{}, err, began)
	assert.Less(t, pause, 2*firstRetry)
	assert.Zero(t, s.waiting)
	r.pause(cache.ObjectName{}, cs, s, &configsync.Run{Plan: &plan.Plan{}}, err, began)
	assert.Equal(t, configsync.Waiting{Commit: "one", Since: began}, s.waiting)
}
