package repo

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// benchSite is a repository of 10,000 files, packed as a host packs it, and its last commit.
func benchSite(b *testing.B) (*site, string) {
	g := newSite(b)
	g.commit("first", views(5000))
	g.Repack()
	return g, g.Head()
}

func BenchmarkReceive(b *testing.B) {
	g, head := benchSite(b)
	root, err := os.OpenRoot(b.TempDir())
	require.NoError(b, err)
	limits := Limits{}.withDefaults()
	for name, args := range map[string][]string{"deltas": {"--delta-base-offset"}, "whole": {"--window=0", "--no-reuse-delta"}} {
		pack := runGit(b, g.Dir, []byte(head+"\n"), append([]string{"pack-objects", "--revs", "--stdout", "-q"}, args...)...)
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(pack)))
			b.ReportAllocs()
			for b.Loop() {
				p, recs, err := receiveOnly(b, root, limits, pack, nil)
				require.NoError(b, err)
				b.ReportMetric(float64(len(recs)), "objects")
				p.release()
			}
		})
	}
}

func BenchmarkFetchOneFile(b *testing.B) {
	g, _ := benchSite(b)
	s, r := openStoreWith(b, b.TempDir(), StoreOptions{MaxPacks: 1 << 20}), g.remote()
	pull(b, s, r, "main")
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		g.commit("edit", editView(i%5000, i+1))
		b.StartTimer()
		_, stats := pull(b, s, r, "main")
		require.Equal(b, FetchIncremental, stats.Kind)
		b.ReportMetric(float64(stats.Bytes), "packbytes")
	}
}

func BenchmarkResolve(b *testing.B) {
	g := newSite(b)
	g.commit("first", views(1))
	r := g.remote()
	ref := parseRef(b, "main")
	for b.Loop() {
		_, err := r.Resolve(context.Background(), ref)
		require.NoError(b, err)
	}
}

func BenchmarkRead(b *testing.B) {
	g, head := benchSite(b)
	s := openStore(b, b.TempDir())
	pull(b, s, g.remote(), "main")
	root, err := s.RootTree(parseID(b, head))
	require.NoError(b, err)
	blob := parseID(b, g.Git("rev-parse", "HEAD:projects/p1/views/v0001/view.json"))
	b.Run("tree", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, err := s.Tree(root)
			require.NoError(b, err)
		}
	})
	b.Run("blob", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, err := s.WriteBlob(io.Discard, blob)
			require.NoError(b, err)
		}
	})
	b.Run("key", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			require.Positive(b, s.SortKey(blob))
		}
	})
}

// BenchmarkNamer compares what it costs to detect SHA-1 collisions.
func BenchmarkNamer(b *testing.B) {
	for _, size := range []int{1 << 10, 1 << 20} {
		content := bytes.Repeat([]byte{7}, size)
		b.Run(fmt.Sprintf("%d bytes", size), func(b *testing.B) {
			b.SetBytes(int64(size))
			n := newNamer()
			for b.Loop() {
				_, _ = n.start(kindBlob, int64(size)).Write(content)
				_, err := n.id()
				require.NoError(b, err)
			}
		})
	}
}
