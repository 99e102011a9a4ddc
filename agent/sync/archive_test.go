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
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// stored returns a bench whose snapshots are copied to m.
func stored(t *testing.T, m *archivetest.Memory) *bench {
	t.Helper()
	b := newSnapshotBench(t, simulator.Options{})
	b.target.Facts.Namespace, b.target.Facts.CRName = "plant", "line"
	b.target.Profile.Snapshots.Storage = &v1alpha1.SnapshotStorage{Type: v1alpha1.StorageS3, Bucket: "backups", KeyPrefix: "stoker/"}
	b.conn.Storage = m
	return b
}

// deletedOpen counts the deleted scratch files below a directory that this process keeps open. Downloads of archives use such files.
func deletedOpen(t *testing.T, dir string) (n int) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("needs /proc")
	}
	for _, e := range list {
		name, _ := os.Readlink("/proc/self/fd/" + e.Name()) // it may be closed by now
		if strings.HasPrefix(name, dir+"/") && strings.HasSuffix(name, "scratch (deleted)") {
			n++
		}
	}
	return n
}

// upload copies the snapshots.
func (b *bench) upload() {
	b.t.Helper()
	u := archive.NewUploader(slog.New(slog.DiscardHandler))
	list, err := os.ReadDir(b.data + "/.stoker/snapshots")
	require.NoError(b.t, err)
	for _, e := range list { // setup: all of them are of syncs of this process
		u.Add([]string{e.Name()}, nil)
	}
	require.NoError(b.t, u.Pass(b.t.Context(), b.engine.UploadJob(b.conn, &b.target)))
}

