package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk/records"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/disk/snapshot"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/internal/failure"
)

// backUp saves a backup of a number of bytes.
func backUp(d *Dir, id string, bytes int, limit int64) error {
	return d.SaveBackup(id, limit, func(w io.Writer) error {
		_, err := io.CopyN(w, strings.NewReader(strings.Repeat("g", bytes)), int64(bytes))
		return err
	})
}

// backedUp returns the ids of the backups, oldest first.
func backedUp(t testing.TB, d *Dir) []string {
	t.Helper()
	list, err := d.Backups()
	require.NoError(t, err)
	var names []string
	for id := range list {
		names = append(names, id)
	}
	snapshot.SortByTime(names)
	return names
}

func TestBackups(t *testing.T) {
	content := func(i int) tree { return tree{"projects/p/view.json": file{content: fmt.Sprint(i)}} }
	begin := func(t *testing.T) (*Dir, string) {
		root := seeded(t)
		return open(t, root, Options{Now: fixed}), root
	}
	// syncs carries out a sync with a backup of a number of bytes, and returns the id of the backup.
	syncs := func(t *testing.T, d *Dir, want tree, bytes int, o Snapshots) string {
		id, err := d.snapshots.NextID(o.Gateway)
		require.NoError(t, err)
		require.NoError(t, backUp(d, id, bytes, o.MaxBytes))
		syncTo(t, d, want, o)
		return id
	}
	t.Run("retentionCount", func(t *testing.T) {
		d, _ := begin(t)
		o := anySnapshots
		o.Keep = 2
		var all []string
		for i := range 4 { // sequence: each displaces the one before
			all = append(all, syncs(t, d, content(i), 100, o))
		}
		assert.Equal(t, all[2:], backedUp(t, d))
		f, err := d.OpenBackup(all[3])
		require.NoError(t, err)
		b, err := io.ReadAll(f)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		assert.Equal(t, strings.Repeat("g", 100), string(b))
		_, err = d.OpenBackup(all[0])
		require.ErrorIs(t, err, fs.ErrNotExist)
		_, err = d.OpenBackup("../manifest")
		require.ErrorIs(t, err, fs.ErrNotExist)
	})
	t.Run("maxSize counts snapshots and backups", func(t *testing.T) {
		d, _ := begin(t)
		o := anySnapshots
		o.MaxBytes = 1000
		var all []string
		for i := range 4 { // sequence: each displaces the one before
			all = append(all, syncs(t, d, content(i), 400, o))
		}
		assert.Equal(t, all[2:], backedUp(t, d), "the oldest backups are removed")
		assert.Len(t, ids(t, d), 3, "small snapshots are kept")
		o.MaxBytes = 402
		all = append(all, syncs(t, d, content(4), 400, o))
		assert.Equal(t, all[4:], backedUp(t, d), "the newest backup is kept")
		assert.Len(t, ids(t, d), 2)
	})
	t.Run("too large", func(t *testing.T) {
		d, root := begin(t)
		apply(t, d, content(1))
		err := backUp(d, "site-20260101-000000", 101, 100)
		require.True(t, failure.Is(err, v1alpha1.ReasonLimitExceeded), "%v", err)
		left, err := os.ReadDir(filepath.Join(root, ".stoker", snapshot.BackupsDir))
		require.NoError(t, err)
		assert.Empty(t, left)
		require.NoError(t, backUp(d, "site-20260101-000000", 100, 100))
	})
	t.Run("interrupted", func(t *testing.T) {
		d, root := begin(t)
		apply(t, d, content(1))
		cut := errors.New("the gateway hung up")
		err := d.SaveBackup("site-20260101-000000", 1000, func(w io.Writer) error {
			_, err := w.Write([]byte("PK"))
			return errors.Join(err, cut)
		})
		require.ErrorIs(t, err, cut)
		left, err := os.ReadDir(filepath.Join(root, ".stoker", snapshot.BackupsDir))
		require.NoError(t, err)
		assert.Empty(t, left)
	})
	t.Run("foreign files", func(t *testing.T) {
		d, root := begin(t)
		apply(t, d, content(1))
		folder := filepath.Join(root, ".stoker", snapshot.BackupsDir)
		outside := filepath.Join(t.TempDir(), "outside")
		require.NoError(t, os.WriteFile(outside, []byte("a user's"), 0o600))
		require.NoError(t, os.Symlink(filepath.Dir(outside), folder))
		id := syncs(t, d, content(2), 10, anySnapshots)
		assert.Equal(t, []string{id}, backedUp(t, d), "the agent sets a link aside and does not follow it")
		require.NoError(t, os.Symlink(outside, filepath.Join(folder, "site-20200101-000000.gwbk")))
		require.NoError(t, os.WriteFile(filepath.Join(folder, "notes.gwbk"), nil, 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(folder, "site-20200101-000001.gwbk.new"), nil, 0o600))
		other := syncs(t, d, content(3), 10, Snapshots{Gateway: "site", Keep: 1, MaxBytes: 1000})
		assert.Equal(t, []string{other}, backedUp(t, d))
		b, err := os.ReadFile(outside)
		require.NoError(t, err)
		assert.Equal(t, "a user's", string(b))
		assert.FileExists(t, filepath.Join(folder, "notes.gwbk"))
		assert.NoFileExists(t, filepath.Join(folder, "site-20200101-000001.gwbk.new"), "the rest of a crash is removed")
	})
	t.Run("the next id follows the newest backup", func(t *testing.T) {
		d, _ := begin(t)
		apply(t, d, content(1))
		require.NoError(t, backUp(d, "site-20261121-000000", 10, 1000))
		id, err := d.snapshots.NextID("site")
		require.NoError(t, err)
		assert.Equal(t, "site-20261121-000001", id)
	})
	t.Run("removed", func(t *testing.T) {
		d, root := begin(t)
		require.NoError(t, d.DropBackups(), "no backups to remove")
		require.NoError(t, d.DropBackup("site-20260101-000000"))
		apply(t, d, content(1))
		require.NoError(t, backUp(d, "site-20260101-000000", 10, 1000))
		require.NoError(t, backUp(d, "site-20260101-000001", 10, 1000))
		require.NoError(t, d.DropBackup("site-20260101-000000"))
		assert.Equal(t, []string{"site-20260101-000001"}, backedUp(t, d))
		require.NoError(t, d.DropBackups())
		assert.NoDirExists(t, filepath.Join(root, ".stoker", snapshot.BackupsDir))
	})
}

