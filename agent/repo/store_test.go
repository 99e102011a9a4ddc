package repo

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/agent/repo/store"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/test/gitserver"
)

// F12: whatever damage the store has, a new commit is available after at most two syncs, and nothing panics.
func TestDamagedStore(t *testing.T) {
	firstFile := func(t *testing.T, s *Store, ext string) string {
		files := repotest.PackFiles(t, s, ext)
		require.NotEmpty(t, files)
		return files[0]
	}
	bare := func(s *Store, name string) string { return filepath.Join(s.Dir(), name) }
	overwrite := func(t *testing.T, path string, change func([]byte) []byte) {
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, change(b), 0o600))
	}
	zero := func(b []byte) []byte { return make([]byte, len(b)) }
	half := func(b []byte) []byte { return b[:len(b)/2] }
	damages := map[string]func(t *testing.T, s *Store){
		"a pack is truncated": func(t *testing.T, s *Store) { overwrite(t, firstFile(t, s, packExt), half) },
		"all packs are truncated": func(t *testing.T, s *Store) {
			each(repotest.PackFiles(t, s, packExt), func(p string) { overwrite(t, p, half) })
		},
		"all packs are zeroed": func(t *testing.T, s *Store) {
			each(repotest.PackFiles(t, s, packExt), func(p string) { overwrite(t, p, zero) })
		},
		"all packs are empty": func(t *testing.T, s *Store) {
			each(repotest.PackFiles(t, s, packExt), func(p string) { overwrite(t, p, func([]byte) []byte { return nil }) })
		},
		"an index is zeroed": func(t *testing.T, s *Store) { overwrite(t, firstFile(t, s, indexExt), zero) },
		"all indexes are truncated": func(t *testing.T, s *Store) {
			each(repotest.PackFiles(t, s, indexExt), func(p string) { overwrite(t, p, half) })
		},
		"an index is empty": func(t *testing.T, s *Store) {
			overwrite(t, firstFile(t, s, indexExt), func([]byte) []byte { return nil })
		},
		"an index is missing": func(t *testing.T, s *Store) { require.NoError(t, os.Remove(firstFile(t, s, indexExt))) },
		"a pack is missing":   func(t *testing.T, s *Store) { require.NoError(t, os.Remove(firstFile(t, s, packExt))) },
		"a pack and its index are missing": func(t *testing.T, s *Store) {
			p := firstFile(t, s, packExt)
			require.NoError(t, os.Remove(p))
			require.NoError(t, os.Remove(strings.TrimSuffix(p, packExt)+indexExt))
		},
		"indexes are swapped": func(t *testing.T, s *Store) {
			files := repotest.PackFiles(t, s, indexExt)
			require.Len(t, files, 2)
			require.NoError(t, os.Rename(files[0], files[0]+"x"))
			require.NoError(t, os.Rename(files[1], files[0]))
			require.NoError(t, os.Rename(files[0]+"x", files[1]))
		},
		"a pack is a directory": func(t *testing.T, s *Store) {
			p := firstFile(t, s, packExt)
			require.NoError(t, os.Remove(p))
			require.NoError(t, os.Mkdir(p, 0o700))
		},
		"objects is missing": func(t *testing.T, s *Store) { require.NoError(t, os.RemoveAll(bare(s, "objects"))) },
		"objects is a file": func(t *testing.T, s *Store) {
			require.NoError(t, os.RemoveAll(bare(s, "objects")))
			touch(t, bare(s, "objects"))
		},
		"the repository is missing": func(t *testing.T, s *Store) { require.NoError(t, os.RemoveAll(s.Dir())) },
		"the repository is a file":  func(t *testing.T, s *Store) { require.NoError(t, os.RemoveAll(s.Dir())); touch(t, s.Dir()) },
		"the directory is missing":  func(t *testing.T, s *Store) { require.NoError(t, os.RemoveAll(filepath.Dir(s.Dir()))) },
		"the tip is missing":        func(t *testing.T, s *Store) { require.NoError(t, os.Remove(bare(s, tipFile))) },
		"the tip is zeroed":         func(t *testing.T, s *Store) { overwrite(t, bare(s, tipFile), zero) },
		"the tip is unknown": func(t *testing.T, s *Store) {
			overwrite(t, bare(s, tipFile), func([]byte) []byte { return []byte(sha) })
		},
		"the tip is a directory": func(t *testing.T, s *Store) {
			require.NoError(t, os.Remove(bare(s, tipFile)))
			require.NoError(t, os.MkdirAll(bare(s, tipFile)+"/x", 0o700))
		},
		"HEAD is a directory": func(t *testing.T, s *Store) {
			require.NoError(t, os.Remove(bare(s, "HEAD")))
			require.NoError(t, os.Mkdir(bare(s, "HEAD"), 0o700))
		},
		"leftovers and foreign files": func(t *testing.T, s *Store) {
			for _, name := range []string{
				"HEAD.lock", "index.lock", "config.lock", "packed-refs.lock", "shallow.lock", tipFile + ".lock", "refs/stoker/tmp-tip",
				packDir + "/tmp-ABC.pack", packDir + "/tmp-ABC.idx", packDir + "/tmp_pack_abc", packDir + "/pack-1234.pack", packDir + "/foreign.txt",
			} {
				touch(t, bare(s, name))
			}
		},
	}
	g := newSite(t)
	first, second := g.Push("first", repotest.Views(40)), g.Push("second", repotest.EditView(1, 1))
	third, fourth := g.Push("third", repotest.EditView(2, 1)), g.Push("fourth", repotest.EditView(3, 1))
	fetch := func(t *testing.T, s *Store, r *Remote, commit plan.ID) {
		_, err := s.Fetch(t.Context(), r, commit, "refs/heads/main")
		require.NoError(t, err)
	}
	filled := filepath.Join(t.TempDir(), "repo") // a store that was closed after two fetches
	s, r := openStore(t, filled), g.remote()
	fetch(t, s, r, first)
	fetch(t, s, r, second)
	require.NoError(t, s.Close())
	for i, name := range slices.Sorted(maps.Keys(damages)) {
		damage := damages[name]
		for _, running := range []bool{true, false} {
			if testing.Short() && !running && i%4 != 0 {
				continue // without -short, a stopped agent meets each damage, too
			}
			t.Run(fmt.Sprintf("%s, running %t", name, running), func(t *testing.T) {
				t.Parallel()
				dir, r := filepath.Join(t.TempDir(), "repo"), newRemote(t, g.url(), Auth{}, RemoteOptions{})
				if !running {
					require.NoError(t, os.CopyFS(dir, os.DirFS(filled))) //nolint:forbidigo // a store has no symbolic links
				}
				s := openStore(t, dir)
				if running {
					fetch(t, s, r, first)
					fetch(t, s, r, second)
				} else {
					require.NoError(t, s.Close())
				}
				damage(t, s)
				if !running {
					s = openStore(t, dir)
				}
				for attempt := 1; ; attempt++ {
					fetch(t, s, r, third)
					err := readEverything(s, third)
					if err == nil {
						break
					}
					require.Less(t, attempt, 2, "%v", err)
				}
				// The store stays intact for the next process, which also repairs damage that only it can see.
				require.NoError(t, s.Close())
				s = openStore(t, dir)
				for _, f := range repotest.PackFiles(t, s, "") {
					assert.NotContains(t, f, tempPrefix)
				}
				fetch(t, s, r, fourth)
				repotest.RequireSame(t, g, s, fourth)
			})
		}
	}
}

