package sync_test

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/archive"
	"stoker.io/stoker/agent/archive/archivetest"
	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

const backupRoute = "GET /data/api/v1/backup"

// inBackup returns a file of a backup.
func inBackup(t *testing.T, b []byte, name string) string {
	t.Helper()
	z, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
	require.NoError(t, err)
	f, err := z.Open(name)
	require.NoError(t, err)
	text, err := io.ReadAll(f)
	require.NoError(t, err)
	return string(text)
}

func TestGatewayBackup(t *testing.T) {
	begin := func(t *testing.T) *bench {
		b := newSnapshotBench(t, simulator.Options{})
		b.target.Profile.Snapshots.GatewayBackup = v1alpha1.GatewayBackupBeforeSync
		b.target.Profile.Snapshots.RetentionCount = 2
		b.push(firstCommit()...)
		b.synced()
		return b
	}
	backups := func(b *bench) []string {
		list, err := filepath.Glob(filepath.Join(b.data, ".stoker", "backups", "*"))
		require.NoError(b.t, err)
		return list
	}
	t.Run("before each sync", func(t *testing.T) {
		b := begin(t)
		require.Len(t, backups(b), 1, "the backup of the gateway before its first sync")
		b.push(gitserver.Write(view, `{"one": 2}`))
		r := b.synced()
		raw, err := os.ReadFile(filepath.Join(b.data, ".stoker", "backups", r.Snapshots[0].ID+".gwbk"))
		require.NoError(t, err)
		assert.Equal(t, `{"one": 1}`, inBackup(t, raw, view))
		assert.True(t, r.Snapshots[0].Backup)
		b.push(gitserver.Write(view, `{"one": 3}`))
		r = b.synced()
		assert.Len(t, backups(b), 2, "retentionCount")
		assert.True(t, r.Snapshots[0].Backup && r.Snapshots[1].Backup)
		assert.Positive(t, r.Steps["backup"])

		b.gw.Requests.Reset()
		b.synced()
		b.push(gitserver.Write("README.md", "not for the gateway"))
		b.synced()
		assert.Zero(t, b.gw.Requests.Count(backupRoute), "no backup without changes")
		b.target.Restore = r.Snapshots[0].ID
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonRestored)
		assert.Zero(t, b.gw.Requests.Count(backupRoute), "no backup before a restore")
	})
	t.Run("in object storage", func(t *testing.T) {
		m := &archivetest.Memory{}
		b := stored(t, m)
		b.target.Profile.Snapshots.GatewayBackup = v1alpha1.GatewayBackupBeforeSync
		u := archive.NewUploader(slog.New(slog.DiscardHandler))
		next := func(edits ...gitserver.Edit) *sync.Report {
			b.push(edits...)
			r := b.synced()
			u.Add(r.NewSnapshots, r.NewBackups)
			return r
		}
		upload := func() {
			t.Helper()
			require.NoError(t, u.Pass(t.Context(), b.engine.UploadJob(b.conn, &b.target)))
		}
		next(firstCommit()...)
		m.Fail(func(context.Context, string, string) error { return errors.New("no bucket") })
		id := next(gitserver.Write(view, `{"one": 2}`)).Snapshots[0].ID
		assert.Len(t, backups(b), 2, "a failing bucket does not stop a sync")
		m.Fail(nil)
		upload()
		assert.Equal(t, `{"one": 1}`, inBackup(t, m.Objects()["stoker/plant/line/area-4/"+id+".gwbk"], view))
		assert.Len(t, m.Objects(), 4, "two backups, an archive and its label")
		b.target.Profile.Snapshots.RetentionCount = 1
		next(gitserver.Write(view, `{"one": 3}`))
		upload()
		assert.Len(t, m.Objects(), 7, "nothing of today is deleted")
		assert.Len(t, backups(b), 1)
		u.Now = func() time.Time { return time.Now().Add(25 * time.Hour) }
		upload()
		assert.Len(t, m.Objects(), 4, "an archive, its label and two backups: each upload since the change of retentionCount allows one deletion")
	})
	refused := map[string]struct {
		setup func(b *bench)
		want  string
	}{
		"forbidden":       {func(b *bench) { fault(b, simulator.Fault{Route: backupRoute, Status: 403}) }, "403"},
		"cut":             {func(b *bench) { fault(b, simulator.Fault{Route: backupRoute, Reset: true}) }, "back up the gateway"},
		"not a backup":    {func(b *bench) { fault(b, simulator.Fault{Route: backupRoute, Status: 200, Body: "<html>"}) }, "did not answer with a backup"},
		"without a token": {func(b *bench) { b.conn.HasAPIToken = false }, "API key"},
	}
	for name, c := range refused {
		t.Run(name, func(t *testing.T) {
			b := begin(t)
			before := backups(b)
			c.setup(b)
			b.push(gitserver.Write(view, `{"one": 2}`))
			r := b.ended(v1alpha1.GatewayError, v1alpha1.ReasonSnapshotFailed)
			assert.Contains(t, r.Message, c.want)
			assert.Contains(t, r.Message, "nothing was changed")
			assert.Equal(t, `{"one": 1}`, b.read(view))
			assert.Equal(t, before, backups(b))
			b.gw.Faults.Clear()
			b.conn.HasAPIToken = true
			b.synced()
		})
	}
	t.Run("larger than maxSize", func(t *testing.T) {
		b := begin(t)
		b.target.Profile.Snapshots.MaxSize = "200"
		b.push(gitserver.Write(view, `{"one": 2}`))
		r := b.ended(v1alpha1.GatewayError, v1alpha1.ReasonLimitExceeded)
		assert.Contains(t, r.Message, "spec.snapshots.maxSize")
		assert.Equal(t, `{"one": 1}`, b.read(view))
		assert.Len(t, backups(b), 1, "the earlier backup only")
	})
	t.Run("no backup for a sync that changes no file", func(t *testing.T) {
		b := begin(t)
		before := backups(b)
		b.target.Profile.DesignerSessionPolicy = v1alpha1.DesignerWait
		b.push(gitserver.Write(view, `{"one": 2}`))
		made := 0
		b.engine.Progress = func(step string, _, _ int) {
			if step == "apply" && made == 0 {
				made = len(backups(b))
				_, err := b.gw.Designers.Open("anna", "line")
				assert.NoError(t, err)
			}
		}
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonDesignerSessionActive)
		assert.Equal(t, 2, made)
		assert.Equal(t, before, backups(b))
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonDesignerSessionActive)
		assert.Equal(t, 2, b.gw.Requests.Count(backupRoute), "no backup for a sync that waits")
	})
	t.Run("removed with the snapshots", func(t *testing.T) {
		b := begin(t)
		b.target.Profile.Snapshots = nil
		b.synced()
		assert.Len(t, backups(b), 1)
		b.push(gitserver.Write(view, `{"one": 2}`))
		b.synced()
		assert.NoDirExists(t, filepath.Join(b.data, ".stoker", "backups"))
	})
	t.Run("no backup of a stopped gateway", func(t *testing.T) {
		b := begin(t)
		b.push(gitserver.Write(view, `{"one": 2}`))
		b.connect(ignition.Config{URL: "http://127.0.0.1:1"})
		r := b.ended(v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway)
		assert.Contains(t, strings.Join(r.Notes, "\n"), "no backup of the gateway")
		assert.Equal(t, `{"one": 2}`, b.read(view))
		assert.Len(t, backups(b), 1)
	})
}

func fault(b *bench, f simulator.Fault) {
	b.t.Helper()
	require.NoError(b.t, b.gw.Faults.Add(f))
}
