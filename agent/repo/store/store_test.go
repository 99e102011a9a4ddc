package store

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/test/gitserver"
)

// testStore is a Store for the checks of repotest.
type testStore struct {
	*Store
	t testing.TB
}

func openStore(t testing.TB, dir string) *testStore { return openStoreWith(t, dir, Options{}) }

func openStoreWith(t testing.TB, dir string, o Options) *testStore {
	t.Helper()
	s := New(dir, o)
	require.NoError(t, s.Open())
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return &testStore{s, t}
}

// WriteBlob implements plan.Objects.
func (s *testStore) WriteBlob(w io.Writer, id plan.ID) (int64, error) { return s.ReadBlob(w, id) }

// pull copies a commit from the directory of a repository, as a fetch does.
func (s *testStore) pull(g *repotest.Site, commit plan.ID) Condition {
	s.t.Helper()
	f, err := s.Begin(commit)
	require.NoError(s.t, err)
	defer f.Close()
	if f.Condition() == Ready {
		f.Base = s.Tip()
	}
	from, err := OpenObjects(context.Background(), filepath.Join(g.Dir, "objects"), Limits{}, f.Scratch)
	require.NoError(s.t, err)
	defer from.Close()
	in, err := f.Copy(context.Background(), from, nil)
	require.NoError(s.t, err)
	require.NoError(s.t, f.Publish(in, f.Condition() != Ready))
	return f.Condition()
}

func TestReadersDuringTransfer(t *testing.T) {
	g := repotest.NewSite(t, gitserver.Options{})
	first := g.Push("first", repotest.Views(60))
	s := openStoreWith(t, t.TempDir(), Options{MaxPacks: 1}) // packs are replaced all the time
	s.pull(g, first)
	root, err := s.RootTree(first)
	require.NoError(t, err)
	keep := repotest.WalkTree(t, s, root, "projects") // unchanged in every commit below

	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				for _, l := range keep {
					id, err := plan.ParseID(l[:40])
					if !assert.NoError(t, err) {
						return
					}
					if !strings.HasSuffix(l, "resource.json") {
						continue
					}
					var b bytes.Buffer
					if _, err := s.WriteBlob(&b, id); !assert.NoError(t, err) || !assert.Equal(t, id, repotest.BlobID(b.String())) {
						return
					}
				}
			}
		})
	}
	wg.Go(func() { // another process
		id := repotest.BlobID(repotest.View(0, 0))
		for {
			select {
			case <-stop:
				return
			default:
			}
			o, err := OpenReadOnly(t.Context(), s.dir, Limits{})
			if !assert.NoError(t, err) {
				return
			}
			content, size, err := o.Blob(id, 1<<20)
			o.Close()
			if !assert.NoError(t, err) || !assert.Equal(t, repotest.View(0, 0), string(content)) || !assert.EqualValues(t, len(content), size) {
				return
			}
		}
	})
	for i := range 6 {
		s.pull(g, g.Push("edit", gitserver.Write("README.md", fmt.Sprint(i))))
	}
	close(stop)
	wg.Wait()
	s.packs.mu.RLock()
	defer s.packs.mu.RUnlock()
	for _, p := range s.packs.list {
		assert.Equal(t, int32(1), p.refs.Load(), "no pack is leaked")
	}
}

func TestOpenReadOnly(t *testing.T) {
	t.Run("no store", func(t *testing.T) {
		dir := t.TempDir()
		o, err := OpenReadOnly(t.Context(), dir, Limits{})
		require.NoError(t, err)
		defer o.Close()
		_, _, err = o.Blob(plan.ID{1}, 10)
		assert.True(t, IsNotFound(err), err)
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		assert.Empty(t, left)
	})
	t.Run("a blob over the limit", func(t *testing.T) {
		g := repotest.NewSite(t, gitserver.Options{})
		s := openStore(t, t.TempDir())
		s.pull(g, g.Push("first", gitserver.Write("a", "12345")))
		o, err := OpenReadOnly(t.Context(), s.dir, Limits{})
		require.NoError(t, err)
		defer o.Close()
		content, size, err := o.Blob(repotest.BlobID("12345"), 4)
		require.NoError(t, err)
		assert.Nil(t, content)
		assert.EqualValues(t, 5, size)
	})
}

