package offline

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
)

// A folder is read like a commit, without what a link points to.
func TestFolder(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	require.NoError(t, os.WriteFile(outside, []byte("S3CR3T"), 0o600))
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "projects", "a"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "projects", "a", "project.json"), []byte("{}"), 0o644))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "link")))
	f, err := OpenFolder(dir)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()

	modes, ids := map[string]plan.Mode{}, map[string]plan.ID{}
	var list func(prefix string, id plan.ID)
	list = func(prefix string, id plan.ID) {
		entries, err := f.Tree(id)
		require.NoError(t, err)
		for _, e := range entries {
			modes[prefix+e.Name], ids[prefix+e.Name] = e.Mode, e.ID
			if e.Mode == plan.Directory {
				list(prefix+e.Name+"/", e.ID)
			}
		}
	}
	list("", f.Root())
	assert.Equal(t, map[string]plan.Mode{"projects": plan.Directory, "projects/a": plan.Directory, "projects/a/project.json": plan.Regular, "link": plan.Symlink}, modes)
	var b bytes.Buffer
	_, err = f.WriteBlob(&b, ids["projects/a/project.json"])
	require.NoError(t, err)
	assert.Equal(t, "{}", b.String())
	_, err = f.WriteBlob(&b, ids["link"])
	require.Error(t, err)
	assert.NotContains(t, b.String(), "S3CR3T")
	assert.False(t, f.Has(plan.ID{1}))
	_, err = f.Tree(plan.ID{1})
	require.Error(t, err)
}
