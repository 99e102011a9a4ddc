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

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk/snapshot"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// backUp saves a backup of some bytes.
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
	// syncs carries out a sync with a backup of some bytes, and returns its id.
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
	t.Run("cut", func(t *testing.T) {
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
