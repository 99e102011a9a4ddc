package sync_test

import (
	"bytes"
	"crypto/sha1"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/audit"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// audited returns the audit record.
func (b *bench) audited() []audit.Entry {
	b.t.Helper()
	raw, err := disk.ReadAudit(b.data)
	require.NoError(b.t, err)
	var list []audit.Entry
	for line := range bytes.Lines(raw) {
		var a audit.Entry
		require.NoError(b.t, json.Unmarshal(line, &a), string(line))
		list = append(list, a)
	}
	return list
}

// hash returns git's id of a blob.
func hash(content string) string {
	return fmt.Sprintf("%x", sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(content), content)))
}

func TestAudit(t *testing.T) {
	begin := func(t *testing.T) (b *bench, commit plan.ID) {
		b = newSnapshotBench(t, simulator.Options{})
		b.target.Facts.Namespace, b.target.Facts.CRName = "plant", "line"
		commit = b.push(firstCommit()...)
		b.synced()
		return b, commit
	}
	t.Run("syncs", func(t *testing.T) {
		b, one := begin(t)
		b.synced() // changes nothing
		b.target.Request = audit.Request{By: "kargo", For: "Stage prod\nby Ann \x1b[2J", At: "2026-11-24T12:00:00Z"}
		two := b.push(gitserver.Write(view, `{"one": 2}`), gitserver.Write(viewDir+"/note.txt", "new"))
		r := b.synced()
		require.Equal(t, sync.Counts{Added: 1, Modified: 2, Total: r.Files.Total}, r.Files, "the view and its resource.json are modified")
		list := b.audited()
		require.Len(t, list, 2)
		assert.Zero(t, list[0].From)
		assert.Equal(t, one, list[0].To)
		got := list[1]
		assert.NotZero(t, got.Time)
		assert.NotEmpty(t, got.Duration)
		assert.Contains(t, got.Author, "@", "the author of the commit")
		assert.Equal(t, "c", got.Subject, "the first line of its message")
		raw, err := disk.ReadDiff(b.data, got.Diff)
		require.NoError(t, err)
		var d audit.Diff
		require.NoError(t, json.Unmarshal(raw, &d), string(raw))
		require.Len(t, d.Changes, 3) // Changes[1] is resource.json, whose signature differs
		assert.Equal(t, audit.Change{Path: viewDir + "/note.txt", Source: viewDir + "/note.txt", Action: "added", Checksum: audit.Checksum{After: "git:" + hash("new")}}, d.Changes[0])
		assert.Equal(t, audit.Change{Path: view, Source: view, Action: "modified", Checksum: audit.Checksum{Before: "git:" + hash(`{"one": 1}`), After: "git:" + hash(`{"one": 2}`)}}, d.Changes[2])
		d.Changes = nil
		assert.Equal(t, audit.Diff{Schema: 1, Gateway: "area-4", Timestamp: got.Time, FromCommit: one, ToCommit: two, FilesAdded: 1, FilesModified: 2, Projects: []string{"line"}}, d)
		assert.Equal(t, r.Snapshots[0].ID, got.Snapshot)
		assert.Equal(t, list, r.History)
		// These fields were compared above, or differ in each run.
		got.Snapshot, got.Time, got.Duration, got.Author, got.Diff, got.Subject = "", list[0].Time, "", "", "", ""
		assert.Equal(t, audit.Entry{
			Schema: 1, Time: list[0].Time, Namespace: "plant", GatewaySync: "line", Gateway: "area-4", From: one, To: two, Target: two, Ref: "main",
			Request: audit.Request{By: "kargo", For: "Stage prod by Ann  [2J", At: "2026-11-24T12:00:00Z"},
			Files:   audit.Files{Added: 1, Modified: 2}, Projects: 1, ProjectNames: []string{"line"}, Result: v1alpha1.GatewaySynced, Reason: v1alpha1.ReasonSynced,
		}, got)
	})
	t.Run("a repeated failure is recorded once", func(t *testing.T) {
		b, one := begin(t)
		two := b.push(gitserver.Write("projects/line/project.json", "{"))
		b.ended(v1alpha1.GatewayError, v1alpha1.ReasonConfigSyntaxError)
		b.ended(v1alpha1.GatewayError, v1alpha1.ReasonConfigSyntaxError)
		list := b.audited()
		require.Len(t, list, 2)
		assert.Equal(t, one, list[1].From)
		assert.Equal(t, one, list[1].To)
		assert.Equal(t, two, list[1].Target)
		assert.Equal(t, v1alpha1.ReasonConfigSyntaxError, list[1].Reason)
		assert.Contains(t, list[1].Message, "project.json")
		assert.Zero(t, list[1].Files)
		b.push(gitserver.Write("projects/line/project.json", "{ "))
		b.ended(v1alpha1.GatewayError, v1alpha1.ReasonConfigSyntaxError)
		assert.Len(t, b.audited(), 3, "the failure of another commit is a new record")
	})
	t.Run("a restored snapshot", func(t *testing.T) {
		b, one := begin(t)
		two := b.push(gitserver.Write(view, `{"one": 2}`))
		b.target.Restore = b.synced().Snapshots[0].ID
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonRestored)
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonRestored)
		list := b.audited()
		require.Len(t, list, 3)
		assert.Equal(t, []string{"", "", b.target.Restore}, []string{list[0].Restore, list[1].Restore, list[2].Restore}, "only the restore names its request")
		b.target.Retry = annotation.RetryValue(two.String(), restoreTime)
		b.synced()
		retried := b.audited()
		require.Len(t, retried, 4)
		assert.Equal(t, b.target.Retry, retried[3].Retry)
		assert.Empty(t, retried[3].Restore)
		assert.Equal(t, []plan.ID{two, one, two}, []plan.ID{list[2].From, list[2].To, list[2].Target})
		assert.Equal(t, v1alpha1.ReasonRestored, list[2].Reason)
		raw, err := disk.ReadDiff(b.data, list[2].Diff)
		require.NoError(t, err)
		assert.Contains(t, string(raw), `"checksum":{"before":"git:`+hash(`{"one": 2}`)+`","after":"git:`+hash(`{"one": 1}`))
	})
	t.Run("a repair", func(t *testing.T) {
		b, one := begin(t)
		b.put(view, `{"one": "edited"}`)
		b.target.Repair = true
		b.synced()
		list := b.audited()
		require.Len(t, list, 2)
		assert.Equal(t, []plan.ID{one, one}, []plan.ID{list[1].From, list[1].To})
		assert.Equal(t, audit.Files{Modified: 2, Saved: 2}, list[1].Files, "the view and its resource.json")
	})
	t.Run("a dry run", func(t *testing.T) {
		b, _ := begin(t)
		b.push(gitserver.Write(view, `{"one": 2}`))
		b.target.Profile.DryRun = true
		b.sync()
		assert.Len(t, b.audited(), 1)
	})
	t.Run("hostile text of a request", func(t *testing.T) {
		b, _ := begin(t)
		b.target.Request = audit.Request{By: strings.Repeat("\x01", 1<<16), For: strings.Repeat("\"\u2028<", 1<<16), At: "\xff\xfe"}
		b.push(gitserver.Write(view, `{"one": 2}`))
		assert.Empty(t, b.synced().Notes)
		assert.Len(t, b.audited(), 2)
	})
}
