package archive_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/archive"
	"stoker.io/stoker/agent/archive/archivetest"
)

func TestMemoryStore(t *testing.T) { archivetest.Run(t, &archivetest.Memory{}) }

// job copies the snapshots of a site (archive_test.go) to a store.
func (s *site) job(store archive.Store, keep int) *archive.Job {
	return &archive.Job{Bucket: *archive.NewBucket(store, "memory", "stoker/", "plant", "line", "area-4", keep), DataDir: s.root}
}

const prefix = "stoker/plant/line/area-4/"

// newUploader returns an Uploader of a new process. All snapshots of a site are older than a day for it.
func newUploader() *archive.Uploader {
	u := archive.NewUploader(slog.New(slog.DiscardHandler))
	u.Now = func() time.Time { return time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC) }
	return u
}

// newest returns the id of the last snapshot.
func (s *site) newest() []string {
	ids := s.snapshots()
	return ids[len(ids)-1:]
}

// stored returns the names of the objects of the gateway.
func stored(m *archivetest.Memory) []string {
	var names []string
	for key := range m.Objects() {
		names = append(names, strings.TrimPrefix(key, prefix))
	}
	slices.Sort(names)
	return names
}

// download restores a snapshot from a store on an empty volume.
func download(t *testing.T, j *archive.Job, id string) (map[string]string, error) {
	t.Helper()
	lost := newSite(t)
	f, err := lost.dir.Scratch()
	require.NoError(t, err)
	defer func() { assert.NoError(t, f.Close()) }()
	a, err := j.Download(t.Context(), id, f, archive.Limits{})
	if err != nil {
		return nil, err
	}
	c, err := lost.dir.PlanReplace(t.Context(), a.Header, a.Files)
	require.NoError(t, err)
	lost.apply(c, a.Header, a.Source)
	return lost.files(), nil
}