// F22 of docs/internals/threats.md: the agent restores only a complete, undamaged archive.
func TestRestoreFromStorage(t *testing.T) {
	// begin syncs two commits and uploads the snapshot between them.
	begin := func(t *testing.T) (b *bench, m *archivetest.Memory, id string) {
		m = &archivetest.Memory{}
		b = stored(t, m)
		b.delivered()
		b.push(gitserver.Write(view, `{"one": 2}`), gitserver.Delete(db+"/config.json"), gitserver.Delete(db+"/resource.json"),
			gitserver.Write("config/resources/core/ignition/database-connection/other/config.json", "{}"))
		r := b.synced()
		require.Len(t, r.Snapshots, 1)
		b.upload()
		id = r.Snapshots[0].ID
		require.Contains(t, m.Objects(), "stoker/plant/line/area-4/"+id+".tar.gz")
		return b, m, id
	}
	// lost returns another volume that gets the request, of a gateway without git.
	lost := func(t *testing.T, b *bench, m *archivetest.Memory, request string) *bench {
		l := stored(t, m)
		require.NoError(t, os.RemoveAll(l.repo.Dir))
		l.target.Target = b.target.Target
		l.target.Restore = request
		return l
	}
	t.Run("volume and git are lost", func(t *testing.T) {
		b, m, id := begin(t)
		l := lost(t, b, m, id)
		r := l.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonRestored)
		assert.Equal(t, `{"one": 1}`, l.read(view))
		assert.NotNil(t, l.gw.Data.Loaded(db), "the gateway has loaded the resource")
		assert.Contains(t, strings.Join(r.Notes, "\n"), "comes from object storage")
		assert.Equal(t, 5, r.Files.Total)
		require.NoError(t, l.gw.Canaries.Check())
		assert.Zero(t, l.drift(true).Files)
		m.Calls()
		assert.False(t, l.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonRestored).Wrote())
		assert.Empty(t, m.Calls(), "the restore happens once")
	})
	t.Run("snapshot removed from the volume", func(t *testing.T) {
		b, _, id := begin(t)
		b.push(gitserver.Write(view, `{"one": 3}`))
		b.synced()
		require.NoError(t, os.RemoveAll(b.data+"/.stoker/snapshots/"+id))
		b.target.Restore = id
		r := b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonRestored)
		assert.Equal(t, `{"one": 1}`, b.read(view))
		assert.NotNil(t, b.gw.Data.Loaded(db))
		require.Len(t, r.Snapshots, 2, "the restore takes a snapshot, too")
		b.target.Restore = r.Snapshots[1].ID
		b.synced()
		assert.Equal(t, `{"one": 3}`, b.read(view))
	})
	t.Run("an open Designer session", func(t *testing.T) {
		b, m, id := begin(t)
		require.NoError(t, os.RemoveAll(b.data+"/.stoker/snapshots/"+id))
		b.target.Profile.DesignerSessionPolicy = v1alpha1.DesignerWait
		session := b.designer("maria", "line")
		b.target.Restore = id
		m.Calls()
		for range 3 { // sequence: retries of one sync
			b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonDesignerSessionActive)
		}
		assert.Len(t, m.Calls(), 2, "retries do not read the label and the archive again")
		require.NoError(t, b.gw.Designers.Close(session))
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonRestored)
		assert.Equal(t, `{"one": 1}`, b.read(view))
	})
	t.Run("a request that lapses frees the space of its archive", func(t *testing.T) {
		b, _, id := begin(t)
		require.NoError(t, os.RemoveAll(b.data+"/.stoker/snapshots/"+id))
		b.target.Profile.DesignerSessionPolicy = v1alpha1.DesignerWait
		b.designer("maria", "line")
		b.target.Restore = id
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonDesignerSessionActive)
		require.Equal(t, 1, deletedOpen(t, b.data))
		b.push(gitserver.Write(view, `{"one": 3}`))
		b.sync()
		assert.Zero(t, deletedOpen(t, b.data))
	})
	t.Run("an unknown snapshot", func(t *testing.T) {
		b, _, _ := begin(t)
		b.target.Restore = "area-4-20200101-000000"
		r := b.ended(v1alpha1.GatewayError, v1alpha1.ReasonSnapshotFailed)
		assert.Contains(t, r.Message, "object storage does not have the snapshot")
		assert.Equal(t, `{"one": 2}`, b.read(view))
	})
	t.Run("F23: a new commit is delivered while an archive never arrives", func(t *testing.T) {
		b, m, id := begin(t)
		require.NoError(t, os.RemoveAll(b.data+"/.stoker/snapshots/"+id))
		reading := make(chan struct{}, 1)
		m.Fail(func(ctx context.Context, _, key string) error {
			if !strings.HasSuffix(key, ".tar.gz") {
				return nil
			}
			reading <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		})
		b.target.Restore = id
		r := b.ended(v1alpha1.GatewayPending, v1alpha1.ReasonProgressing)
		assert.Contains(t, r.Message, "the snapshot is read from object storage")
		<-reading
		b.ended(v1alpha1.GatewayPending, v1alpha1.ReasonProgressing)
		assert.Empty(t, reading, "one download for all retries")
		b.push(gitserver.Write(view, `{"one": 3}`))
		b.synced()
		assert.Equal(t, `{"one": 3}`, b.read(view))
		assert.Zero(t, deletedOpen(t, b.data), "the download has ended")
	})
	t.Run("F23: an archive larger than maxSize", func(t *testing.T) {
		b, m, id := begin(t)
		l := lost(t, b, m, id)
		l.target.Profile.Snapshots.MaxSize = "100"
		assert.Contains(t, l.ended(v1alpha1.GatewayError, v1alpha1.ReasonLimitExceeded).Message, "raise spec.snapshots.maxSize")
		assert.NotContains(t, m.Calls(), "get stoker/plant/line/area-4/"+id+".tar.gz")
	})
	t.Run("failing storage is retried", func(t *testing.T) {
		b, m, id := begin(t)
		m.Fail(func(context.Context, string, string) error { return errors.New("403 AccessDenied") })
		l := lost(t, b, m, id)
		r := l.ended(v1alpha1.GatewayError, v1alpha1.ReasonSnapshotFailed)
		assert.Contains(t, r.Message, "403 AccessDenied")
		assert.Empty(t, l.read(view))
		m.Fail(nil)
		l.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonRestored)
		assert.Equal(t, `{"one": 1}`, l.read(view))
	})
	t.Run("damaged snapshot and failing storage", func(t *testing.T) {
		b, m, id := begin(t)
		require.NoError(t, os.Truncate(b.data+"/.stoker/snapshots/"+id+"/journal", 1))
		m.Fail(func(context.Context, string, string) error { return errors.New("403 AccessDenied") })
		b.target.Restore = id
		r := b.ended(v1alpha1.GatewayError, v1alpha1.ReasonSnapshotFailed)
		assert.Contains(t, r.Message, "read the journal of snapshot "+id)
		assert.Contains(t, r.Message, "object storage: ")
		assert.Contains(t, r.Message, "403 AccessDenied")
		m.Fail(nil)
		b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonRestored)
		assert.Equal(t, `{"one": 1}`, b.read(view))
	})
	t.Run("a damaged archive changes nothing", func(t *testing.T) {
		b, m, id := begin(t)
		key, label := "stoker/plant/line/area-4/"+id+".tar.gz", "stoker/plant/line/area-4/"+id+".json"
		good := m.Objects()
		m.Set(key, good[key][:200])
		l := lost(t, b, m, id)
		m.Calls()
		for range 3 { // sequence: retries of one sync
			r := l.ended(v1alpha1.GatewayError, v1alpha1.ReasonSnapshotFailed)
			assert.Contains(t, r.Message, "checksum")
			assert.Empty(t, l.read(view))
		}
		assert.Equal(t, []string{"get " + label, "get " + key, "get " + label, "get " + label}, m.Calls(), "a retry reads only the label again")
		m.Set(key, good[key])
		m.Set(label, bytes.Replace(good[label], []byte(`"sha256":"`), []byte(`"sha256":"0`), 1)) // another label
		l.ended(v1alpha1.GatewayError, v1alpha1.ReasonSnapshotFailed)
		m.Set(label, good[label])
		l.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonRestored)
	})
	t.Run("a request to an earlier volume", func(t *testing.T) {
		b, m, id := begin(t)
		old := annotation.RestoreValue(id, time.Now().Add(-25*time.Hour))
		l := stored(t, m)
		l.push(firstCommit()...)
		l.target.Restore = old
		assert.Contains(t, strings.Join(l.synced().Notes, "\n"), "is older than this data volume")
		assert.Equal(t, `{"one": 1}`, l.read(view))
		l = lost(t, b, m, annotation.RestoreValue(id, time.Now().Add(-time.Hour)))
		l.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonRestored)
	})
	// An archive has the files of users without their records, so only a comparison of all files finds them.
	t.Run("files of users", func(t *testing.T) {
		for name, next := range map[string]func(b *bench, first plan.ID){
			"the target is another commit": func(b *bench, _ plan.ID) {
				b.ended(v1alpha1.GatewayHeld, v1alpha1.ReasonRestored)
				assert.Equal(t, `{"url": "edited"}`, b.read(db+"/config.json"))
				assert.Equal(t, `{"one": 1}`, b.read(view))
				b.push(gitserver.Write(view, `{"one": 3}`))
				b.synced()
				assert.Equal(t, `{"one": 3}`, b.read(view))
			},
			"the restore brings the target back": func(b *bench, first plan.ID) {
				b.target.Commit = first
				b.synced()
				assert.Equal(t, `{"one": 1}`, b.read(view))
			},
		} {
			t.Run(name, func(t *testing.T) {
				b := stored(t, &archivetest.Memory{}).delivered()
				first := b.target.Commit
				b.put(db+"/config.json", `{"url": "edited"}`)
				b.remove(viewDir + "/resource.json")
				b.push(gitserver.Write(view, `{"one": 2}`))
				b.target.Restore = b.synced().Snapshots[0].ID
				b.upload()
				b.remove(".stoker")
				next(b, first)
				assert.NotContains(t, b.read(db+"/config.json"), "edited")
				assert.NotEmpty(t, b.read(viewDir+"/resource.json"))
			})
		}
	})
	t.Run("snapshot of another gateway", func(t *testing.T) {
		b, m, id := begin(t)
		b.target.Facts.GatewayName = "area-5"
		b.upload()
		m.Set("stoker/plant/line/area-4/"+id+".tar.gz", nil)
		b.target.Restore = "area-5-" + strings.TrimPrefix(id, "area-4-")
		b.ended(v1alpha1.GatewayError, v1alpha1.ReasonSnapshotFailed)
		assert.Equal(t, `{"one": 2}`, b.read(view))
	})
}

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
		b.delivered()
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
		"forbidden":         {func(b *bench) { b.fault(simulator.Fault{Route: backupRoute, Status: 403}) }, "403"},
		"a lost connection": {func(b *bench) { b.fault(simulator.Fault{Route: backupRoute, Reset: true}) }, "back up the gateway"},
		"not a backup":      {func(b *bench) { b.fault(simulator.Fault{Route: backupRoute, Status: 200, Body: "<html>"}) }, "did not answer with a backup"},
		"without a token":   {func(b *bench) { b.conn.HasAPIToken = false }, "API key"},
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
		b.at("apply", func() {
			made = len(backups(b))
			b.designer("anna", "line")
		})
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
