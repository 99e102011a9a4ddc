package store

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
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