// F13, F14, F25: a crash or a full disk at any step leaves a whole backup or none, and no part of one for long.
func TestCrashDuringBackup(t *testing.T) {
	const id, size = "site-20260101-000000", 100
	begin := func(t *testing.T) (string, *powerCut) {
		root := seededIn(t, memory(t))
		d := open(t, root, Options{})
		apply(t, d, tree{"projects/p/view.json": file{content: "1"}})
		require.NoError(t, d.Close())
		return root, newPowerCut(t, root)
	}
	check := func(t *testing.T, root string, saved error) {
		d := open(t, root, Options{})
		list, err := d.Backups()
		require.NoError(t, err)
		if n, ok := list[id]; ok || saved == nil {
			assert.Equal(t, int64(size), n)
		}
		require.NoError(t, backUp(d, "site-20260101-000001", size, 1000))
		left, err := filepath.Glob(filepath.Join(root, ".stoker", snapshot.BackupsDir, "*.new"))
		require.NoError(t, err)
		assert.Empty(t, left)
	}
	for step, done := 1, false; !done; step++ {
		t.Run("power cut "+strconv.Itoa(step), func(t *testing.T) {
			root, c := begin(t)
			c.stop, c.strict = step, step%2 == 0
			d, err := Open(root, Options{Around: c.around})
			if err == nil {
				err = backUp(d, id, size, 1000)
				require.NoError(t, d.Close())
			}
			done = !c.dead
			c.cut()
			check(t, root, err)
		})
		t.Run("full disk "+strconv.Itoa(step), func(t *testing.T) {
			root, c := begin(t)
			c.fail, c.err = step, syscall.ENOSPC
			d, err := Open(root, Options{Around: c.around})
			if err == nil {
				err = backUp(d, id, size, 1000)
				require.NoError(t, d.Close())
			}
			if err != nil {
				assert.True(t, failure.Is(err, v1alpha1.ReasonNoSpace), "%v", err)
			}
			check(t, root, err)
		})
	}
}

