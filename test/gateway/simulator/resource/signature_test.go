package resource

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
		if err != nil || d.Name() != File {
			return err
		}
		r, err := Load(root, path.Dir(name), File, name)
		require.NoError(t, err, name)
		raw, err := datadir.Read(root, name)
		require.NoError(t, err)
		if assert.Equal(t, string(raw), string(ordered.Pretty(r.Ordered())), name) {
			stable++
		}
		if r.StoredSignature() == "" {
			return nil
		}
		signed++
		got, err := r.Signature()
		require.NoError(t, err, name)
		if got == r.StoredSignature() {
			matched++
		} else {
			t.Logf("no match: %s", name)
		}
		return nil
	}))
	// Of the 426 resources in this tree, 7 were never signed, and the signature of one does not match.
	assert.Equal(t, 419, signed)
	assert.Equal(t, 418, matched)
	assert.Equal(t, 426, stable)
}

// Before 8.3, gateways sign the content itself, not its digest.
func TestSignatureOf81MatchesRealGateway(t *testing.T) {
	root := open(t, trees.Project81(t))
	read, problems := LoadTree(root, ".", nil)
	require.Empty(t, problems)
	require.Empty(t, read.ReadRaw(root))
	signed, matched := 0, 0
	for _, r := range read.Resources {
		if r.StoredSignature() == "" {
			continue
		}
		signed++
		got, err := r.Signature()
		require.NoError(t, err, r.Path)
		if got == r.StoredSignature() {
			matched++
		}
	}
	assert.Equal(t, 295, signed)
	assert.Equal(t, 295, matched)
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
			_, _ = (&Resource{Doc: doc}).Signature()
		}
	})
}
