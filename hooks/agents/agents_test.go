package agents

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
)

// What the agent serves must be what the command line reads.
func TestAgentStateRoundTrip(t *testing.T) {
	commit, err := plan.ParseID(strings.Repeat("ab", 20))
	require.NoError(t, err)
	at := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	counts := sync.Counts{Added: 1, Modified: 2, Deleted: 3, Total: 40}
	sent := loop.State{
		GatewayName: "line", Ref: "main", Commit: commit, Target: commit,
		Problems: []loop.Problem{{Reason: v1alpha1.ReasonGitTimeout, Message: "no answer"}},
		Plan:     []string{"+ projects/a/x.json"},
		Drift:    &disk.Drift{Files: 1, Paths: []disk.Drifted{{Path: "projects/a/x.json", What: disk.Modified}}},
		Report:   &sync.Report{Started: at, Duration: time.Second, Files: counts, Projects: []string{"a"}, Notes: []string{"skipped"}},
		Snapshots: []loop.Snapshot{{Stored: v1alpha1.StoredBoth,
			Snapshot: disk.Snapshot{ID: "line-20261124-120000", Time: at, Ref: "main", Commit: commit, To: commit, Files: 2, Bytes: 3, Backup: true}}},
		Proposal: &v1alpha1.Proposal{State: v1alpha1.ProposalOpen, URL: "https://git.example.com/1"},
		History:  []loop.HistoryEntry{{At: at, Ref: "main", Commit: commit, Phase: sync.Synced, Reason: v1alpha1.ReasonSynced, Message: "done", Duration: "1s", Files: counts}},
	}
	raw, err := json.Marshal(sent)
	require.NoError(t, err)
	var s State
	require.NoError(t, json.Unmarshal(raw, &s))
	want := State{
		Gateway: "line", Ref: "main", Commit: commit, Target: commit, Problems: []Problem{{v1alpha1.ReasonGitTimeout, "no answer"}}, Plan: sent.Plan,
		Drift: s.Drift, Proposal: sent.Proposal,
		Report:    Report{Files: counts, Notes: []string{"skipped"}},
		Snapshots: []Snapshot{{ID: "line-20261124-120000", Time: at, Ref: "main", Commit: commit, To: commit, Files: 2, Bytes: 3, Stored: v1alpha1.StoredBoth, Backup: true}},
		History:   []PastSync{{at, "main", commit, v1alpha1.GatewaySynced, v1alpha1.ReasonSynced, "done", "1s", counts}},
	}
	assert.Equal(t, want, s)
	require.NotNil(t, s.Drift)
	assert.Equal(t, 1, s.Drift.Files)
	require.Len(t, s.Drift.Paths, 1)
	assert.Equal(t, "projects/a/x.json", s.Drift.Paths[0].Path)
	assert.Equal(t, "modified", s.Drift.Paths[0].What)
	assert.Equal(t, "line", Agent{gateway: "line"}.Snapshots(s)[0].Gateway)
	assert.Empty(t, Agent{gateway: "other"}.Snapshots(s))
}
