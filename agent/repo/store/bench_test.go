package store

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/test/gitserver"
)

func BenchmarkReceive(b *testing.B) {
	g := repotest.NewSite(b, gitserver.Options{})
	g.Push("first", repotest.Views(5000))
	g.Repack()
	head := g.Head()
	root, err := os.OpenRoot(b.TempDir())
	require.NoError(b, err)
	limits := Limits{}.withDefaults()
	for name, args := range map[string][]string{"deltas": {"--delta-base-offset"}, "whole": {"--window=0", "--no-reuse-delta"}} {
		pack := repotest.RunGit(b, g.Dir, []byte(head+"\n"), append([]string{"pack-objects", "--revs", "--stdout", "-q"}, args...)...)
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

// BenchmarkObjectHasher measures the cost of detecting SHA-1 collisions.
func BenchmarkObjectHasher(b *testing.B) {
	for _, size := range []int{1 << 10, 1 << 20} {
		content := bytes.Repeat([]byte{7}, size)
		b.Run(fmt.Sprintf("%d bytes", size), func(b *testing.B) {
			b.SetBytes(int64(size))
			n := newObjectHasher()
			for b.Loop() {
				_, _ = n.start(kindBlob, int64(size)).Write(content)
				_, err := n.id()
				require.NoError(b, err)
			}
		})
	}
}
