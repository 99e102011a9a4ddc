package sync_test

import (
	"bytes"
	"crypto/sha1"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/audit"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

var restoreTime = time.Date(2026, 11, 20, 6, 30, 0, 0, time.UTC)

var anySnapshots = v1alpha1.SnapshotsSpec{Enabled: true, RetentionCount: 5, MaxSize: "1Gi"}

// newSnapshotBench returns a bench of the gateway area-4, which takes snapshots.
func newSnapshotBench(t *testing.T, o simulator.Options) *bench {
	t.Helper()
	b := newBench(t, o)
	b.target.Facts.GatewayName = "area-4"
	b.target.Profile.Snapshots = new(anySnapshots)
	return b
}

func TestRestore(t *testing.T) {
	const other = "config/resources/core/ignition/database-connection/other"
	// begin syncs to a first and a second commit, and returns the snapshot between them.
	begin := func(t *testing.T) (b *bench, id string) {
		b = newSnapshotBench(t, simulator.Options{})
		b.push(firstCommit()...)
		assert.Empty(t, b.synced().Snapshots)
		b.push(gitserver.Write(view, `{"one": 2}`), gitserver.Delete(db+"/config.json"), gitserver.Delete(db+"/resource.json"),
			gitserver.Write(other+"/config.json", "{}"), gitserver.Write(other+"/resource.json", `{"scope":"G","version":1,"restricted":false,"overridable":true,"files":["config.json"],"attributes":{}}`))
		r := b.synced()
		require.Len(t, r.Snapshots, 1)
		assert.Equal(t, 4, r.Snapshots[0].Files, "the view, its resource.json, and the deleted files")
		assert.NotNil(t, b.gw.Data.Loaded(other))
		return b, r.Snapshots[0].ID
	}
	t.Run("files, scan and verification, without git", func(t *testing.T) {
		b, id := begin(t)
		require.NoError(t, os.RemoveAll(b.repo.Dir))
		b.target.Restore = id
		r := b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonRestored)
		assert.Contains(t, r.Message, id)
		assert.NotEqual(t, b.target.Commit, r.Commit)
		assert.Equal(t, sync.Counts{Added: 2, Modified: 2, Deleted: 2, Total: 5}, r.Files)
		assert.Equal(t, `{"one": 1}`, b.read(view))
		assert.NotNil(t, b.gw.Data.Loaded(db), "the gateway has loaded the resource again")
		assert.Nil(t, b.gw.Data.Loaded(other))
		require.NoError(t, b.gw.Canaries.Check())
		assert.Empty(t, b.gw.Requests.Violations())

		b.gw.Requests.Reset()
		r = b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonRestored)
		assert.False(t, r.Wrote())
		assert.Empty(t, b.gw.Requests.List(), "the restore happens once")
		assert.Len(t, r.Snapshots, 2, "the restore takes a snapshot, too")
		assert.Zero(t, b.drift(true).Files)
		b.restart(t.TempDir())
		b.engine.Resume(t.Context(), b.conn, sync.Task{Profile: b.target.Profile, Facts: b.target.Facts})
		assert.False(t, b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonRestored).Wrote(), "a restarted agent does not sync the target again")
		b.target.Profile.ExcludePatterns = []string{"config/**"}
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonRestored)
		assert.Equal(t, `{"one": 1}`, b.read(view), "other rules do not end it")
	})
	t.Run("a restore of the target ends the one before", func(t *testing.T) {
		b, id := begin(t)
		b.target.Restore = id
		r := b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonRestored)
		b.target.Restore = r.Snapshots[len(r.Snapshots)-1].ID
		assert.True(t, b.synced().Wrote())
		assert.Equal(t, `{"one": 2}`, b.read(view))
		assert.False(t, b.synced().Wrote())
		b.restart(t.TempDir())
		b.synced()
	})
	t.Run("a pause stops it", func(t *testing.T) {
		b, id := begin(t)
		b.target.Restore = id
		b.stopAt(1)
		b.ended(v1alpha1.GatewayPending, v1alpha1.ReasonProgressing)
		assert.Equal(t, `{"one": 2}`, b.read(view))
		b.target.Stop = nil
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonRestored)
		assert.Equal(t, `{"one": 1}`, b.read(view))
	})
	t.Run("nothing but a restore", func(t *testing.T) {
		b, id := begin(t)
		b.target.Restore, b.target.RestoreOnly = id, true
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonRestored)
		b.push(gitserver.Write(view, `{"one": 3}`))
		r := b.sync()
		assert.Equal(t, v1alpha1.ReasonGateClosed, r.Reason, "the restore has ended, and its gate is closed: %s", r.Message)
		assert.Equal(t, `{"one": 1}`, b.read(view))
		b.remove(".stoker/note-restored")
		b.target.Restore = ""
		assert.Equal(t, v1alpha1.ReasonGateClosed, b.sync().Reason)
		assert.Equal(t, `{"one": 1}`, b.read(view))
		b.target.RestoreOnly = false
		b.synced()
		assert.Equal(t, `{"one": 3}`, b.read(view))
	})
	t.Run("another commit ends the restore", func(t *testing.T) {
		b, id := begin(t)
		b.target.Restore = id
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonRestored)
		b.push(gitserver.Write(view, `{"one": 3}`))
		b.synced()
		assert.Equal(t, `{"one": 3}`, b.read(view))
		assert.NotNil(t, b.gw.Data.Loaded(other))
		b.synced()
		assert.Equal(t, `{"one": 3}`, b.read(view), "the request has lapsed")
	})
	t.Run("a forced sync does not lift the block", func(t *testing.T) {
		b, id := begin(t)
		b.target.Restore = id
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonRestored)
		b.target.Force = "now"
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonRestored)
		assert.Equal(t, `{"one": 1}`, b.read(view))
		b.target.Retry = annotation.RetryValue(b.target.Commit.String(), restoreTime)
		b.synced()
		assert.Equal(t, `{"one": 2}`, b.read(view))
	})
	t.Run("unknown snapshot", func(t *testing.T) {
		b, id := begin(t)
		b.target.Restore = "area-4-20200101-000000"
		r := b.ended(v1alpha1.GatewayError, v1alpha1.ReasonSnapshotFailed)
		assert.Contains(t, r.Message, id, "the message lists the snapshots")
		assert.Equal(t, `{"one": 2}`, b.read(view))
		b.push(gitserver.Write(view, `{"one": 3}`))
		b.synced() // a wrong request does not stop later commits
	})
	t.Run("stopped gateway", func(t *testing.T) {
		b, id := begin(t)
		b.target.Restore = id
		b.connect(ignition.Config{URL: "http://127.0.0.1:1"}) // refused
		r := b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
		assert.Equal(t, `{"one": 1}`, b.read(view))
		assert.Contains(t, r.Message, id)
	})
	t.Run("open Designer session", func(t *testing.T) {
		b, id := begin(t)
		b.target.Profile.DesignerSessionPolicy = v1alpha1.DesignerWait
		session := b.designer("maria", "line")
		b.target.Restore = id
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonDesignerSessionActive)
		assert.Equal(t, `{"one": 2}`, b.read(view))
		require.NoError(t, b.gw.Designers.Close(session))
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonRestored)
		assert.Equal(t, `{"one": 1}`, b.read(view))
	})
	t.Run("after snapshots were switched off", func(t *testing.T) {
		b, id := begin(t)
		b.push(gitserver.Write(view, `{"one": 3}`))
		newer := b.synced().Snapshots[1].ID
		on := b.target.Profile.Snapshots
		b.target.Profile.Snapshots = nil
		b.target.Restore = id
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonRestored)
		assert.Equal(t, `{"one": 1}`, b.read(view))
		assert.False(t, b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonRestored).Wrote(), "it is done once")
		assert.DirExists(t, b.data+"/.stoker/snapshots/"+id)
		assert.NoDirExists(t, b.data+"/.stoker/snapshots/"+newer, "it cannot be restored, because the restore took no snapshot")

		b.target.Profile.Snapshots = on
		b.push(gitserver.Write(view, `{"one": 4}`))
		require.Len(t, b.synced().Snapshots, 2)
		b.target.Restore = annotation.RestoreValue(id, restoreTime)
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonRestored)
		assert.Equal(t, `{"one": 1}`, b.read(view), "the same snapshot is restored again")

		b.target.Profile.Snapshots = nil
		b.push(gitserver.Write(view, `{"one": 5}`))
		b.synced()
		assert.NoDirExists(t, b.data+"/.stoker/snapshots")
	})
	t.Run("a dry run restores nothing", func(t *testing.T) {
		b, id := begin(t)
		b.target.Profile.DryRun = true
		b.target.Restore = id
		b.sync()
		assert.Equal(t, `{"one": 2}`, b.read(view))
	})
	t.Run("damaged note, target not on the disk", func(t *testing.T) {
		b, id := begin(t)
		b.target.Restore = id
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonRestored)
		b.put(".stoker/note-restored", "{")
		assert.Contains(t, b.ended(v1alpha1.GatewayError, v1alpha1.ReasonRolledBack).Message, "the record of the last restore is damaged")
		assert.Equal(t, `{"one": 1}`, b.read(view))
		b.push(gitserver.Write(view, `{"one": 3}`))
		b.target.Force = "now"
		b.synced()
	})
}

