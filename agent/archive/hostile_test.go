package archive_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/archive"
	"stoker.io/stoker/agent/archive/archivetest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/failure"
)

// F22 of docs/internals/threats.md: object storage may be damaged, or forged.
func TestDamagedObjects(t *testing.T) {
	s, m := newSite(t), &archivetest.Memory{}
	s.sync(first)
	s.sync(second)
	s.sync(third)
	j := s.job(m, 5)
	u, ids := newUploader(), s.snapshots()
	u.Add(ids, nil)
	require.NoError(t, u.Pass(t.Context(), j))
	objects := m.Objects()
	label, packed := prefix+ids[0]+".json", prefix+ids[0]+".tar.gz"
	flipped := bytes.Clone(objects[packed])
	flipped[len(flipped)/2] ^= 1
	cases := map[string]struct {
		key  string
		b    []byte
		want string
	}{
		"a flipped bit":       {packed, flipped, "checksum"},
		"a truncated archive": {packed, objects[packed][:100], "checksum"},
		"a longer archive":    {packed, append(bytes.Clone(objects[packed]), 0), "more than"},
		"another archive":     {packed, objects[prefix+ids[1]+".tar.gz"], ".tar.gz"},
		"no archive":          {packed, nil, fs.ErrNotExist.Error()},
		"a label of another":  {label, objects[prefix+ids[1]+".json"], "label is damaged"},
		"a malformed label":   {label, []byte("<html>"), "label is damaged"},
		"a long label":        {label, bytes.Repeat([]byte(" "), 1<<20), "more than"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			for key, b := range objects { // setup: undamaged objects
				m.Set(key, b)
			}
			m.Set(c.key, c.b)
			_, err := download(t, j, ids[0])
			require.ErrorContains(t, err, c.want)
			got, err := download(t, j, ids[1])
			require.NoError(t, err, "the other snapshot is undamaged")
			assert.Equal(t, second, got)
		})
	}
	t.Run("the archive of another snapshot with a valid checksum", func(t *testing.T) {
		other := strings.ReplaceAll(string(objects[prefix+ids[1]+".json"]), ids[1], ids[0])
		m.Set(label, []byte(other))
		m.Set(packed, objects[prefix+ids[1]+".tar.gz"])
		_, err := download(t, j, ids[0])
		require.ErrorContains(t, err, "is the archive of")
		assert.True(t, failure.Is(err, v1alpha1.ReasonSnapshotFailed))
	})
	t.Run("the list omits damaged snapshots", func(t *testing.T) {
		m.Set(label, []byte("{"))
		list, err := j.Snapshots(t.Context(), nil)
		require.NoError(t, err)
		require.Len(t, list, 1)
		assert.Equal(t, ids[1], list[0].ID)
	})
}

// slow is a store whose objects arrive a piece a second, without an end.
type slow struct {
	archive.Store
	suffix string // of these objects
	piece  int
}

func (s slow) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	if !strings.HasSuffix(key, s.suffix) {
		return s.Store.Get(ctx, key)
	}
	return io.NopCloser(drip{ctx, s.piece}), nil
}

type drip struct {
	ctx   context.Context // as in net/http
	piece int
}

func (d drip) Read(p []byte) (int, error) {
	if !backoff.Wait(d.ctx, time.Second) {
		return 0, d.ctx.Err()
	}
	return min(d.piece, len(p)), nil
}

