package simulator

import (
	"io/fs"
	"os"
	"path"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/gateway/simulator/datadir"
	"stoker.io/stoker/test/gateway/simulator/resource"
	"stoker.io/stoker/test/trees"
)

// open opens a real Ignition tree, which is not part of the project.
func open(t *testing.T, dir string) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	t.Cleanup(func() { _ = root.Close() })
	return root
}

func copyTree(t *testing.T, from *os.Root, dir string) {
	t.Helper()
	to, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer func() { assert.NoError(t, to.Close()) }()
	require.NoError(t, fs.WalkDir(from.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		raw, err := datadir.Read(from, name)
		require.NoError(t, err)
		return datadir.Write(to, name, raw)
	}))
}

// The write-back must not change the tree of a real gateway, because the simulator accepts its signatures.
func TestRealTree(t *testing.T) {
	root := open(t, trees.Gateway83(t))
	dir := t.TempDir()
	copyTree(t, root, dir)
	g, err := Start(Options{Data: dir, Mode: "dev", Seeding: SeedNone, Unknowns: Unknowns{SignConfig: true}})
	require.NoError(t, err)
	defer func() { require.NoError(t, g.Close()) }()
	state, reason := g.State()
	require.Equal(t, Running, state, reason)
	assert.Empty(t, g.Data.LoadErrors())
	changed := 0
	require.NoError(t, fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		want, err := datadir.Read(root, name)
		require.NoError(t, err)
		got, err := datadir.Read(g.root, name)
		require.NoError(t, err)
		if string(got) != string(want) {
			changed++
			assert.Equal(t, resource.File, path.Base(name), name)
		}
		return nil
	}))
	// One signature that does not match, and seven resources that were never signed.
	assert.Equal(t, 8, changed)
}