func TestDiffs(t *testing.T) {
	noon := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	t.Run("ten diffs are kept", func(t *testing.T) {
		root := seeded(t)
		d := open(t, root, Options{})
		var ids []string
		for i := range 12 {
			id, err := d.AddDiff("area-4", noon, fmt.Append(nil, i))
			require.NoError(t, err)
			ids = append(ids, id)
		}
		assert.Equal(t, "area-4-diff-20261124-120000.json", ids[0])
		assert.Equal(t, "area-4-diff-20261124-120011.json", ids[11], "each name is a second later, although the clock stands still")
		for i, id := range ids {
			b, err := ReadDiff(root, id)
			require.NoError(t, err)
			if i < 2 {
				assert.Nil(t, b, id)
			} else {
				assert.Equal(t, fmt.Sprint(i), string(b))
			}
		}
	})
	t.Run("names and sizes", func(t *testing.T) {
		root := seeded(t)
		d := open(t, root, Options{})
		put(t, root, ".stoker/history/notes.txt", "a user's")
		put(t, root, ".stoker/history/a-diff-20261124-120000.json.new", "half")
		long, err := d.AddDiff(strings.Repeat("a", 253), noon, []byte("x")) // the longest name of a pod
		require.NoError(t, err)
		b, err := ReadDiff(root, long)
		require.NoError(t, err)
		assert.Equal(t, "x", string(b))
		assert.NoFileExists(t, filepath.Join(root, ".stoker/history/a-diff-20261124-120000.json.new"))
		assert.FileExists(t, filepath.Join(root, ".stoker/history/notes.txt"))
		_, err = d.AddDiff("../x", noon, nil)
		assert.Error(t, err)
		_, err = d.AddDiff("x", noon, make([]byte, MaxDiff+1))
		assert.Error(t, err)
		for _, id := range []string{"", "../manifest", "a-diff-20261124-120000.json", "a/../b-diff-20261124-120000.json", "notes.txt"} {
			b, err := ReadDiff(root, id)
			assert.NoError(t, err, id)
			assert.Nil(t, b, id)
		}
	})
	for name, stamp := range map[string]string{"an impossible date": "99999999-999999", "the last date": "99991231-235959"} {
		t.Run("a name with "+name, func(t *testing.T) {
			root := seeded(t)
			d := open(t, root, Options{})
			put(t, root, ".stoker/history/x-diff-"+stamp+".json", "the gateway's")
			one, err := d.AddDiff("a", noon, []byte("1"))
			require.NoError(t, err)
			two, err := d.AddDiff("a", noon, []byte("2"))
			require.NoError(t, err)
			assert.NotEqual(t, one, two)
		})
	}
	t.Run("a link instead of the directory", func(t *testing.T) {
		root := seeded(t)
		d := open(t, root, Options{})
		require.NoError(t, os.Symlink("../projects", filepath.Join(root, ".stoker/history")))
		id, err := d.AddDiff("a", noon, []byte("x"))
		require.NoError(t, err)
		assert.NoFileExists(t, filepath.Join(root, "projects", id))
		b, err := ReadDiff(root, id)
		require.NoError(t, err)
		assert.Equal(t, "x", string(b))
	})
}

