package disk

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/disk/snapshot"
	"stoker.io/stoker/agent/plan"
)

// F20: a restore that takes no snapshot keeps the restored one and older ones, and these can still be restored.
func TestRestoreWithoutSnapshot(t *testing.T) {
	version := func(i int) tree {
		return text(map[string]string{"projects/p/a": fmt.Sprint("a", i), fmt.Sprint("projects/p/only", i): "x", "projects/p/b": fmt.Sprint("b", i/3)})
	}
	// begin syncs to versions 0 to 4. The snapshot with index i brings back version i.
	begin := func(t *testing.T) (root string, names []string) {
		root = seeded(t)
		d := open(t, root, Options{Now: fixed})
		for i := range 5 { // setup: the versions
			syncTo(t, d, version(i), anySnapshots)
		}
		names = ids(t, d)
		require.Len(t, names, 4)
		require.NoError(t, d.Close())
		return root, names
	}
	is := func(t *testing.T, root string, i int) {
		t.Helper()
		want := contents(t, seeded(t))
		for p, f := range version(i) {
			want[p] = f.content
		}
		assert.Empty(t, cmp.Diff(want, contents(t, root)))
	}
	// usable checks that the snapshots up to the index 1 are left, and can be restored after more syncs.
	usable := func(t *testing.T, root string, d *Dir, names []string) {
		t.Helper()
		is(t, root, 1)
		assert.Equal(t, version(1).id(), d.Manifest().Header().Commit)
		assert.Equal(t, names[:2], ids(t, d))
		for _, back := range []int{1, 0} { // sequence: on one volume
			syncTo(t, d, version(3), anySnapshots)
			_, err := takeBack(t, d, names[back], nil)
			require.NoError(t, err)
			is(t, root, back)
			assert.Empty(t, planFor(t, d, version(back)).List)
		}
	}
	t.Run("snapshots are switched off", func(t *testing.T) {
		root, names := begin(t)
		d := open(t, root, Options{Now: fixed})
		_, err := takeBackWith(t, d, names[1], nil, Snapshots{})
		require.NoError(t, err)
		usable(t, root, d, names)
	})
	t.Run("the manifest is lost", func(t *testing.T) {
		root, names := begin(t)
		put(t, root, manifestPath, "damaged")
		d := open(t, root, Options{Now: fixed})
		_, err := takeBack(t, d, names[1], nil)
		require.NoError(t, err)
		for rec, err := range d.Manifest().All("") {
			require.NoError(t, err)
			assert.Contains(t, version(1), rec.Path)
		}
		usable(t, root, d, names)
	})
	t.Run("the manifest is lost, and a user edited files", func(t *testing.T) {
		root, names := begin(t)
		put(t, root, manifestPath, "damaged")
		put(t, root, "projects/p/only4", "mine")
		put(t, root, "projects/p/b", "mine, too")
		d := open(t, root, Options{Now: fixed})
		res, err := takeBack(t, d, names[1], nil)
		require.NoError(t, err)
		assert.Equal(t, "mine", contents(t, root)["projects/p/only4"], "it may be the user's own file")
		require.Len(t, res.Saved, 1)
		assert.Equal(t, "projects/p/b", res.Saved[0].Path)
	})
	t.Run("the manifest is lost, and a restore brought back an edit", func(t *testing.T) {
		root, names := begin(t)
		d := open(t, root, Options{Now: fixed})
		put(t, root, "projects/p/only4", "mine")
		syncTo(t, d, version(5), anySnapshots) // deletes it
		_, err := takeBack(t, d, ids(t, d)[4], nil)
		require.NoError(t, err)
		require.NoError(t, d.Close())
		put(t, root, manifestPath, "damaged")
		d = open(t, root, Options{Now: fixed})
		_, err = takeBack(t, d, names[1], nil)
		require.NoError(t, err)
		assert.Equal(t, "mine", contents(t, root)["projects/p/only4"])
	})
	t.Run("a write by the gateway between a crash and the recovery", func(t *testing.T) {
		root, names := begin(t)
		d, err := Open(root, Options{Now: fixed, Around: dies(step("rename", manifestPath))})
		require.NoError(t, err)
		_, err = takeBack(t, d, names[1], nil)
		require.ErrorIs(t, err, errCut)
		require.NoError(t, d.Close())
		put(t, root, "projects/p/b", "of the gateway")
		d = open(t, root, Options{Now: fixed})
		assert.Equal(t, version(1).id(), d.Manifest().Header().Commit)
		assert.False(t, d.Manifest().Header().Complete)
		assert.Equal(t, "of the gateway", contents(t, root)["projects/p/b"])
		put(t, root, "projects/p/b", "b0")
		_, err = takeBack(t, d, names[1], nil)
		require.NoError(t, err)
		assert.False(t, d.Manifest().Header().Complete, "restoring it again moves nothing")
		usable(t, root, d, names)
	})
	t.Run("a failure keeps all", func(t *testing.T) {
		root, names := begin(t)
		d := open(t, root, Options{Now: fixed, Around: func(e safe.Effect, do func() error) error {
			if e.Op == "rename" && e.Dest == safe.OwnDir+"/"+manifestFile {
				return errCut
			}
			return do()
		}})
		// sequence: both on one volume
		for _, restores := range []bool{true, false} {
			var err error
			if restores {
				_, err = takeBackWith(t, d, names[1], nil, Snapshots{})
			} else {
				_, err = tryApply(t, d, version(0))
			}
			require.ErrorIs(t, err, errCut)
			is(t, root, 4)
			assert.Equal(t, names, ids(t, d))
		}
	})
	// crashAndFail restores names[1] without a snapshot, crashes after it has removed names[2], and then fails to recover.
	crashAndFail := func(t *testing.T, root string, names []string) *Dir {
		t.Helper()
		d, err := Open(root, Options{Now: fixed, Around: dies(func(e safe.Effect) bool {
			return e.Op == "remove" && strings.HasSuffix(e.Path, names[3]+"/"+manifestFile)
		})})
		require.NoError(t, err)
		_, err = takeBackWith(t, d, names[1], nil, Snapshots{})
		require.ErrorIs(t, err, errCut)
		require.NoError(t, d.Close())
		failed := false
		return open(t, root, Options{Now: fixed, Around: func(e safe.Effect, do func() error) error {
			if !failed && e.Op == "rename" && e.Dest == safe.OwnDir+"/"+manifestFile {
				failed = true
				return errCut
			}
			return do()
		}})
	}
	t.Run("a crash while newer ones are removed, and then a failure", func(t *testing.T) {
		root, names := begin(t)
		d := crashAndFail(t, root, names)
		is(t, root, 4)
		assert.Empty(t, ids(t, d), "they have a gap")
	})
	t.Run("a crash while those of repairs are removed, and then a failure", func(t *testing.T) {
		root := seeded(t)
		d := open(t, root, Options{Now: fixed})
		syncTo(t, d, version(4), anySnapshots)
		for i := range 4 { // setup: the edits of users
			put(t, root, "projects/p/b", fmt.Sprint("edit ", i))
			syncTo(t, d, version(4), anySnapshots)
		}
		names := ids(t, d)
		require.NoError(t, d.Close())
		d = crashAndFail(t, root, names)
		is(t, root, 4)
		assert.Empty(t, ids(t, d), "they have a gap")
		assert.False(t, d.Manifest().Header().Complete)
	})
	t.Run("a reader notices it", func(t *testing.T) {
		root, names := begin(t)
		d := open(t, root, Options{Now: fixed})
		c, err := d.Contents(names[0], nil)
		require.NoError(t, err)
		defer func() { assert.NoError(t, c.Close()) }()
		first := true
		err = c.Each(t.Context(), func(Content, int64, func(io.Writer) error) error {
			if first {
				first = false
				_, err := takeBackWith(t, d, names[3], nil, Snapshots{})
				return err
			}
			return nil
		})
		require.ErrorIs(t, err, ErrChanged)
	})
}