func each(paths []string, f func(string)) {
	for _, p := range paths {
		f(p)
	}
}

func touch(t *testing.T, path string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, []byte("x"), 0o600))
}

// readEverything reads all trees and blobs of a commit, as a plan and a stager do.
func readEverything(s *Store, commit plan.ID) error {
	root, err := s.RootTree(commit)
	if err != nil {
		return err
	}
	var walk func(plan.ID) error
	walk = func(id plan.ID) error {
		entries, err := s.Tree(id)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.Mode == plan.Directory {
				err = walk(e.ID)
			} else {
				_, err = s.WriteBlob(io.Discard, e.ID)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	return walk(root)
}

func packBytes(t *testing.T, s *Store) int64 {
	t.Helper()
	total := int64(0)
	for _, f := range repotest.PackFiles(t, s, "") {
		st, err := os.Stat(f)
		require.NoError(t, err)
		total += st.Size()
	}
	return total
}

func TestLargeStoreIsRenewed(t *testing.T) {
	g := newSite(t)
	g.Git("config", "core.compression", "0") // random bytes do not compress
	g.Push("first", repotest.Views(5))
	s, r := openStore(t, t.TempDir()), g.remote()
	pull(t, s, r, "main")
	const size = 3 << 19
	random := func(seed byte) string { // incompressible content
		b := make([]byte, size)
		x := uint32(seed) + 1
		for i := range b {
			x = x*1664525 + 1013904223
			b[i] = byte(x >> 24)
		}
		return string(b)
	}
	var kinds []FetchKind
	for i := range 6 {
		g.Push("big", gitserver.Write("big.bin", random(byte(i))))
		_, stats := pull(t, s, r, "main")
		kinds = append(kinds, stats.Kind)
		assert.Less(t, packBytes(t, s), int64(4*size+4<<20))
	}
	assert.Contains(t, kinds, FetchRenewed)
	repotest.RequireSame(t, g, s, repotest.ParseID(t, g.Head()))
	t.Run("no need of git for a commit in the store", func(t *testing.T) {
		s := openStoreWith(t, t.TempDir(), StoreOptions{MaxPacks: 1})
		old, _ := pull(t, s, r, "main")
		g.Push("small", gitserver.Write("small.txt", "1"))
		last, _ := pull(t, s, r, "main")
		down := newRemote(t, parseURL(t, "http://127.0.0.1:1/site.git"), Auth{}, RemoteOptions{})
		for _, commit := range []plan.ID{last.Commit, old.Commit} {
			stats, err := s.Fetch(t.Context(), down, commit, "refs/heads/main")
			require.NoError(t, err, "the store has the commit")
			assert.Equal(t, FetchNone, stats.Kind)
			repotest.RequireSame(t, g, s, commit)
		}
		g.Push("next", gitserver.Write("small.txt", "2"))
		_, stats := pull(t, s, r, "main")
		assert.Equal(t, FetchRenewed, stats.Kind)
	})
}

func TestReadMissingObjects(t *testing.T) {
	g := newSite(t)
	commit := g.Push("first", repotest.Views(2))
	s, r := openStore(t, t.TempDir()), g.remote()
	_, err := s.RootTree(commit)
	assert.True(t, store.IsNotFound(err), "an empty store has no object")
	pull(t, s, r, "main")
	assert.True(t, s.Has(commit))
	assert.False(t, s.Has(plan.ID{1}))
	assert.Equal(t, int64(-1), s.SortKey(plan.ID{1}))
	_, err = s.RootTree(plan.ID{1})
	assert.True(t, store.IsNotFound(err))

	root, err := s.RootTree(commit)
	require.NoError(t, err)
	_, err = s.Tree(commit)
	assert.ErrorContains(t, err, "is a commit, not a tree")
	_, err = s.WriteBlob(io.Discard, root)
	assert.ErrorContains(t, err, "is a tree, not a blob")
	_, err = s.RootTree(root)
	assert.ErrorContains(t, err, "is a tree, not a commit")

	_, stats := pull(t, s, r, "main")
	assert.Equal(t, FetchNone, stats.Kind, "a wrong kind of object is not damage")
	_, err = s.Tree(plan.ID{1})
	assert.True(t, store.IsNotFound(err))
	_, stats = pull(t, s, r, "main")
	assert.Equal(t, FetchRepaired, stats.Kind, "a missing tree is damage")

	writeErr := fmt.Errorf("disk full")
	_, err = s.WriteBlob(failingWriter{writeErr}, repotest.BlobID("site\n"))
	require.ErrorIs(t, err, writeErr)
	_, stats = pull(t, s, r, "main")
	assert.Equal(t, FetchNone, stats.Kind, "an error of the caller's writer is not damage")
}

type failingWriter struct{ err error }

func (f failingWriter) Write([]byte) (int, error) { return 0, f.err }

func TestOpen(t *testing.T) {
	t.Run("a store in use is refused", func(t *testing.T) {
		dir := t.TempDir()
		s := openStore(t, dir)
		_, err := Open(dir, StoreOptions{})
		require.ErrorContains(t, err, "in use by another process")
		require.NoError(t, s.Close())
		openStore(t, dir)
	})
	t.Run("foreign files stay", func(t *testing.T) {
		dir := t.TempDir()
		for _, name := range []string{"objects/pack/tmp-x", "HEAD", "notes.txt"} {
			touch(t, filepath.Join(dir, name))
		}
		openStore(t, dir)
		for _, name := range []string{"objects/pack/tmp-x", "HEAD", "notes.txt"} {
			t.Run(name, func(t *testing.T) {
				assert.FileExists(t, filepath.Join(dir, name))
			})
		}
	})
	t.Run("a directory that is a file is an error, and the file stays", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "repo")
		touch(t, path)
		_, err := Open(path, StoreOptions{})
		require.Error(t, err)
		assert.FileExists(t, path)
	})
	t.Run("a store that cannot be opened is empty, and opens later", func(t *testing.T) {
		g := newSite(t)
		commit := g.Push("first", repotest.Views(1))
		path := filepath.Join(t.TempDir(), "repo")
		touch(t, path)
		s := New(path, StoreOptions{})
		t.Cleanup(func() { assert.NoError(t, s.Close()) })
		assert.False(t, s.Has(commit))
		_, err := s.Fetch(t.Context(), g.remote(), commit, "main")
		assert.True(t, failure.Is(err, v1alpha1.ReasonWriteFailed), "%v", err)
		assert.ErrorContains(t, err, path)
		require.NoError(t, os.Remove(path))
		pull(t, s, g.remote(), "main")
		assert.True(t, s.Has(commit))
	})
	t.Run("objects of earlier fetches are available at once", func(t *testing.T) {
		g := newSite(t)
		commit := g.Push("first", repotest.Views(1))
		dir := t.TempDir()
		s := openStore(t, dir)
		pull(t, s, g.remote(), "main")
		require.NoError(t, s.Close())
		s = New(dir, StoreOptions{})
		assert.True(t, s.Has(commit))
		require.NoError(t, s.Close())
		s = New(dir, StoreOptions{})
		require.NoError(t, s.Close())
		assert.False(t, s.Has(commit), "a closed store is not opened again")
		openStore(t, dir)
	})
	t.Run("a store replaced by a file is created again", func(t *testing.T) {
		g := newSite(t)
		g.Push("first", repotest.Views(1))
		dir := t.TempDir()
		s := openStore(t, dir)
		pull(t, s, g.remote(), "main")
		require.NoError(t, s.Close())
		require.NoError(t, os.RemoveAll(s.Dir()))
		touch(t, s.Dir())
		_, stats := pull(t, openStore(t, dir), g.remote(), "main")
		assert.Equal(t, FetchFirst, stats.Kind)
	})
	t.Run("an unreadable store is set aside", func(t *testing.T) {
		if os.Geteuid() == 0 {
			t.Skip("root reads everything")
		}
		g := newSite(t)
		g.Push("first", repotest.Views(1))
		dir := t.TempDir()
		s := openStore(t, dir)
		pull(t, s, g.remote(), "main")
		require.NoError(t, s.Close())
		require.NoError(t, os.Chmod(s.Dir(), 0))
		_, stats := pull(t, openStore(t, dir), g.remote(), "main")
		assert.Equal(t, FetchFirst, stats.Kind)
		require.NoError(t, os.Chmod(filepath.Join(dir, "stoker.git.unreadable"), 0o700))
	})
	t.Run("a closed store fetches no more", func(t *testing.T) {
		g := newSite(t)
		commit := g.Push("first", repotest.Views(1))
		s := openStore(t, t.TempDir())
		require.NoError(t, s.Close())
		_, err := s.Fetch(t.Context(), g.remote(), commit, "main")
		require.Error(t, err)
		assert.False(t, s.Has(commit))
	})
}

