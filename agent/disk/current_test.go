package disk

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// F14: a directory that is no longer at its path is written no more, whatever was put in its place; opening it again
// goes on there.
func TestDirectoryThatIsNoLongerAtItsPathIsNotWritten(t *testing.T) {
	one, two := text(map[string]string{"projects/a": "1"}), text(map[string]string{"projects/a": "2"})
	for name, move := range map[string]func(t *testing.T, root string){
		"another directory": func(t *testing.T, root string) {
			require.NoError(t, os.Rename(root, root+".broken"))
			seededIn(t, root)
			put(t, root, "projects/a", "1")
		},
		"no own folder": func(t *testing.T, root string) {
			require.NoError(t, os.RemoveAll(filepath.Join(root, ownDir)))
		},
		"another own folder": func(t *testing.T, root string) {
			require.NoError(t, os.Rename(filepath.Join(root, ownDir), filepath.Join(root, "old")))
			require.NoError(t, os.Mkdir(filepath.Join(root, ownDir), 0o700))
		},
		"another lock": func(t *testing.T, root string) {
			lock := filepath.Join(root, ownDir, lockFile)
			require.NoError(t, os.Remove(lock))
			require.NoError(t, os.WriteFile(lock, nil, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "data")
			d := open(t, seededIn(t, root), Options{})
			apply(t, d, one)
			require.NoError(t, d.Current())
			plan := planFor(t, d, two)
			staged, err := d.Stage(t.Context(), plan, nil, two.source())
			require.NoError(t, err)

			move(t, root)
			require.ErrorIs(t, d.Current(), ErrMoved)
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
			require.NoError(t, d.Current())
			apply(t, d, two)
			assert.Equal(t, "2", contents(t, root)["projects/a"])
			assertNoLeftovers(t, root)
		})
	}
}

func TestDirectoryThatIsGoneIsMoved(t *testing.T) {
	root := filepath.Join(t.TempDir(), "data")
	d := open(t, seededIn(t, root), Options{ReadOnly: true})
	require.NoError(t, d.Current())
	require.NoError(t, os.Rename(root, root+".broken"))
	require.ErrorIs(t, d.Current(), ErrMoved)
}