// Large files, deltas of large files and many packs need only bounded memory, because the store uses scratch files.
func TestLargeObjects(t *testing.T) {
	g := repotest.NewSite(t, gitserver.Options{})
	var text strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&text, "%d %d\n", i, i*i)
	}
	g.Push("first", gitserver.Write("large", text.String()))
	commit := g.Push("second", gitserver.Write("large", text.String()+"more\n"), gitserver.Write("zero", strings.Repeat("\x00", 1<<20)))
	for _, packed := range []bool{false, true} {
		if packed {
			g.Repack()
		}
		s := openStore(t, t.TempDir())
		s.scratch = scratchSizes{maxInMemory: 1 << 10, memoryBudget: 2 << 10}
		s.pull(g, commit)
		repotest.RequireSame(t, g, s, commit)
	}
}

func TestSetAside(t *testing.T) {
	g := repotest.NewSite(t, gitserver.Options{})
	commit := g.Push("first", repotest.Views(1))
	dir := t.TempDir()
	s := openStore(t, dir)
	s.pull(g, commit)
	require.NoError(t, s.Close())
	require.NoError(t, os.Mkdir(filepath.Join(dir, asideDir), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, asideDir, "earlier"), nil, 0o600))
	require.NoError(t, setAside(dir))
	assert.NoDirExists(t, filepath.Join(dir, asideDir))
	assert.Equal(t, Empty, openStore(t, dir).pull(g, commit))
}

// A mark without its pack would make a complete pack with the same name partial.
func TestFailedPublishLeavesNoMark(t *testing.T) {
	for name, c := range map[string]struct {
		before func(s *testStore, g *repotest.Site, commit plan.ID)
		lost   string // extension of the file that Publish does not find
		marks  int
	}{
		"no pack before":     {func(*testStore, *repotest.Site, plan.ID) {}, packExt, 0},
		"index not renamed":  {func(*testStore, *repotest.Site, plan.ID) {}, indexExt, 0},
		"complete pack":      {func(s *testStore, g *repotest.Site, commit plan.ID) { s.pull(g, commit) }, packExt, 0},
		"partial pack stays": {func(s *testStore, g *repotest.Site, commit plan.ID) { require.NoError(t, s.pullTrees(g, commit, "")) }, packExt, 1},
	} {
		t.Run(name, func(t *testing.T) {
			g := repotest.NewSite(t, gitserver.Options{})
			commit := g.Push("first", repotest.Views(3))
			s := openStore(t, t.TempDir())
			c.before(s, g, commit)
			require.Error(t, s.pullTrees(g, commit, c.lost))
			assert.Len(t, repotest.PackFiles(t, s, partialExt), c.marks)
		})
	}
}

// pullTrees publishes a commit as a partial pack. It removes the received file with the extension lost before.
func (s *testStore) pullTrees(g *repotest.Site, commit plan.ID, lost string) error {
	f, err := s.Begin(commit)
	require.NoError(s.t, err)
	defer f.Close()
	from, err := OpenObjects(context.Background(), filepath.Join(g.Dir, "objects"), Limits{}, f.Scratch)
	require.NoError(s.t, err)
	defer from.Close()
	in, err := f.Copy(context.Background(), from, nil)
	require.NoError(s.t, err)
	f.TreesOnly = true // only now, so that the pack has the name of a complete one
	if lost != "" {
		require.NoError(s.t, f.root.Remove(in.temp+lost))
	}
	return f.Publish(in, false)
}

// A temporary file may belong to a concurrent transfer that searches a history.
func TestPublishKeepsTemporaryFiles(t *testing.T) {
	g := repotest.NewSite(t, gitserver.Options{})
	commit := g.Push("first", repotest.Views(3))
	dir := t.TempDir()
	s := openStore(t, dir)
	root, err := openRoot(dir)
	require.NoError(t, err)
	f, name, err := createTemp(root, packDir, packExt)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	s.pull(g, commit)
	_, err = root.Stat(name)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	openStore(t, dir)
	_, err = root.Stat(name)
	require.ErrorIs(t, err, fs.ErrNotExist, "the next start removes the file")
	require.NoError(t, root.Close())
}