func TestUpload(t *testing.T) {
	s, m := newSite(t), &archivetest.Memory{}
	u, j := newUploader(), s.job(m, 2)
	s.sync(first)
	require.NoError(t, u.Pass(t.Context(), j))
	assert.Empty(t, stored(m), "the first sync has no snapshot")
	s.sync(second)
	s.sync(third)
	u.Add(s.snapshots(), nil)
	require.NoError(t, u.Pass(t.Context(), j))
	ids := s.snapshots()
	assert.Equal(t, []string{ids[0] + ".json", ids[0] + ".tar.gz", ids[1] + ".json", ids[1] + ".tar.gz"}, stored(m))
	local, err := s.dir.ListSnapshots()
	require.NoError(t, err)
	remote, known := u.Remote(j)
	assert.True(t, known)
	assert.Equal(t, local, remote)

	m.Calls()
	require.NoError(t, u.Pass(t.Context(), j))
	assert.Equal(t, []string{"list " + prefix}, m.Calls(), "no further upload")

	m.Set(prefix+"area-4-20200101-000000.tar.gz", []byte("left by an upload long ago"))
	foreign := []string{"notes.txt", "area-40-20200101-000000.tar.gz", "area-4-20200101-000000.tar.gz/x", "deep/area-4-20200101-000000.json", "area-4-20200101-000000.gz"}
	for _, name := range foreign { // setup: objects of others
		m.Set(prefix+name, []byte("x"))
	}
	s.sync(second)
	u.Add(s.newest(), nil)
	require.NoError(t, u.Pass(t.Context(), j))
	ids = s.snapshots()[1:]
	assert.ElementsMatch(t, append([]string{ids[0] + ".json", ids[0] + ".tar.gz", ids[1] + ".json", ids[1] + ".tar.gz"}, foreign...), stored(m),
		"two snapshots are kept, the rest of an old upload is removed, and foreign objects stay")

	for i, want := range []map[string]string{second, third} {
		t.Run(ids[i], func(t *testing.T) {
			got, err := download(t, j, ids[i])
			require.NoError(t, err)
			assert.Equal(t, want, got)
		})
	}
	_, err = download(t, j, "area-4-20200101-000000")
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// F23 of docs/internals/threats.md: a store that refuses, fails or hangs delays no sync, and the upload is retried.
func TestUploadFaults(t *testing.T) {
	var logged bytes.Buffer
	s, m := newSite(t), &archivetest.Memory{}
	u := archive.NewUploader(slog.New(slog.NewTextHandler(&logged, nil)))
	var results []bool
	pending := -1
	u.OnUpload, u.OnPending = func(err error) { results = append(results, err == nil) }, func(n int) { pending = n }
	j := s.job(m, 5)
	s.sync(first)
	s.sync(second)
	u.Add(s.snapshots(), nil)
	refused := errors.New("the bucket refuses access (AccessDenied)")
	m.Fail(func(_ context.Context, op, _ string) error {
		if op == "put" {
			return refused
		}
		return nil
	})
	for range 2 { // sequence: an attempt and a retry
		require.ErrorIs(t, u.Pass(t.Context(), j), refused)
	}
	assert.Equal(t, 1, strings.Count(logged.String(), "AccessDenied"), "an error is logged once")
	assert.Equal(t, []bool{false, false}, results)
	assert.Equal(t, 1, pending)
	m.Fail(func(_ context.Context, op, key string) error {
		if op == "put" && strings.HasSuffix(key, ".json") {
			return refused
		}
		return nil
	})
	require.Error(t, u.Pass(t.Context(), j))
	list, err := j.Snapshots(t.Context(), nil)
	require.NoError(t, err)
	assert.Empty(t, list, "a snapshot without its label is not listed")
	m.Fail(nil)
	require.NoError(t, u.Pass(t.Context(), j))
	assert.Equal(t, 0, pending)
	got, err := download(t, j, s.snapshots()[0])
	require.NoError(t, err)
	assert.Equal(t, first, got)

	hung := make(chan struct{}, 9)
	m.Fail(func(ctx context.Context, op, _ string) error {
		if op == "put" {
			hung <- struct{}{}
			<-ctx.Done()
		}
		return ctx.Err()
	})
	s.sync(third)
	u.Add(s.newest(), nil)
	u.SetJob(j)
	<-hung
	s.sync(second)
	u.Add(s.newest(), nil)
	u.SetJob(nil) // another agent has the gateway
	u.SetJob(j)
	<-hung
	elsewhere := &archivetest.Memory{}
	other := s.job(elsewhere, 2)
	other.Location = "other"
	u.SetJob(other)
	require.Eventually(t, func() bool { return len(elsewhere.Objects()) > 0 }, 20*time.Second, 10*time.Millisecond, "it does not wait for the first bucket")
	u.Close()
	u.Close()
	assert.Len(t, m.Objects(), 2)
}

// The uploader retries by itself, and skips snapshots that the volume no longer has.
func TestUploadInTheBackground(t *testing.T) {
	s, m := newSite(t), &archivetest.Memory{}
	s.keep = 2
	s.sync(first)
	s.sync(second)
	u := newUploader()
	u.Add(s.newest(), nil)
	defer u.Close()
	fail := true
	m.Fail(func(context.Context, string, string) error {
		if fail {
			fail = false
			return errors.New("not now")
		}
		return nil
	})
	u.SetJob(s.job(m, 2))
	require.Eventually(t, func() bool { return len(m.Objects()) == 2 }, 20*time.Second, 10*time.Millisecond, "the uploader retries")
	for _, want := range []map[string]string{third, second, third} { // setup: syncs without an upload
		s.sync(want)
		u.Add(s.newest(), nil)
	}
	ids := s.snapshots()
	require.Eventually(t, func() bool {
		return slices.Equal(stored(m), []string{ids[0] + ".json", ids[0] + ".tar.gz", ids[1] + ".json", ids[1] + ".tar.gz"})
	}, 20*time.Second, 10*time.Millisecond)
	require.Eventually(t, func() bool {
		remote, _ := u.Remote(s.job(m, 2))
		return len(remote) == 2 && remote[1].ID == ids[1]
	}, 20*time.Second, 10*time.Millisecond)
	<-u.RemoteChanged()
	other := s.job(&archivetest.Memory{}, 3)
	_, known := u.Remote(other)
	assert.True(t, known, "a new client of the same bucket")
	other.Location = "other"
	_, known = u.Remote(other)
	assert.False(t, known, "another bucket with the same prefix was not listed")
}

// Write makes an archive without a copy on the volume, and without holding large files in memory.
func TestArchiveOfLargeFile(t *testing.T) {
	s := newSite(t)
	large := strings.Repeat("0123456789abcdef", 2<<20) // 32 MiB
	s.sync(map[string]string{"projects/p/large": large, "projects/p/a": "1"})
	s.sync(map[string]string{"projects/p/large": large, "projects/p/a": "2"})
	c, err := s.dir.Contents(s.snapshots()[0], nil)
	require.NoError(t, err)
	defer func() { assert.NoError(t, c.Close()) }()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	require.NoError(t, archive.Write(t.Context(), discard{}, c))
	runtime.ReadMemStats(&after)
	assert.Less(t, (after.TotalAlloc-before.TotalAlloc)>>20, uint64(8), "MiB")
	_, err = os.Stat(filepath.Join(s.root, ".stoker", "scratch"))
	require.ErrorIs(t, err, fs.ErrNotExist)
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// The metric that an alert watches counts pending uploads also while the bucket cannot be listed. Without a job it is 0.
func TestPendingUploads(t *testing.T) {
	s, m := newSite(t), &archivetest.Memory{}
	s.sync(first)
	s.sync(second)
	s.sync(third)
	u := archive.NewUploader(slog.New(slog.DiscardHandler))
	u.Add(s.snapshots(), nil)
	defer u.Close()
	var pending atomic.Int64
	u.OnPending = func(n int) { pending.Store(int64(n)) }
	reaches := func(want int64) {
		t.Helper()
		require.Eventually(t, func() bool { return pending.Load() == want }, 20*time.Second, 10*time.Millisecond)
	}
	refuse := func(context.Context, string, string) error { return errors.New("refused") }
	m.Fail(refuse)
	u.SetJob(s.job(m, 2))
	reaches(int64(len(s.snapshots())))
	m.Fail(nil)
	reaches(0)
	m.Fail(refuse)
	s.sync(first)
	u.Add(s.newest(), nil)
	reaches(1)
	u.SetJob(nil)
	reaches(0)

	again := newUploader() // a restart
	left := -1
	again.OnPending = func(n int) { left = n }
	require.Error(t, again.Pass(t.Context(), s.job(m, 2)))
	assert.Equal(t, 2, left, "the bucket cannot be listed")
	m.Fail(nil)
	require.NoError(t, again.Pass(t.Context(), s.job(m, 2)))
	assert.Equal(t, 1, left, "the bucket lacks the newest")
	empty := newUploader()
	empty.OnPending = func(n int) { left = n }
	require.NoError(t, empty.Pass(t.Context(), s.job(&archivetest.Memory{}, 2)))
	assert.Zero(t, left, "a new bucket gets only later snapshots")
	s.sync(second)
	again.Add(s.newest(), nil)
	require.NoError(t, again.Pass(t.Context(), s.job(m, 2)))
	assert.Zero(t, left)
}

func TestUploadOfBackups(t *testing.T) {
	s, m := newSite(t), &archivetest.Memory{}
	u, j := newUploader(), s.job(m, 2)
	var failed, pending int
	u.OnUpload = func(err error) {
		if err != nil {
			failed++
		}
	}
	u.OnPending = func(n int) { pending = n }
	save := func(id, text string) {
		require.NoError(t, s.dir.SaveBackup(id, 1<<20, func(w io.Writer) error {
			_, err := io.WriteString(w, text)
			return err
		}))
		u.Add(nil, []string{id})
	}
	s.sync(first)
	save("area-4-20200101-000000", "before the first sync")
	s.sync(second)
	id := s.snapshots()[0]
	save(id, "the gateway")
	u.Add([]string{id}, nil)
	m.Fail(func(_ context.Context, op, key string) error {
		if op == "put" && strings.HasSuffix(key, ".gwbk") {
			return errors.New("no space in the bucket")
		}
		return nil
	})
	require.ErrorContains(t, u.Pass(t.Context(), j), "no space")
	assert.Equal(t, []string{id + ".json", id + ".tar.gz"}, stored(m), "a failed upload of a backup does not delay the archive")
	assert.Equal(t, []int{2, 2}, []int{failed, pending})
	m.Fail(nil)
	require.NoError(t, u.Pass(t.Context(), j))
	assert.Equal(t, []string{"area-4-20200101-000000.gwbk", id + ".gwbk", id + ".json", id + ".tar.gz"}, stored(m))
	assert.Equal(t, "the gateway", string(m.Objects()[prefix+id+".gwbk"]))
	assert.Zero(t, pending)
	remote, _ := u.Remote(j)
	require.Len(t, remote, 1)
	assert.True(t, remote[0].Backup)
	again := newUploader() // a restart
	m.Calls()
	require.NoError(t, again.Pass(t.Context(), j))
	assert.Equal(t, []string{"list " + prefix, "get " + prefix + id + ".json"}, m.Calls(), "no further upload")
	known, _ := again.Remote(j)
	assert.Equal(t, remote, known)

	m.Set(prefix+"area-40-20200101-000000.gwbk", []byte("of another gateway"))
	save("area-4-20261120-230000", "newer")
	require.NoError(t, u.Pass(t.Context(), j))
	assert.ElementsMatch(t, []string{id + ".gwbk", id + ".json", id + ".tar.gz", "area-4-20261120-230000.gwbk", "area-40-20200101-000000.gwbk"}, stored(m), "two backups are kept")
}