func TestSnapshotOfSync(t *testing.T) {
	t.Run("retentionCount is lowered before a restart", func(t *testing.T) {
		b := newSnapshotBench(t, simulator.Options{}).delivered()
		for i := range 3 {
			b.push(gitserver.Write(view, fmt.Sprintf(`{"one": %d}`, i+2)))
			b.synced()
		}
		b.restart(t.TempDir())
		b.target.Profile.Snapshots.RetentionCount = 2
		assert.Len(t, b.synced().Snapshots, 2)
	})
	t.Run("no snapshot without the setting", func(t *testing.T) {
		b := newBench(t, simulator.Options{}).delivered()
		b.push(gitserver.Write(view, `{"one": 2}`))
		assert.Empty(t, b.synced().Snapshots)
		assert.NoDirExists(t, b.data+"/.stoker/snapshots")
	})
	t.Run("too large", func(t *testing.T) {
		b := newSnapshotBench(t, simulator.Options{}).delivered()
		b.target.Profile.Snapshots.MaxSize = "5"
		b.push(gitserver.Write(view, `{"one": 2}`))
		r := b.ended(v1alpha1.GatewayError, v1alpha1.ReasonLimitExceeded)
		assert.Contains(t, r.Message, "spec.snapshots.maxSize")
		assert.Equal(t, `{"one": 1}`, b.read(view))
	})
	t.Run("a repair", func(t *testing.T) {
		b := newSnapshotBench(t, simulator.Options{}).delivered()
		b.put(view, `{"one": "edited"}`)
		b.target.Repair = true
		r := b.synced()
		require.Len(t, r.Snapshots, 1)
		b.target.Repair, b.target.Restore = false, r.Snapshots[0].ID
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonRestored)
		assert.Equal(t, `{"one": "edited"}`, b.read(view))
	})
}

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
		b.target.Commit = one
		b.synced()
		b.target.Commit = two
		b.ended(v1alpha1.GatewayError, v1alpha1.ReasonConfigSyntaxError)
		assert.Len(t, b.audited(), 3, "the failure after a success is a new record")
		b.push(gitserver.Write("projects/line/project.json", "{ "))
		b.ended(v1alpha1.GatewayError, v1alpha1.ReasonConfigSyntaxError)
		assert.Len(t, b.audited(), 4, "the failure of another commit is a new record")
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
}
