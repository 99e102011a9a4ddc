package repo

import (
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/repo/repotest"
)

// benchSite returns a repository of 10,000 files, packed as on a host, and its last commit.
func benchSite(b *testing.B) (*site, string) {
	g := newSite(b)
	g.Push("first", repotest.Views(5000))
	g.Repack()
	return g, g.Head()
}

func BenchmarkFetchOneFile(b *testing.B) {
	g, _ := benchSite(b)
	s, r := openStoreWith(b, b.TempDir(), StoreOptions{MaxPacks: 1 << 20}), g.remote()
	pull(b, s, r, "main")
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		g.Push("edit", repotest.EditView(i%5000, i+1))
		b.StartTimer()
		_, stats := pull(b, s, r, "main")
		require.Equal(b, FetchIncremental, stats.Kind)
		b.ReportMetric(float64(stats.Bytes), "packbytes")
	}
}

func BenchmarkResolve(b *testing.B) {
	g := newSite(b)
	g.Push("first", repotest.Views(1))
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
	root, err := s.RootTree(repotest.ParseID(b, head))
	require.NoError(b, err)
	blob := repotest.ParseID(b, g.Git("rev-parse", "HEAD:projects/p1/views/v0001/view.json"))
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