// F14: a sync that lost its manifest stays doubtful if its recovery is interrupted, too.
func TestInterruptedRecoveryWithoutManifest(t *testing.T) {
	one, two := text(map[string]string{"projects/p/a": "1", "projects/p/b": "1"}), text(map[string]string{"projects/p/a": "2", "projects/p/b": "1"})
	root := seeded(t)
	d := open(t, root, Options{Now: fixed})
	for _, want := range []tree{one, two, one} { // setup: two snapshots
		syncTo(t, d, want, anySnapshots)
	}
	require.NoError(t, d.Close())
	d, err := Open(root, Options{Now: fixed, Around: dies(step("rename", manifestPath))})
	require.NoError(t, err)
	_, err = tryApplyWith(t, d, two, anySnapshots)
	require.ErrorIs(t, err, errCut)
	require.NoError(t, d.Close())
	put(t, root, manifestPath, "damaged")
	_, err = Open(root, Options{Now: fixed, Around: dies(func(e safe.Effect) bool { return e.Op == "remove" && strings.Contains(e.Path, snapshot.DirName) })})
	require.ErrorIs(t, err, errCut)

	d = open(t, root, Options{Now: fixed})
	assert.False(t, d.Manifest().Header().Complete, "it has no record of b")
	assert.Empty(t, ids(t, d))
}

