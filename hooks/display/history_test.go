package display

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/audit"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/agents"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/internal/giturl"
)

func TestSnapshotColumns(t *testing.T) {
	one := agents.Snapshot{Gateway: "area-4", ID: "area-4-20260212-102000", Commit: plan.ID{1}, To: plan.ID{2}, Files: 3, Bytes: 80, Stored: v1alpha1.StoredBoth}
	two := one
	two.ID, two.Backup = "area-4-20260213-102000", true
	common := []string{"GATEWAY", "SNAPSHOT", "COMMIT", "SYNCED", "FILES", "SIZE"}
	t.Run("on the data volume", func(t *testing.T) {
		r := Snapshots([]agents.Snapshot{one}, false)
		assert.Equal(t, common, r.Head)
		assert.Equal(t, [][]string{{"area-4", one.ID, "0100000", "0200000", "3", "80"}}, r.Rows)
	})
	t.Run("in object storage, with a backup", func(t *testing.T) {
		r := Snapshots([]agents.Snapshot{one, two}, true)
		assert.Equal(t, append(common, "STORED", "BACKUP"), r.Head)
		assert.Equal(t, []string{"both", "-"}, r.Rows[0][6:])
		assert.Equal(t, []string{"both", "yes"}, r.Rows[1][6:])
	})
}

func TestAuditColumns(t *testing.T) {
	for name, c := range map[string]struct {
		request audit.Request
		want    string
	}{
		"no request":             {audit.Request{}, ""},
		"requested":              {audit.Request{By: "kargo", For: "Stage prod"}, "kargo (Stage prod)"},
		"approved":               {audit.Request{ApprovedBy: "prod by ann"}, "approved prod by ann"},
		"requested and approved": {audit.Request{By: "cli", For: "bob", ApprovedBy: "prod by ann"}, "cli (bob); approved prod by ann"},
	} {
		t.Run(name, func(t *testing.T) {
			r := AuditRecords([]audit.Entry{{Request: c.request}}, giturl.Web{})
			assert.Equal(t, "REQUESTED BY", r.Head[5])
			assert.Equal(t, c.want, r.Rows[0][5])
		})
	}
	for want, a := range map[string]audit.Entry{
		"":                      {Projects: 3},
		"line":                  {Projects: 1, ProjectNames: []string{"line"}},
		"a, b and 5 more":       {Projects: 7, ProjectNames: []string{"a", "b", "c"}},
		`a, "b\x1b[2J"`:         {Projects: 1, ProjectNames: []string{"a", "b\x1b[2J"}},
		"the record is foreign": {Projects: -5, ProjectNames: []string{"the record is foreign"}},
	} {
		t.Run(want, func(t *testing.T) {
			a.Diff = "area-4-diff-1.json"
			r := AuditRecords([]audit.Entry{a}, giturl.Web{})
			assert.Equal(t, []string{"PROJECTS", "RESULT", "DIFF"}, r.Head[9:])
			assert.Equal(t, []string{want, "", "area-4-diff-1.json"}, r.Rows[0][9:])
		})
	}
}

// The JSON of each list links to the git host.
func TestHistoryLinks(t *testing.T) {
	web := giturl.WebOf("git@github.com:plants/line.git", "")
	one, two := strings.Repeat("a", 40), strings.Repeat("b", 40)
	from, err := plan.ParseID(one)
	require.NoError(t, err)
	to, err := plan.ParseID(two)
	require.NoError(t, err)
	for want, r := range map[string]*output.Result{
		`"link":"https://github.com/plants/line/commit/` + one + `"`:                  Commits([]v1alpha1.CommitRecord{{Commit: one}}, web),
		`"link":"https://github.com/plants/line/commit/` + two + `"`:                  Syncs([]v1alpha1.SyncRecord{{Commit: two}}, web),
		`"compare":"https://github.com/plants/line/compare/` + one + `..` + two + `"`: AuditRecords([]audit.Entry{{From: from, To: to}}, web),
		`"compare":"https://github.com/plants/line/compare/` + two + `..` + one + `"`: AuditRecords([]audit.Entry{{From: to, To: from}}, web),
	} {
		t.Run(want, func(t *testing.T) {
			text, err := json.Marshal(r.Data)
			require.NoError(t, err)
			assert.Contains(t, string(text), want)
		})
	}
	for name, r := range map[string]*output.Result{"repair": AuditRecords([]audit.Entry{{From: from, To: from}}, web), "first": AuditRecords([]audit.Entry{{To: to}}, web),
		"unknown host": AuditRecords([]audit.Entry{{From: from, To: to}}, giturl.WebOf("/srv/git/line", ""))} {
		t.Run(name, func(t *testing.T) {
			text, err := json.Marshal(r.Data)
			require.NoError(t, err)
			assert.NotContains(t, string(text), "compare")
		})
	}
	text, err := json.Marshal(Commits(nil, web).Data)
	require.NoError(t, err)
	assert.Equal(t, "[]", string(text))
}