// F23 of docs/internals/threats.md: object storage decides neither how long a download takes nor how much of the volume it takes.
func TestHostileDownload(t *testing.T) {
	s, m := newSite(t), &archivetest.Memory{}
	s.sync(first)
	s.sync(second)
	id := s.snapshots()[0]
	claim := func(size int64) {
		m.Set(prefix+id+".json", fmt.Appendf(nil, `{"id":%q,"archiveBytes":%d}`, id, size))
	}
	f, err := s.dir.Scratch()
	require.NoError(t, err)
	defer func() { assert.NoError(t, f.Close()) }()
	for name, c := range map[string]struct {
		store archive.Store
		size  int64
		want  string
	}{
		"a label at a byte a second":     {slow{m, ".json", 1}, 100, "read " + id + ".json: too few bytes moved"},
		"an archive at a byte a second":  {slow{m, ".tar.gz", 1}, 100 << 20, "read " + id + ".tar.gz: too few bytes moved"},
		"an archive that takes too long": {slow{m, ".tar.gz", 10 << 10}, 4 << 30, "read " + id + ".tar.gz: not complete within 4h"},
		"more than there is room":        {m, 1 << 60, "read " + id + ".tar.gz: it has"},
	} {
		t.Run(name, func(t *testing.T) {
			claim(c.size)
			synctest.Test(t, func(t *testing.T) {
				_, err := s.job(c.store, 2).Download(t.Context(), id, f, archive.Limits{ArchiveBytes: 1 << 61})
				require.ErrorContains(t, err, c.want)
			})
			require.NoError(t, f.Truncate(0))
		})
	}
	t.Run("more labels than snapshots", func(t *testing.T) {
		for i := range 1000 { // setup
			old := fmt.Sprintf("area-4-20250101-%06d", i%60+i/60*100)
			m.Set(prefix+old+".json", []byte("{}"))
			m.Set(prefix+old+".tar.gz", []byte("x"))
		}
		m.Calls()
		_, err := s.job(m, 2).Snapshots(t.Context(), nil)
		require.NoError(t, err)
		assert.Less(t, len(m.Calls()), 300)
	})
}

// F27 of docs/internals/threats.md: copies of snapshots and backups on the volume are not uploaded, and remove nothing from the bucket.
func TestForgedSnapshots(t *testing.T) {
	s, m := newSite(t), &archivetest.Memory{}
	u, j := newUploader(), s.job(m, 3)
	s.sync(first)
	for _, want := range []map[string]string{second, third, second} { // setup: an archive and a backup for each
		s.sync(want)
		id := s.newest()
		require.NoError(t, s.dir.SaveBackup(id[0], 1<<20, func(io.Writer) error { return nil }))
		u.Add(id, id)
	}
	require.NoError(t, u.Pass(t.Context(), j))
	genuine := stored(m)
	require.Len(t, genuine, 9)
	ids, own := s.snapshots(), filepath.Join(s.root, ".stoker")
	for i := range 15 { // setup: forged ones, all newer
		id := fmt.Sprintf("area-4-20261120-07%02d00", i)
		require.NoError(t, os.CopyFS(filepath.Join(own, "snapshots", id), os.DirFS(filepath.Join(own, "snapshots", ids[2])))) //nolint:forbidigo // a snapshot has no symbolic links
		require.NoError(t, os.WriteFile(filepath.Join(own, "backups", id+".gwbk"), nil, 0o600))
	}
	require.Len(t, s.snapshots(), 18)
	restarted := newUploader()
	for _, u := range []*archive.Uploader{u, restarted} { // sequence: before and after a restart
		require.NoError(t, u.Pass(t.Context(), j))
		assert.Equal(t, genuine, stored(m))
	}
	t.Run("one sync costs at most the oldest archive", func(t *testing.T) {
		s.sync(third)
		restarted.Add(s.newest(), nil)
		require.NoError(t, restarted.Pass(t.Context(), j))
		removed := []string{ids[0] + ".json", ids[0] + ".tar.gz"}
		assert.ElementsMatch(t, append(slices.DeleteFunc(slices.Clone(genuine), func(name string) bool { return slices.Contains(removed, name) }),
			s.newest()[0]+".json", s.newest()[0]+".tar.gz"), stored(m))
	})
	t.Run("nothing younger than a day goes", func(t *testing.T) {
		before := len(stored(m))
		restarted.Now = func() time.Time { return s.now.Add(23 * time.Hour) }
		for _, want := range []map[string]string{second, third} { // sequence: one sync after the other
			s.sync(want)
			restarted.Add(s.newest(), nil)
			require.NoError(t, restarted.Pass(t.Context(), j))
		}
		assert.Len(t, stored(m), before+4)
	})
	t.Run("nothing goes without the newer archive", func(t *testing.T) {
		restarted.Now = newUploader().Now
		newest := s.newest()[0]
		m.Set(prefix+newest+".json", nil)
		before := stored(m)
		require.NoError(t, restarted.Pass(t.Context(), j))
		assert.Equal(t, before, stored(m))
	})
}
