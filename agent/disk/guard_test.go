package disk

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk/lock"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

// F14: if the data directory was moved or replaced, the agent stops writing to it. After it is opened again, syncs continue.
func TestReplacedDataDirectory(t *testing.T) {
	one, two := text(map[string]string{"projects/a": "1"}), text(map[string]string{"projects/a": "2"})
	for name, move := range map[string]func(t *testing.T, root string){
		"another directory": func(t *testing.T, root string) {
			require.NoError(t, os.Rename(root, root+".broken"))
			seededIn(t, root)
			put(t, root, "projects/a", "1")
		},
		"no own folder": func(t *testing.T, root string) {
			require.NoError(t, os.RemoveAll(filepath.Join(root, safe.OwnDir)))
		},
		"another own folder": func(t *testing.T, root string) {
			require.NoError(t, os.Rename(filepath.Join(root, safe.OwnDir), filepath.Join(root, "old")))
			require.NoError(t, os.Mkdir(filepath.Join(root, safe.OwnDir), 0o700))
		},
		"another lock": func(t *testing.T, root string) {
			lock := filepath.Join(root, safe.OwnDir, lock.FileName)
			require.NoError(t, os.Remove(lock))
			require.NoError(t, os.WriteFile(lock, nil, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "data")
			d := open(t, seededIn(t, root), Options{})
			apply(t, d, one)
			require.NoError(t, d.CheckOpen())
			plan := planFor(t, d, two)
			staged, err := d.Stage(t.Context(), plan, nil, two.source())
			require.NoError(t, err)

			move(t, root)
			require.ErrorIs(t, d.CheckOpen(), ErrMoved)
			res, err := staged.Apply(t.Context(), head(two))
			require.ErrorIs(t, err, ErrMoved)
			assert.False(t, res.Applied)
			_, err = d.Stage(t.Context(), plan, nil, two.source())
			require.ErrorIs(t, err, ErrMoved)
			_, err = d.Drift(t.Context(), false)
			require.ErrorIs(t, err, ErrMoved)
			require.ErrorIs(t, d.SetNote("x", []byte("x")), ErrMoved)
			assert.Equal(t, "1", contents(t, root)["projects/a"])

			require.NoError(t, d.Close())
			d = open(t, root, Options{})
			require.NoError(t, d.CheckOpen())
			apply(t, d, two)
			assert.Equal(t, "2", contents(t, root)["projects/a"])
			assertNoLeftovers(t, root)
		})
	}
}

// A copy over the files of .stoker keeps every inode, but the manifest may now be older, damaged or missing. The agent must neither
// plan with a stale manifest nor overwrite the one on disk.
func TestOverwrittenManifest(t *testing.T) {
	one, two, three := text(map[string]string{"projects/a": "1"}), text(map[string]string{"projects/a": "2"}), text(map[string]string{"projects/a": "3"})
	for name, c := range map[string]struct {
		over func(t *testing.T, path string, older []byte)
		late bool // detected only by reading it
		want plan.ID
	}{
		"older manifest": {over: func(t *testing.T, path string, older []byte) {
			require.NoError(t, os.WriteFile(path, older, 0o600))
			require.NoError(t, os.Chtimes(path, testTime, testTime))
		}, want: one.id()},
		"truncated manifest": {over: func(t *testing.T, path string, _ []byte) { require.NoError(t, os.Truncate(path, 40)) }},
		"no manifest":        {over: func(t *testing.T, path string, _ []byte) { require.NoError(t, os.Remove(path)) }},
		"damaged block": {over: func(t *testing.T, path string, _ []byte) {
			fi, err := os.Stat(path)
			require.NoError(t, err)
			b, err := os.ReadFile(path)
			require.NoError(t, err)
			b[20] ^= 1
			require.NoError(t, os.WriteFile(path, b, 0o600))
			require.NoError(t, os.Chtimes(path, fi.ModTime(), fi.ModTime()))
		}, late: true},
	} {
		t.Run(name, func(t *testing.T) {
			root := seeded(t)
			path := filepath.Join(root, safe.OwnDir, manifestFile)
			d := open(t, root, Options{})
			require.NoError(t, d.CheckOpen(), "no manifest exists, and none was read")
			apply(t, d, one)
			older, err := os.ReadFile(path)
			require.NoError(t, err)
			apply(t, d, two)
			require.NoError(t, d.CheckOpen(), "the agent wrote the manifest itself")
			changes := planFor(t, d, three)
			staged, err := d.Stage(t.Context(), changes, nil, three.source())
			require.NoError(t, err)

			c.over(t, path, older)
			_, err = d.Drift(t.Context(), false)
			if c.late {
				require.ErrorIs(t, err, safe.ErrDamaged)
			}
			require.ErrorIs(t, d.CheckOpen(), ErrMoved)
			_, err = d.Drift(t.Context(), false)
			require.ErrorIs(t, err, ErrMoved)
			res, err := staged.Apply(t.Context(), head(three))
			require.ErrorIs(t, err, ErrMoved)
			assert.False(t, res.Applied)
			_, err = d.Stage(t.Context(), changes, nil, three.source())
			require.ErrorIs(t, err, ErrMoved)
			assert.Equal(t, "2", contents(t, root)["projects/a"])

			require.NoError(t, d.Close())
			d = open(t, root, Options{})
			require.NoError(t, d.CheckOpen())
			assert.Equal(t, c.want, d.Manifest().Header().Commit)
			apply(t, d, three)
			assert.Equal(t, "3", contents(t, root)["projects/a"])
		})
	}
}

func TestNewManifestIsReadFirst(t *testing.T) {
	from, root := seeded(t), seeded(t)
	one := text(map[string]string{"projects/a": "1"})
	apply(t, open(t, from, Options{}), one)
	d := open(t, root, Options{})
	b, err := os.ReadFile(filepath.Join(from, safe.OwnDir, manifestFile))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(root, safe.OwnDir, manifestFile), b, 0o600))
	_, err = tryApply(t, d, one)
	require.ErrorIs(t, err, ErrMoved)
	require.ErrorContains(t, err, "manifest was created by another program")

	looking, err := Open(root, Options{ReadOnly: true})
	require.NoError(t, err)
	require.NoError(t, os.Remove(filepath.Join(root, safe.OwnDir, manifestFile)))
	assert.NoError(t, looking.CheckOpen(), "a read-only Dir keeps the manifest that it opened")
	require.NoError(t, looking.Close())
}

func TestDeletedDataDirectory(t *testing.T) {
	root := filepath.Join(t.TempDir(), "data")
	d := open(t, seededIn(t, root), Options{ReadOnly: true})
	require.NoError(t, d.CheckOpen())
	require.NoError(t, os.Rename(root, root+".broken"))
	require.ErrorIs(t, d.CheckOpen(), ErrMoved)
}
