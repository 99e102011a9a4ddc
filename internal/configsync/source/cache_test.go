package source

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/test/gitserver"
)

// run reads the manifests of main with a slot of a cache, as a run does, and returns their text and the bytes that the server sent.
func (s site) run(t *testing.T, slot Slot) (text string, sent int64) {
	t.Helper()
	s.server.Forget()
	remote, err := GitRemote(t.Context(), &v1alpha1.ConfigGit{RepoURL: s.server.URL("plant.git")}, nil, repo.RemoteOptions{})
	require.NoError(t, err)
	c, err := Open(t.Context(), remote, CommitSpec{Ref: "main"}, slot)
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	layers, _, err := c.Read(t.Context(), []string{"k8s"}, nil, nil, true)
	require.NoError(t, err)
	for _, f := range layers[0] {
		text += string(f.Content)
	}
	return text, s.server.Stats().Out
}

// large is a repository with two thousand files, of which ten are manifests.
func (s site) large() {
	var edits []gitserver.Edit
	for i := range 2000 {
		edits = append(edits, gitserver.Write(fmt.Sprintf("projects/p%d/view-%d.json", i%40, i), strings.Repeat(fmt.Sprint(i), 300)))
	}
	for i := range 10 {
		edits = append(edits, gitserver.Write(fmt.Sprintf("k8s/%d.yaml", i), fmt.Sprintf("# %d\n", i)))
	}
	s.Commit("first", edits...)
}

// newCache returns a cache, and the directory that contains its directory.
func newCache(t *testing.T, limit int64) (*Cache, string) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	cache, err := NewCache(limit, 0)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, cache.Close())
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		assert.Empty(t, left)
	})
	return cache, dir
}

// entries counts the stores of a cache.
func entries(t *testing.T, dir string) int {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*", "*", "objects"))
	require.NoError(t, err)
	return len(found)
}

func TestCacheFetchesChangesOnly(t *testing.T) {
	s := newSite(t)
	s.large()
	cache, _ := newCache(t, 64<<20)
	slot := Slot{Cache: cache, Owner: "a", Source: "plant"}
	_, first := s.run(t, slot)
	assert.Greater(t, first, int64(20_000), "the first fetch must contain the trees")
	assert.Less(t, first, int64(400_000), "the first fetch must not contain all files")
	_, again := s.run(t, slot)
	assert.Less(t, again, int64(1000), "the second fetch must contain only the refs")
	var all int64
	renewed := 0
	changes := 60
	if testing.Short() {
		changes = 28
	}
	for i := range changes { // each adds two packs, and a store has at most fifty
		s.Commit("change", gitserver.Write("k8s/3.yaml", fmt.Sprintf("# changed %d\n", i)), gitserver.Write("projects/p1/other.json", strings.Repeat(fmt.Sprint(i), 5000)))
		text, sent := s.run(t, slot)
		assert.Contains(t, text, fmt.Sprintf("# changed %d\n", i))
		assert.Contains(t, text, "# 9\n")
		if all += sent; i == 0 {
			assert.Less(t, sent, int64(8000))
		}
		if sent > first/2 {
			renewed++
		}
	}
	assert.Positive(t, renewed)
	assert.Less(t, all, int64(changes)*8000+5*first, "a renewed store must not fetch all files")
}

func TestCachePerOwnerAndSource(t *testing.T) {
	s := newSite(t)
	s.large()
	cache, dir := newCache(t, 64<<20)
	_, first := s.run(t, Slot{Cache: cache, Owner: "a", Source: "plant"})
	t.Run("another owner", func(t *testing.T) {
		_, sent := s.run(t, Slot{Cache: cache, Owner: "b", Source: "plant"})
		assert.InDelta(t, first, sent, 1000)
	})
	t.Run("another source", func(t *testing.T) {
		_, sent := s.run(t, Slot{Cache: cache, Owner: "a", Source: "another Secret"})
		assert.InDelta(t, first, sent, 1000)
	})
	assert.Equal(t, 2, entries(t, dir), "the store of the old source must be removed")
	t.Run("forgotten owner", func(t *testing.T) {
		require.NoError(t, cache.Forget("a"))
		require.NoError(t, cache.Forget("never there"))
		assert.Equal(t, 1, entries(t, dir))
	})
}