func TestSortKeysFollowThePack(t *testing.T) {
	g := newSite(t)
	first := g.Push("first", repotest.Views(30))
	s, r := openStore(t, t.TempDir()), g.remote()
	pull(t, s, r, "main")
	second := g.Push("second", repotest.EditView(1, 1))
	pull(t, s, r, "main")
	changed := repotest.ParseID(t, g.Git("rev-parse", second.String()+":projects/p1/views/v0001/view.json"))
	old := repotest.ParseID(t, g.Git("rev-parse", first.String()+":projects/p2/views/v0002/view.json"))
	assert.Greater(t, s.SortKey(changed), s.SortKey(old), "the key follows the order of the packs")
	offsets := map[int64]bool{}
	for _, l := range strings.Fields(g.Git("rev-list", "--objects", "--no-object-names", "--no-walk", first.String())) {
		offsets[s.SortKey(repotest.ParseID(t, l))] = true
	}
	assert.Len(t, offsets, len(strings.Fields(g.Git("rev-list", "--objects", "--no-object-names", "--no-walk", first.String()))))
}

// F12: whichever bit of a pack flips, every read returns the bytes of git or fails, and damaged objects are fetched again.
func TestFlippedBitsOfPack(t *testing.T) {
	g := newSite(t)
	g.Push("first", repotest.Views(4))
	commit := g.Push("second", repotest.EditView(1, 1))
	g.Repack() // with deltas
	r := g.remote()
	dir := filepath.Join(t.TempDir(), "repo")
	s := openStore(t, dir)
	pull(t, s, r, "main")
	pack := repotest.PackFiles(t, s, packExt)[0]
	root, err := s.RootTree(commit)
	require.NoError(t, err)
	content := map[plan.ID]string{}
	for _, line := range repotest.WalkTree(t, s, root, "") {
		if id := repotest.ParseID(t, line[:40]); strings.Contains(line, ".") {
			content[id] = repotest.ReadBlob(t, s, id)
		}
	}
	require.NoError(t, s.Close())
	good, err := os.ReadFile(pack)
	require.NoError(t, err)
	every := 1
	if testing.Short() {
		every = 7 // in each bit of a byte, but not in each byte
	}
	for n := 12; n < len(good)-20; n += every {
		flipped := bytes.Clone(good)
		flipped[n] ^= 1 << (n % 8)
		require.NoError(t, os.WriteFile(pack, flipped, 0o600))
		s, err := Open(dir, StoreOptions{})
		require.NoError(t, err)
		err = readEverything(s, commit)
		if err != nil {
			require.True(t, IsDamaged(err) && s.Damaged(), "flipped at %d: %v", n, err)
		} else { // the bit does not matter
			for id, text := range content {
				require.Equal(t, text, repotest.ReadBlob(t, s, id), "flipped at %d", n)
			}
		}
		require.NoError(t, s.Close())
	}
}