func TestAudit(t *testing.T) {
	read := func(t *testing.T, root string) string {
		b, err := ReadAudit(root)
		require.NoError(t, err)
		return string(b)
	}
	t.Run("a restart keeps the lines", func(t *testing.T) {
		root := seeded(t)
		assert.Empty(t, read(t, root))
		d, err := Open(root, Options{})
		require.NoError(t, err)
		require.NoError(t, d.AddAudit([]byte(`{"a":1}`)))
		require.NoError(t, d.Close())
		require.NoError(t, open(t, root, Options{}).AddAudit([]byte(`{"a":2}`)))
		assert.Equal(t, "{\"a\":1}\n{\"a\":2}\n", read(t, root))
	})
	t.Run("the oldest lines are dropped", func(t *testing.T) {
		root := seeded(t)
		d := open(t, root, Options{})
		pad := strings.Repeat("x", 8000)
		for i := range 140 {
			require.NoError(t, d.AddAudit(fmt.Appendf(nil, "%d %s", i, pad)))
		}
		got := read(t, root)
		assert.LessOrEqual(t, len(got), records.MaxAudit)
		lines := strings.Split(strings.TrimSpace(got), "\n")
		assert.Greater(t, len(got), records.MaxAudit-10_000)
		assert.True(t, strings.HasPrefix(lines[0], fmt.Sprint(140-len(lines), " ")), "the record starts with a complete line")
		assert.True(t, strings.HasPrefix(lines[len(lines)-1], "139 "))
	})
	t.Run("a line that is too long, two lines", func(t *testing.T) {
		d := open(t, seeded(t), Options{})
		assert.Error(t, d.AddAudit(make([]byte, records.MaxAuditLine+1)))
		assert.Error(t, d.AddAudit([]byte("a\nb")))
	})
	t.Run("a record without a final newline", func(t *testing.T) {
		root := seeded(t)
		d := open(t, root, Options{})
		put(t, root, ".stoker/audit.jsonl", `{"a":`)
		require.NoError(t, d.AddAudit([]byte("b")))
		assert.Equal(t, "{\"a\":\nb\n", read(t, root))
	})
	t.Run("a link instead of .stoker", func(t *testing.T) {
		root := seeded(t)
		put(t, root, "elsewhere/audit.jsonl", "a user's")
		require.NoError(t, os.Symlink("elsewhere", filepath.Join(root, ".stoker")))
		_, err := ReadAudit(root)
		assert.Error(t, err)
	})
	// F21: the gateway's programs write below the data directory.
	for name, place := range map[string]func(t *testing.T, name string){
		"link":      func(t *testing.T, name string) { require.NoError(t, os.Symlink("../ignition.conf", name)) },
		"directory": func(t *testing.T, name string) { require.NoError(t, os.MkdirAll(filepath.Join(name, "x"), 0o700)) },
		"too large": func(t *testing.T, name string) {
			require.NoError(t, os.WriteFile(name, make([]byte, records.MaxAudit+1), 0o600))
		},
	} {
		t.Run("set aside/"+name, func(t *testing.T) {
			root := seeded(t)
			d := open(t, root, Options{})
			place(t, filepath.Join(root, ".stoker/audit.jsonl"))
			if b, err := ReadAudit(root); name == "too large" {
				assert.Len(t, b, records.MaxAudit)
			} else {
				assert.Error(t, err)
			}
			require.NoError(t, d.AddAudit([]byte("b")))
			assert.Equal(t, "b\n", read(t, root))
			b, err := os.ReadFile(filepath.Join(root, "ignition.conf"))
			require.NoError(t, err)
			assert.Equal(t, "wrapper", string(b))
		})
	}
}

// A node without a battery-backed clock shows an old time until it is synchronized. Snapshots and backups from before that must be kept.
func TestSnapshotsWithLateClock(t *testing.T) {
	one, two := text(map[string]string{"projects/p/a": "a1"}), text(map[string]string{"projects/p/a": "a2"})
	now, root := time.Now(), seeded(t)
	clock := Options{Now: func() time.Time { return now }}
	d := open(t, root, clock)
	syncTo(t, d, one, anySnapshots)
	before := readTree(t, root)
	syncTo(t, d, two, anySnapshots)
	genuine := ids(t, d)
	require.Len(t, genuine, 1)
	put(t, root, ".stoker/backups/"+genuine[0]+".gwbk", "x")
	require.NoError(t, d.Close())
	now = now.Add(-6 * 365 * day)
	d = open(t, root, clock)
	assert.Equal(t, genuine, ids(t, d))
	assert.Len(t, backedUp(t, d), 1)
	syncTo(t, d, one, anySnapshots)
	list := ids(t, d)
	require.Len(t, list, 2)
	assert.Equal(t, genuine[0], list[0], "the id of the new one sorts behind")
	fi, err := os.Stat(filepath.Join(root, safe.OwnDir, snapshot.DirName, list[1]))
	require.NoError(t, err)
	assert.Equal(t, syntax.SnapshotTime(list[1]), fi.ModTime().UTC(), "so that its date does not count as the future when the older ones are gone")
	_, err = takeBack(t, d, genuine[0], nil)
	require.NoError(t, err)
	assert.Equal(t, before, readTree(t, root))
}