// A store that a read found damaged is fetched again by the next run.
func TestCacheDropsDamagedStore(t *testing.T) {
	s := newSite(t)
	s.large()
	cache, dir := newCache(t, 64<<20)
	slot := Slot{Cache: cache, Owner: "a", Source: "plant"}
	s.run(t, slot)
	packs, err := filepath.Glob(filepath.Join(dir, "*", "*", "objects", "stoker.git", "objects", "pack", "*.pack"))
	require.NoError(t, err)
	require.NotEmpty(t, packs)
	for _, p := range packs { // every blob: damage of trees is found and repaired by the fetch itself
		if _, err := os.Stat(strings.TrimSuffix(p, ".pack") + ".promisor"); err == nil {
			continue
		}
		b, err := os.ReadFile(p)
		require.NoError(t, err)
		for i := 12; i < len(b)-20; i++ {
			b[i] ^= 0x5a
		}
		require.NoError(t, os.Chmod(p, 0o600))
		require.NoError(t, os.WriteFile(p, b, 0o600))
	}
	remote, err := GitRemote(t.Context(), &v1alpha1.ConfigGit{RepoURL: s.server.URL("plant.git")}, nil, repo.RemoteOptions{})
	require.NoError(t, err)
	c, err := Open(t.Context(), remote, CommitSpec{Ref: "main"}, slot)
	if err == nil {
		_, _, err = c.Read(t.Context(), []string{"k8s"}, nil, nil, true)
		require.NoError(t, c.Close())
	}
	require.Error(t, err)
	text, _ := s.run(t, slot)
	assert.Contains(t, text, "# 9\n")
}

func TestCacheIsBounded(t *testing.T) {
	s := newSite(t)
	s.large()
	t.Run("oldest store is removed", func(t *testing.T) {
		cache, dir := newCache(t, 300_000)
		for i := range 10 {
			s.run(t, Slot{Cache: cache, Owner: fmt.Sprint(i)})
		}
		n := entries(t, dir)
		assert.GreaterOrEqual(t, n, 1)
		assert.Less(t, n, 10)
		_, sent := s.run(t, Slot{Cache: cache, Owner: "9"})
		assert.Less(t, sent, int64(1000), "the newest store must be kept")
	})
	t.Run("store too large for the cache", func(t *testing.T) {
		cache, dir := newCache(t, 100)
		text, _ := s.run(t, Slot{Cache: cache, Owner: "a"})
		assert.Contains(t, text, "# 9\n")
		assert.Zero(t, entries(t, dir))
	})
}

// G9: a repository that is larger than its part of the volume fails alone, and the volume stays below the bound.
func TestStoreIsBounded(t *testing.T) {
	big, small := newSite(t), newSite(t)
	big.server.Refuse(gitserver.Filter)
	noise := make([]byte, 6<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise)
	big.Commit("first", gitserver.Write("k8s/a.yaml", "# 40 bytes\n"), gitserver.Write("media/film.bin", string(noise)))
	small.large()
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	const storeSize = 4 << 20
	cache, err := NewCache(storeSize, storeSize)
	require.NoError(t, err)
	for i := range 4 { // sequence: a run must not add to what the run before left
		owner := fmt.Sprint(i % 2)
		remote, err := GitRemote(t.Context(), &v1alpha1.ConfigGit{RepoURL: big.server.URL("plant.git")}, nil, repo.RemoteOptions{})
		require.NoError(t, err)
		_, err = Open(t.Context(), remote, CommitSpec{Ref: "main"}, Slot{Cache: cache, Owner: owner})
		require.True(t, failure.Is(err, v1alpha1.ReasonLimitExceeded), "%v", err)
		text, _ := small.run(t, Slot{Cache: cache, Owner: "small"})
		require.Contains(t, text, "# 9\n")
		require.Less(t, bytesBelow(t, dir), int64(3*storeSize))
	}
	require.NoError(t, cache.Close())
}

// bytesBelow returns the size of all files below a folder.
func bytesBelow(t *testing.T, dir string) (total int64) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		total += info.Size()
		return err
	}))
	return total
}
