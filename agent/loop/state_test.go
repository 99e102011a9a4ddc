package loop

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
)

func TestHistoryIsBounded(t *testing.T) {
	var h []HistoryEntry
	for i := range 50 {
		h = addHistory(h, &sync.Report{Target: plan.ID{byte(i)}, Reason: v1alpha1.ReasonSynced, Files: sync.Counts{Added: 1}})
	}
	assert.Len(t, h, maxHistory)
	assert.Equal(t, plan.ID{49}, h[0].Commit)
	failed := &sync.Report{Target: plan.ID{50}, Reason: v1alpha1.ReasonScanFailed, Message: "no"}
	h = addHistory(addHistory(h, failed), failed)
	assert.Equal(t, plan.ID{49}, h[1].Commit)
}
