package simulator

import (
	"encoding/json"
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/test/gateway/simulator/datadir"
	"stoker.io/stoker/test/gateway/simulator/ordered"
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

func TestSignatureOf83MatchesRealGateway(t *testing.T) {
	root := open(t, trees.Repository83(t))
	signed, matched, stable := 0, 0, 0
	require.NoError(t, fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != resourceFile {
			return err
		}
		r, err := loadResource(root, path.Dir(name), resourceFile, name)
		require.NoError(t, err, name)
		raw, err := datadir.Read(root, name)
		require.NoError(t, err)
		if assert.Equal(t, string(raw), string(ordered.Pretty(r.ordered())), name) {
			stable++
		}
		if r.storedSignature() == "" {
			return nil
		}
		signed++
		got, err := r.signature()
		require.NoError(t, err, name)
		if got == r.storedSignature() {
			matched++
		} else {
			t.Logf("no match: %s", name)
		}
		return nil
	}))
	assert.Equal(t, 419, signed)
	assert.Equal(t, 418, matched)
	assert.Equal(t, 426, stable)
}

// Before 8.3, gateways sign the content itself, not its digest.
func TestSignatureOf81MatchesRealGateway(t *testing.T) {
	root := open(t, trees.Project81(t))
	read, problems := loadTree(root, ".", nil)
	require.Empty(t, problems)
	require.Empty(t, read.readRaw(root))
	signed, matched := 0, 0
	for _, r := range read.resources {
		if r.storedSignature() == "" {
			continue
		}
		signed++
		got, err := r.signature()
		require.NoError(t, err, r.path)
		if got == r.storedSignature() {
			matched++
		}
	}
	assert.Equal(t, 295, signed)
	assert.Equal(t, 295, matched)
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
	assert.Empty(t, g.LoadErrors())
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
			assert.Equal(t, resourceFile, path.Base(name), name)
		}
		return nil
	}))
	// One signature that does not match, and seven resources that were never signed.
	assert.Equal(t, 8, changed)
}

// FuzzResourceJSON checks that the gateway's writer turns any JSON into JSON, and that writing it again
// does not change it.
func FuzzResourceJSON(f *testing.F) {
	for _, seed := range []string{
		`{"scope":"A","version":1,"files":["a"],"attributes":{"x":1e5}}`, `[[],{},null,true,-0.0]`, `"\u2028<>&='\ud800\t"`,
		`{"a":1,"a":2}`, `{`, "\xff", strings.Repeat("[", 300) + strings.Repeat("]", 300),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		v, err := ordered.Parse(raw)
		if err != nil {
			return
		}
		once := ordered.Pretty(v)
		again, err := ordered.Parse(once)
		require.NoError(t, err)
		assert.Equal(t, string(once), string(ordered.Pretty(again)))
		assert.True(t, json.Valid(ordered.Compact(v)))
		assert.NotContains(t, string(once), "<")
		if doc, ok := v.(ordered.Object); ok {
			_, _ = (&resource{doc: doc}).signature()
		}
	})
}