// F14: a sync that leaves files out on purpose, as on a standby node, ends with an incomplete manifest. A crash right after that loses nothing.
func TestCrashAfterIncompleteSync(t *testing.T) {
	root := seeded(t)
	d := open(t, root, Options{Now: fixed})
	for _, v := range []string{"1", "2", "3"} { // setup: two snapshots
		syncTo(t, d, tree{"projects/p/a": {content: v}}, anySnapshots)
	}
	require.NoError(t, d.Close())
	d, err := Open(root, Options{Now: fixed, Around: dies(step("remove", journalPath))})
	require.NoError(t, err)
	want := tree{"projects/p/a": {content: "4"}}
	s := staged(t, d, want)
	require.NoError(t, s.Snapshot(anySnapshots))
	incomplete := head(want)
	incomplete.Complete = false
	_, err = s.Apply(t.Context(), incomplete)
	require.ErrorIs(t, err, errCut)
	require.NoError(t, d.Close())
	d = open(t, root, Options{Now: fixed})
	assert.Len(t, ids(t, d), 3)
}

// archived returns the content of each file of a snapshot, by path.
func archived(t *testing.T, d *Dir, id string, git blobMap) map[string]string {
	t.Helper()
	c, err := d.Contents(id, git)
	require.NoError(t, err)
	files := map[string]string{}
	require.NoError(t, c.Each(t.Context(), func(f Content, _ int64, write func(io.Writer) error) error {
		var b strings.Builder
		err := write(&b)
		files[f.Path] = b.String()
		return err
	}))
	require.NoError(t, c.Close())
	return files
}

