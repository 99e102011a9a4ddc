package display

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/agents"
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
		request sync.Request
		want    string
	}{
		"no request":             {sync.Request{}, ""},
		"requested":              {sync.Request{By: "kargo", For: "Stage prod"}, "kargo (Stage prod)"},
		"approved":               {sync.Request{ApprovedBy: "prod by ann"}, "approved prod by ann"},
		"requested and approved": {sync.Request{By: "cli", For: "bob", ApprovedBy: "prod by ann"}, "cli (bob); approved prod by ann"},
	} {
		t.Run(name, func(t *testing.T) {
			r := AuditRecords([]sync.Audit{{Request: c.request}})
			assert.Equal(t, "REQUESTED BY", r.Head[5])
			assert.Equal(t, c.want, r.Rows[0][5])
		})
	}
}
