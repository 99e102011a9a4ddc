package disk

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk/safe"
)

// errDead is the error of a step that fails, and of all steps after a crash.
var errDead = errors.New("dead")

// F20: a restore that takes no snapshot keeps the restored one and older ones, which are as good as before.
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
		put(t, root, safe.OwnDir+"/"+manifestFile, "damaged")
		d := open(t, root, Options{Now: fixed})
		_, err := takeBack(t, d, names[1], nil)
		require.NoError(t, err)
		for rec, err := range d.Manifest().All("") {
			require.NoError(t, err)
			assert.Contains(t, version(1), rec.Path)
		}
		assert.Equal(t, names[:2], ids(t, d))
	})
	t.Run("a write by the gateway between a crash and the recovery", func(t *testing.T) {
		root, names := begin(t)
		dead := false
		d, err := Open(root, Options{Now: fixed, around: func(e safe.Effect, do func() error) error {
			if dead = dead || e.Op == "rename" && e.Dest == safe.OwnDir+"/"+manifestFile; dead {
				return errDead
			}
			return do()
		}})
		require.NoError(t, err)
		_, err = takeBack(t, d, names[1], nil)
		require.ErrorIs(t, err, errDead)
		require.NoError(t, d.Close())
		put(t, root, "projects/p/b", "of the gateway")
		d = open(t, root, Options{Now: fixed})
		assert.Equal(t, version(1).id(), d.Manifest().Header().Commit)
		assert.False(t, d.Manifest().Header().Complete)
		assert.Equal(t, "of the gateway", contents(t, root)["projects/p/b"])
		put(t, root, "projects/p/b", "b0")
		usable(t, root, d, names)
	})
	t.Run("a failure keeps all", func(t *testing.T) {
		root, names := begin(t)
		d := open(t, root, Options{Now: fixed, around: func(e safe.Effect, do func() error) error {
			if e.Op == "rename" && e.Dest == safe.OwnDir+"/"+manifestFile {
				return errDead
			}
			return do()
		}})
		for _, restores := range []bool{true, false} { // sequence: on one volume
			var err error
			if restores {
				_, err = takeBackWith(t, d, names[1], nil, Snapshots{})
			} else {
				_, err = tryApply(t, d, version(0))
			}
			require.ErrorIs(t, err, errDead)
			is(t, root, 4)
			assert.Equal(t, names, ids(t, d))
		}
	})
	t.Run("a crash while newer ones are removed, and then a failure", func(t *testing.T) {
		root, names := begin(t)
		dead := false
		d, err := Open(root, Options{Now: fixed, around: func(e safe.Effect, do func() error) error {
			if dead = dead || e.Op == "remove" && strings.HasSuffix(e.Path, names[3]+"/"+manifestFile); dead {
				return errDead
			}
			return do()
		}})
		require.NoError(t, err)
		_, err = takeBackWith(t, d, names[1], nil, Snapshots{})
		require.ErrorIs(t, err, errDead)
		require.NoError(t, d.Close())
		failed := false
		d = open(t, root, Options{Now: fixed, around: func(e safe.Effect, do func() error) error {
			if !failed && e.Op == "rename" && e.Dest == safe.OwnDir+"/"+manifestFile {
				failed = true
				return errDead
			}
			return do()
		}})
		is(t, root, 4)
		assert.Empty(t, ids(t, d), "they have a gap")
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
