package audit

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
)

// TestDiffAdd adds changes of projects whose names JSON escapes in six bytes each.
func TestDiffAdd(t *testing.T) {
	const limit = 1 << 20
	changes := &plan.Changes{}
	for i := range 2000 { // setup: more changes than fit
		changes.List = append(changes.List, plan.Change{Path: fmt.Sprintf("projects/%s%d/view.json", strings.Repeat("<", 240), i), Op: plan.Create, ID: plan.ID{1}, FoundID: plan.ID{2}})
	}
	var d Diff
	d.Add(changes, limit)
	b, err := json.Marshal(d)
	require.NoError(t, err)
	assert.LessOrEqual(t, len(b), limit)
	assert.True(t, d.Truncated)
	assert.Len(t, d.Projects, maxProjects)
}