// A file that only later syncs touched is restored as the manifest of the snapshot records it.
func TestRestoreOfUntouchedFile(t *testing.T) {
	const path = "projects/p/f"
	with := func(a, f string) tree { return text(map[string]string{"projects/p/a": a, path: f}) }
	for name, tt := range map[string]struct {
		user  string   // what a user writes after the snapshot; "" removes the file
		later []string // what later syncs deliver
		git   blobMap
		want  string // "" if there is no file
	}{
		"deleted by a user, and on the gateway again": {later: []string{"f1"}, want: "f1"},
		"deleted by a user, and in a later snapshot":  {later: []string{"f1", "f2"}, want: "f1"},
		"deleted by a user, and in git":               {later: []string{"f2"}, git: blobMap{plan.BlobID([]byte("f1")): "f1"}, want: "f1"},
		"deleted by a user, and lost":                 {later: []string{"f2"}},
		"edited by a user, and on the gateway again":  {user: "mine", later: []string{"f1"}, want: "f1"},
		"edited by a user, and lost":                  {user: "mine", later: []string{"f2"}, want: "mine"},
	} {
		t.Run(name, func(t *testing.T) {
			root := seeded(t)
			d := open(t, root, Options{Now: fixed})
			syncTo(t, d, with("a1", "f1"), anySnapshots)
			syncTo(t, d, with("a2", "f1"), anySnapshots)
			id := ids(t, d)[0]
			if tt.user == "" {
				require.NoError(t, os.Remove(filepath.Join(root, path)))
			} else {
				put(t, root, path, tt.user)
			}
			for _, f := range tt.later { // setup: later syncs
				syncTo(t, d, with("a2", f), anySnapshots)
			}
			assert.Equal(t, tt.want, archived(t, d, id, tt.git)[path])

			b, err := d.PlanRestore(t.Context(), id, tt.git)
			require.NoError(t, err)
			assert.Equal(t, tt.want != "f1", slices.Contains(b.Edited, path))
			b.Close()
			_, err = takeBack(t, d, id, tt.git)
			require.NoError(t, err)
			assert.Equal(t, tt.want, contents(t, root)[path])
			if tt.want == "f1" {
				assert.Empty(t, planFor(t, d, with("a1", "f1")).List)
			}
		})
	}
	deliver := func(f string) func(t *testing.T, root string, d *Dir) {
		return func(t *testing.T, _ string, d *Dir) { syncTo(t, d, with("a2", f), anySnapshots) }
	}
	for name, tt := range map[string]struct {
		kept  string // what the sync of the snapshot leaves; "" if the file is missing
		later func(t *testing.T, root string, d *Dir)
		want  string
	}{
		"missing at the snapshot, and delivered later":           {"", deliver("f1"), ""},
		"missing at the snapshot, and written by the user later": {"", func(t *testing.T, root string, _ *Dir) { put(t, root, path, "mine") }, "mine"},
		"edited at the snapshot, and replaced later":             {"mine", deliver("f2"), "mine"},
		"edited at the snapshot, and edited later":               {"mine", func(t *testing.T, root string, _ *Dir) { put(t, root, path, "later") }, "later"},
		"edited at the snapshot, lost, and replaced later": {"mine", func(t *testing.T, root string, d *Dir) {
			put(t, root, path, "later")
			deliver("f2")(t, root, d)
		}, "later"},
		"edited at the snapshot, replaced, and written again by the user": {"mine", func(t *testing.T, root string, d *Dir) {
			deliver("f2")(t, root, d)
			put(t, root, path, "mine")
		}, "mine"},
	} {
		t.Run(name, func(t *testing.T) {
			root := seeded(t)
			d := open(t, root, Options{Now: fixed})
			syncTo(t, d, with("a1", "f1"), anySnapshots)
			if tt.kept == "" {
				require.NoError(t, os.Remove(filepath.Join(root, path)))
			} else {
				put(t, root, path, tt.kept)
			}
			_, err := tryApplyWith(t, d, with("a2", "f2"), anySnapshots, func(c *plan.Change) {
				if c.Path == path {
					c.Op = plan.Keep // what the user did
				}
			})
			require.NoError(t, err)
			tt.later(t, root, d)
			git := blobMap{plan.BlobID([]byte("f1")): "f1"}
			assert.Equal(t, tt.want, archived(t, d, ids(t, d)[0], git)[path])
			_, err = takeBack(t, d, ids(t, d)[0], git)
			require.NoError(t, err)
			got := contents(t, root)
			assert.Equal(t, "a1", got["projects/p/a"])
			assert.Equal(t, tt.want, got[path])
		})
	}
}
