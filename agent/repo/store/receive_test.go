package store

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gitserver"
)

func TestReceiveDeltas(t *testing.T) {
	g := repotest.NewSite(t, gitserver.Options{})
	g.Push("first", repotest.Views(50), gitserver.Write("big.txt", strings.Repeat("line of a large file\n", 5000)))
	commit := g.History(120, func(i int) string { return []string{"big.txt", "projects/p0/views/v0000/view.json"}[i%2] }, func(i int) string {
		return strings.Repeat("line of a large file\n", 4000+i) + fmt.Sprint(i*7919)
	})
	packs := map[string][]string{
		"offset deltas":       {"--delta-base-offset", "--window=20", "--depth=50"},
		"deltas by name":      {"--window=20", "--depth=50"},
		"long chains":         {"--delta-base-offset", "--window=200", "--depth=200"},
		"long chains by name": {"--window=200", "--depth=200"},
		"no deltas":           {"--window=0"},
	}
	for i, name := range slices.Sorted(maps.Keys(packs)) {
		pack := repotest.RunGit(t, g.Dir, []byte(commit.String()+"\n"),
			append([]string{"pack-objects", "--revs", "--stdout", "-q", "--no-reuse-delta", "--no-reuse-object"}, packs[name]...)...)
		for j, memory := range []string{"memory", "disk", "both"} {
			if testing.Short() && i%3 != j {
				continue // one of them for each pack; all of them without -short
			}
			t.Run(name+" in "+memory, func(t *testing.T) {
				s := openStore(t, t.TempDir())
				switch memory {
				case "disk":
					s.scratch = scratchSizes{maxInMemory: 0, memoryBudget: 0}
				case "both":
					s.scratch = scratchSizes{maxInMemory: 60_000, memoryBudget: 100_000}
				}
				_, err := receive(t, s, pack, false)
				require.NoError(t, err)
				repotest.RequireSame(t, g, s, commit)
				repotest.RequireSame(t, g, s, repotest.ParseID(t, g.Git("rev-parse", commit.String()+"~60")))
				all := repotest.RunGit(t, s.Dir(), nil, "cat-file", "--batch-all-objects", "--batch-check")
				assert.Equal(t, repotest.RunGit(t, g.Dir, nil, "cat-file", "--batch-all-objects", "--batch-check"), all)
			})
		}
	}
}

func TestReceiveThinPacks(t *testing.T) {
	base := strings.Repeat("0123456789", 30)
	t.Run("base in an older pack", func(t *testing.T) {
		s := openStore(t, t.TempDir())
		var first, second, third rawPack
		first.object(kindBlob, base)
		_, err := receive(t, s, first.bytes(), false)
		require.NoError(t, err)

		second.refDelta(repotest.BlobID(base), appendText(base, "a"))
		second.refDelta(repotest.BlobID(base+"a"), appendText(base+"a", "b"))
		_, err = receive(t, s, second.bytes(), true)
		require.NoError(t, err)

		third.refDelta(repotest.BlobID(base+"ab"), appendText(base+"ab", "c")) // whose base is a delta itself
		_, err = receive(t, s, third.bytes(), true)
		require.NoError(t, err)
		assert.Equal(t, base+"abc", repotest.ReadBlob(t, s, repotest.BlobID(base+"abc")))
		assert.Equal(t, base+"a", repotest.ReadBlob(t, s, repotest.BlobID(base+"a")))
		repotest.RequireVerified(t, s)
	})
	t.Run("transfer without a base", func(t *testing.T) {
		s := openStore(t, t.TempDir())
		var first, second rawPack
		first.object(kindBlob, base)
		_, err := receive(t, s, first.bytes(), false)
		require.NoError(t, err)
		second.refDelta(repotest.BlobID(base), appendText(base, "a"))
		_, err = receive(t, s, second.bytes(), false)
		var missing *MissingBaseError
		require.ErrorAs(t, err, &missing)
	})
	t.Run("base that is also a delta in the pack", func(t *testing.T) {
		s := openStore(t, t.TempDir())
		var first, second rawPack
		first.object(kindBlob, base)
		first.object(kindBlob, base+"a")
		_, err := receive(t, s, first.bytes(), false)
		require.NoError(t, err)
		second.refDelta(repotest.BlobID(base+"a"), appendText(base+"a", "b"))
		second.refDelta(repotest.BlobID(base), appendText(base, "a"))
		for range 10 { // either object may be looked up first
			in, err := receive(t, s, second.bytes(), true)
			require.NoError(t, err)
			assert.Equal(t, 3, in.Objects)
			assert.Equal(t, base+"ab", repotest.ReadBlob(t, s, repotest.BlobID(base+"ab")))
			repotest.RequireVerified(t, s)
		}
	})
	t.Run("two deltas that are each other's base", func(t *testing.T) {
		s := openStore(t, t.TempDir())
		var first, second rawPack
		first.object(kindBlob, base)
		first.object(kindBlob, base+"a")
		_, err := receive(t, s, first.bytes(), false)
		require.NoError(t, err)
		cut := []byte{0x80 | 0x10 | 0x20, byte(len(base)), byte(len(base) >> 8)}
		second.refDelta(repotest.BlobID(base), appendText(base, "a"))
		second.refDelta(repotest.BlobID(base+"a"), deltaOf(len(base)+1, len(base), cut...))
		_, err = receive(t, s, second.bytes(), true)
		require.ErrorIs(t, err, ErrCorrupt)
	})
}

