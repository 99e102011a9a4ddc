package simulator

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// trees opens a folder of real Ignition trees, which are not part of the project.
func trees(t *testing.T, name string) *os.Root {
	t.Helper()
	dir := os.Getenv("STOKER_TREES")
	if dir == "" {
		t.Skip("STOKER_TREES names no folder of real Ignition trees (coffee-lab, flintium): skipped")
	}
	root, err := os.OpenRoot(filepath.Join(dir, name))
	if err != nil {
		t.Skipf("STOKER_TREES has no %s: skipped (%v)", name, err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return root
}

func TestSignatureOf83MatchesRealGateway(t *testing.T) {
	root := trees(t, "coffee-lab")
	signed, matched, stable := 0, 0, 0
	require.NoError(t, fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != resourceFile {
			return err
		}
		r, err := loadResource(root, path.Dir(name), resourceFile, name)
		require.NoError(t, err, name)
		raw, err := readFile(root, name)
		require.NoError(t, err)
		if assert.Equal(t, string(raw), string(pretty(r.ordered())), name) {
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
