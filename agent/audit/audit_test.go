package audit

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/plan"
)

// JSON writes each < in the names of these projects as six bytes.
func TestDiffIsBounded(t *testing.T) {
	const limit = 1 << 20
	changes := &plan.Changes{}
	for i := range 2000 { // setup: more changes than fit
		changes.List = append(changes.List, plan.Change{Path: fmt.Sprintf("projects/%s%d/view.json", strings.Repeat("<", 240), i), Op: plan.Create, ID: plan.ID{1}, FoundID: plan.ID{2}})
	}
	var d Diff
	d.SetChanges(changes, limit)
	b, err := json.Marshal(d)
	require.NoError(t, err)
	assert.LessOrEqual(t, len(b), limit)
	assert.True(t, d.Truncated)
	assert.Len(t, d.Projects, maxProjects)
}

// Authors of commits, senders and approvers choose the texts of an entry. No text keeps an entry out of the record.
func TestWorstEntryFits(t *testing.T) {
	for name, worst := range map[string]string{"special in HTML": "<&>", "quoted": `"\\`, "line separators": "\u2028", "plain": "x"} {
		t.Run(name, func(t *testing.T) {
			text := strings.Repeat(worst, 1000)
			e := Entry{Gateway: strings.Repeat("g", 300), Ref: text, Request: Request{By: text, For: text, At: text, ApprovedBy: text}, Restore: text, Retry: text,
				Author: text, Subject: text, Message: text}
			e.SetProjects(slices.Repeat([]string{text}, 20))
			line, err := e.Encode()
			require.NoError(t, err)
			assert.LessOrEqual(t, len(line), disk.MaxAuditLine)
			var back Entry
			require.NoError(t, json.Unmarshal(line, &back))
			assert.Contains(t, back.Subject, worst)
		})
	}
}