// F11: the receiver rejects false sizes and counts, and content that expands beyond the limits.
func TestReceiveHostilePacks(t *testing.T) {
	base := strings.Repeat("b", 1000)
	small := Limits{Objects: 50, DeltaBytes: 1 << 20, TreeBytes: 1 << 10, PackBytes: 1 << 20, InflatedBytes: 4 << 20, DeltaDepth: 10}
	build := func(f func(p *rawPack)) []byte {
		var p rawPack
		f(&p)
		return p.bytes()
	}
	chain := func(n int) []byte {
		return build(func(p *rawPack) {
			text, off := base, p.object(kindBlob, base)
			for range n {
				off = p.ofsDelta(off, appendText(text, "x"))
				text += "x"
			}
		})
	}
	valid := chain(3)
	over, bad := string(v1alpha1.ReasonLimitExceeded), "corrupt"
	for name, tt := range map[string]struct {
		pack []byte
		want string
	}{
		"an object that is longer than its size":  {build(func(p *rawPack) { p.entry(kindBlob, 10, nil, []byte(base)) }), bad},
		"an object that is shorter than its size": {build(func(p *rawPack) { p.entry(kindBlob, 2000, nil, []byte(base)) }), bad},
		"a bomb with its true size":               {build(func(p *rawPack) { p.object(kindBlob, strings.Repeat("\x00", 5<<20)) }), over},
		"a bomb with a false size":                {build(func(p *rawPack) { p.entry(kindBlob, 5, nil, bytes.Repeat([]byte{0}, 8<<20)) }), bad},
		"an object with a huge size":              {build(func(p *rawPack) { p.entry(kindBlob, 1<<50, nil, []byte(base)) }), over},
		"a tree that is too large for memory":     {build(func(p *rawPack) { p.object(kindTree, strings.Repeat("t", 2000)) }), over},
		"many objects that add up": {build(func(p *rawPack) {
			for i := range 5 {
				p.object(kindBlob, strings.Repeat(string(rune('a'+i)), 1<<20))
			}
		}), over},
		"a delta whose result is longer than its size": {build(func(p *rawPack) {
			p.ofsDelta(p.object(kindBlob, base), append(deltaOf(1000, 5), appendText(base, "")[4:]...))
		}), bad},
		"a delta whose result is shorter than its size": {build(func(p *rawPack) {
			p.ofsDelta(p.object(kindBlob, base), deltaOf(1000, 500, 1, 'x'))
		}), bad},
		"a delta whose result has a huge size": {build(func(p *rawPack) {
			p.ofsDelta(p.object(kindBlob, base), deltaOf(1000, 1<<40, 1, 'x'))
		}), over},
		"a delta that explodes": {build(func(p *rawPack) {
			off := p.object(kindBlob, strings.Repeat("z", 1<<16))
			for range 40 { // each makes 1 MiB of one copy instruction
				p.ofsDelta(off, deltaOf(1<<16, 1<<20, bytes.Repeat([]byte{0x80}, 16)...))
			}
		}), over},
		"bases that are all needed at once": {build(func(p *rawPack) {
			off, size := p.object(kindBlob, strings.Repeat("z", 1<<16)), 1<<16
			for i := range byte(7) { // of two objects of 256 KiB, one is the base of the next two
				result := func(c byte) []byte { return deltaOf(size, 1<<18+1, append(bytes.Repeat([]byte{0x80}, 4), 1, c)...) }
				p.ofsDelta(off, result('a'+i))
				off, size = p.ofsDelta(off, result('A'+i)), 1<<18+1
			}
		}), over},
		"a delta for a base of another size": {build(func(p *rawPack) {
			p.ofsDelta(p.object(kindBlob, base), deltaOf(999, 1, 1, 'x'))
		}), bad},
		"a delta that copies beyond its base": {build(func(p *rawPack) {
			p.ofsDelta(p.object(kindBlob, base), deltaOf(1000, 100, 0x80|1|2|0x10, 0xff, 0xff, 100))
		}), bad},
		"a delta that inserts beyond its end": {build(func(p *rawPack) {
			p.ofsDelta(p.object(kindBlob, base), deltaOf(1000, 100, 100, 'x'))
		}), bad},
		"a delta with the reserved instruction": {build(func(p *rawPack) {
			p.ofsDelta(p.object(kindBlob, base), deltaOf(1000, 1, 0, 1, 'x'))
		}), bad},
		"an empty delta": {build(func(p *rawPack) { p.ofsDelta(p.object(kindBlob, base), nil) }), bad},
		"a delta that is longer than its size": {build(func(p *rawPack) {
			off := p.object(kindBlob, base)
			p.entry(kindOffset, 4, backward(int64(packHeaderSize+p.buf.Len())-off), deltaOf(1000, 1, 1, 'x', 1, 'y'))
		}), bad},
		"a base before the pack":       {build(func(p *rawPack) { p.ofsDelta(3, deltaOf(1, 1, 1, 'x')) }), bad},
		"a base that is the delta":     {build(func(p *rawPack) { p.ofsDelta(packHeaderSize, deltaOf(1, 1, 1, 'x')) }), bad},
		"a base between two entries":   {build(func(p *rawPack) { p.ofsDelta(p.object(kindBlob, base)+1, deltaOf(1, 1, 1, 'x')) }), bad},
		"a chain that is too long":     {chain(11), over},
		"an object twice":              {build(func(p *rawPack) { p.object(kindBlob, base); p.object(kindBlob, base) }), bad},
		"an unknown type":              {build(func(p *rawPack) { p.object(5, base) }), bad},
		"the type zero":                {build(func(p *rawPack) { p.object(0, base) }), bad},
		"fewer objects than announced": {func() []byte { var p rawPack; p.object(kindBlob, base); return p.claiming(2) }(), bad},
		"more objects than announced":  {func() []byte { var p rawPack; p.object(kindBlob, base); p.object(kindBlob, "x"); return p.claiming(1) }(), bad},
		"too many objects announced":   {func() []byte { var p rawPack; return p.claiming(1 << 31) }(), over},
		"bytes after the pack":         {append(bytes.Clone(valid), 'x'), bad},
		"another magic":                {append([]byte("JUNK"), valid[4:]...), bad},
		"another version":              {append([]byte("PACK\x00\x00\x00\x09"), valid[8:]...), bad},
		"nothing":                      {nil, bad},
		"a pack of too many bytes":     {append(bytes.Clone(valid), make([]byte, 2<<20)...), "any"},
		"a missing base":               {build(func(p *rawPack) { p.refDelta(plan.ID{9}, deltaOf(1, 1, 1, 'x')) }), "missing"},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStoreWith(t, t.TempDir(), Options{Limits: small})
			s.scratch.maxInMemory = 0 // so that all bases are in its file, which has a limit
			_, err := receive(t, s, tt.pack, true)
			require.Error(t, err)
			var missing *MissingBaseError
			switch tt.want {
			case over:
				repotest.RequireReason(t, v1alpha1.ReasonLimitExceeded, err)
			case bad:
				require.ErrorIs(t, err, ErrCorrupt)
			case "missing":
				require.ErrorAs(t, err, &missing)
			}
		})
	}
	s := openStoreWith(t, t.TempDir(), Options{Limits: small})
	_, err := receive(t, s, valid, false)
	require.NoError(t, err, "a valid pack is within the limits")
	assert.Equal(t, base+"xxx", repotest.ReadBlob(t, s, repotest.BlobID(base+"xxx")))
}

