package build

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func cache(t *testing.T) *Cache {
	c, err := Open(Cache{Dir: t.TempDir()})
	require.NoError(t, err)
	return c
}

func TestConcurrentBuildsAreShared(t *testing.T) {
	c := cache(t)
	var made atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			dir, err := c.buildOnce(context.Background(), "x", "key", func(dir string) error {
				made.Add(1)
				time.Sleep(20 * time.Millisecond)
				return os.WriteFile(filepath.Join(dir, "program"), nil, 0o700)
			})
			assert.NoError(t, err)
			assert.FileExists(t, filepath.Join(dir, "program"), "a partial build must not be used")
		})
	}
	all.Wait()
	assert.EqualValues(t, 1, made.Load())
}

func TestFailedBuildIsRepeated(t *testing.T) {
	c := cache(t)
	broken := errors.New("broken")
	fill := func(dir string) error {
		return errors.Join(os.WriteFile(filepath.Join(dir, "half"), nil, 0o600), broken)
	}
	_, err := c.buildOnce(context.Background(), "x", "key", fill)
	require.ErrorIs(t, err, broken)
	dir, err := c.buildOnce(context.Background(), "x", "key", func(string) error { return nil })
	require.NoError(t, err)
	assert.NoFileExists(t, filepath.Join(dir, "half"))
}

func TestWaitForBuild(t *testing.T) {
	var said strings.Builder
	c := cache(t)
	c.Progress = &said
	unlock, err := c.lock(context.Background(), "x-key")
	require.NoError(t, err)
	defer unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 150*time.Millisecond)
	defer cancel()
	_, err = c.buildOnce(ctx, "x", "key", func(string) error { return nil })
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Equal(t, "waiting for x-key, which another process is building …\n", said.String())
}

func TestOldBuildsAreRemoved(t *testing.T) {
	c := cache(t)
	fill := func(string) error { return nil }
	old, err := c.buildOnce(context.Background(), "x", "old", fill)
	require.NoError(t, err)
	used, err := c.buildOnce(context.Background(), "x", "used", fill)
	require.NoError(t, err)
	other, err := c.buildOnce(context.Background(), "y", "old", fill)
	require.NoError(t, err)
	unlock, err := c.lock(context.Background(), "x-long") // another process builds for longer than unusedFor
	require.NoError(t, err)
	defer unlock()
	lock, interrupted := filepath.Join(c.Dir, "bin", "x-long.lock"), filepath.Join(c.Dir, "bin", "x-interrupted.new")
	require.NoError(t, os.Mkdir(interrupted, 0o700))
	long := time.Now().Add(-unusedFor - time.Hour)
	for _, path := range []string{old, used, other, lock, interrupted} {
		require.NoError(t, os.Chtimes(path, long, long))
	}
	_, err = c.buildOnce(context.Background(), "x", "used", fill)
	require.NoError(t, err)
	_, err = c.buildOnce(context.Background(), "x", "new", fill)
	require.NoError(t, err)
	assert.NoDirExists(t, old)
	assert.NoDirExists(t, interrupted)
	assert.FileExists(t, lock, "a locked build must stay")
	assert.DirExists(t, used, "a recently used build must stay")
	assert.DirExists(t, other, "other directories must stay")
}

func TestVersionsOfNestedModules(t *testing.T) {
	c := cache(t)
	for version, file := range kubernetesMods {
		mod, err := os.ReadFile(filepath.Join(c.SourceDir, "test", "cluster", "kubernetes", file))
		require.NoError(t, err)
		assert.Contains(t, string(mod), "\tk8s.io/kubernetes "+version+"\n", file)
	}
	for _, release := range argoCDs {
		mod, err := os.ReadFile(filepath.Join(c.SourceDir, "test", release.nested, "go.mod"))
		require.NoError(t, err)
		assert.Contains(t, string(mod), "\t"+release.module+" v"+release.version+"\n")
	}
	_, err := c.ArgoCD(t.Context(), "1")
	assert.ErrorContains(t, err, `unknown major version "1"`)
	_, err = c.Kubernetes(t.Context(), "v1.2.3")
	assert.ErrorContains(t, err, `there are ["v1.30.14" "v1.37.2"]`)
}

func TestBuildKey(t *testing.T) {
	c := cache(t)
	file := filepath.Join(t.TempDir(), "go.sum")
	require.NoError(t, os.WriteFile(file, []byte("a"), 0o600))
	first, err := c.key([]string{"x", "y"}, file)
	require.NoError(t, err)
	moved, err := c.key([]string{"xy"}, file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, []byte("b"), 0o600))
	second, err := c.key([]string{"x", "y"}, file)
	require.NoError(t, err)
	assert.NotEqual(t, first, second)
	assert.NotEqual(t, first, moved, "the parts of the key must be delimited")
}

// The dependencies of Kubernetes and of the other cluster programs must stay in nested modules.
func TestNestedModulesStayOutOfMainModule(t *testing.T) {
	c := cache(t)
	for _, name := range []string{"cluster/kubernetes", "cluster/coredns", "cluster/kwok", "cluster/kind", "argocd", "argocd/kustomize"} {
		assert.FileExists(t, filepath.Join(c.SourceDir, "test", name, "go.mod"))
		assert.FileExists(t, filepath.Join(c.SourceDir, "test", name, "go.sum"))
	}
	mod, err := os.ReadFile(filepath.Join(c.SourceDir, "go.mod"))
	require.NoError(t, err)
	for _, heavy := range []string{"k8s.io/kubernetes ", "github.com/coredns/coredns ", "sigs.k8s.io/kwok ", "sigs.k8s.io/kind ", "github.com/argoproj/", "sigs.k8s.io/kustomize/kustomize/"} {
		assert.NotContains(t, string(mod), heavy)
	}
}
