package build

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestUnusedBuilds(t *testing.T) {
	c, err := Open(Cache{Dir: t.TempDir(), SourceDir: t.TempDir()})
	require.NoError(t, err)
	long := time.Now().Add(-2 * unusedFor)
	add := func(name string, used time.Time) {
		dir := filepath.Join(c.Dir, "bin", name)
		require.NoError(t, os.Mkdir(dir, 0o755))
		require.NoError(t, os.Chtimes(dir, used, used))
	}
	add("kubernetes-v1.0.0-x", long)
	add("kubernetes-v1.0.0-x.lock", long)
	add("kubernetes-v1.1.0-x", time.Now())
	add("coredns-x", long)
	_, err = c.buildOnce(t.Context(), "kubernetes-v1.2.0", "x", func(string) error { return nil })
	require.NoError(t, err)
	entries, err := os.ReadDir(filepath.Join(c.Dir, "bin"))
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	assert.Equal(t, []string{"coredns-x", "kubernetes-v1.0.0-x.lock", "kubernetes-v1.1.0-x", "kubernetes-v1.2.0-x", "kubernetes-v1.2.0-x.lock"}, names)
}