func TestReceiveDamagedPacks(t *testing.T) {
	var p rawPack
	off := p.object(kindBlob, "some content of a blob")
	p.ofsDelta(off, appendText("some content of a blob", "!"))
	p.refDelta(repotest.BlobID("some content of a blob"), appendText("some content of a blob", "?"))
	pack := p.bytes()
	s := openStoreWith(t, t.TempDir(), Options{Limits: Limits{DeltaBytes: 1 << 20}})
	for n := range pack {
		_, err := receive(t, s, pack[:n], false)
		require.Error(t, err, "cut after %d bytes", n)
		flipped := bytes.Clone(pack)
		flipped[n] ^= 1 << (n % 8)
		_, err = receive(t, s, flipped, false)
		require.Error(t, err, "flipped at %d", n)
	}
	assert.Empty(t, repotest.PackFiles(t, s, ""))
	_, err := receive(t, s, pack, false)
	require.NoError(t, err)
}

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

// pull copies a commit from the directory of a repository, as a fetch does. It returns the condition of the store before.
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
	keep := repotest.WalkTree(t, s, root, "") // the readers read each resource.json, which no commit below changes

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

// Objects that are larger than the memory of a scratch, and deltas of such objects, go through its file.
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

// pullTrees publishes a commit as a partial pack. Before that, it removes the received file with the extension lost, if any.
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
