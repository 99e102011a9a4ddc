package format

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkMergeManifest merges edits into manifests of 100,000 and 1,000,000 records.
func BenchmarkMergeManifest(b *testing.B) {
	for _, n := range []int{100_000, 1_000_000} {
		old := decodeManifest(b, encode(b, testHeader, NoManifest(), setAll(some(n))))
		for _, changed := range []int{1, n / 10} {
			b.Run(fmt.Sprintf("records=%d/changed=%d", n, changed), func(b *testing.B) {
				list := make([]Record, 0, changed)
				i := 0
				for r, err := range old.records("") {
					require.NoError(b, err)
					if i%(n/changed) == 0 {
						list = append(list, r)
					}
					i++
				}
				f, err := os.Create(b.TempDir() + "/manifest")
				require.NoError(b, err)
				for b.Loop() {
					_, err := f.Seek(0, io.SeekStart)
					require.NoError(b, err)
					require.NoError(b, Merge(f, testHeader, old, setAll(list)))
				}
				require.NoError(b, f.Close())
			})
		}
	}
}

func BenchmarkGetFromManifest(b *testing.B) {
	list := some(100_000)
	m := decodeManifest(b, encode(b, testHeader, NoManifest(), setAll(list)))
	for i := 0; b.Loop(); i++ {
		_, _, err := m.Lookup(list[i*7919%len(list)].Path)
		require.NoError(b, err)
	}
}

func BenchmarkReadManifestAtStart(b *testing.B) {
	x := encode(b, testHeader, NoManifest(), setAll(some(100_000)))
	for b.Loop() {
		_, err := readManifest(bytes.NewReader(x), int64(len(x)))
		require.NoError(b, err)
	}
	b.ReportMetric(float64(len(x)), "bytes")
}
