package disk

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/disk/records"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
)

// large returns a commit of n small files in a gateway's layout: one directory of three files for each view.
func large(n int) tree {
	want := make(tree, n)
	for i := 0; len(want) < n; i++ {
		dir := fmt.Sprintf("projects/p%03d/com.inductiveautomation.perspective/views/Area %02d/Line %02d/v%d/", i/900, i%900/30, i%30, i)
		for _, f := range []string{"resource.json", "thumbnail.png", "view.json"} {
			want[dir+f] = file{content: strings.Repeat(fmt.Sprintf("%s %d\n", f, i), 40)}
		}
	}
	return want
}

func synced(b *testing.B, n int) (string, *Dir, tree) {
	b.Helper()
	root := seeded(b)
	d := open(b, root, Options{})
	want := large(n)
	apply(b, d, want)
	return root, d, want
}

// BenchmarkApplyOneFileOf100k measures one durable update, from Stage to the end of Apply, among 100,000 owned files. The goal for a
// snapshot is 3 ms more.
func BenchmarkApplyOneFileOf100k(b *testing.B) {
	for _, o := range []Snapshots{{}, {Gateway: "site", Keep: 5, MaxBytes: 1 << 30}} {
		b.Run(fmt.Sprintf("snapshots %d", o.Keep), func(b *testing.B) {
			_, d, want := synced(b, 100_000)
			var path string
			for p := range want {
				path = p
				break
			}
			rec, _, err := d.Manifest().Get(path)
			require.NoError(b, err)
			was := rec.Have
			for i := 0; b.Loop(); i++ {
				content := fmt.Sprintf("%d", i)
				st, err := d.Stat(path)
				require.NoError(b, err)
				c := plan.Change{Op: plan.Update, Path: path, ID: safe.BlobID([]byte(content)), Found: st, FoundID: was, Owned: true}
				was = c.ID
				s, err := d.Stage(b.Context(), &plan.Changes{To: was, List: []plan.Change{c}}, nil, func(w io.Writer, _ plan.Change) error {
					_, err := io.WriteString(w, content)
					return err
				})
				require.NoError(b, err)
				if o.Keep > 0 {
					require.NoError(b, s.Snapshot(o))
				}
				_, err = s.Apply(b.Context(), plan.Header{Commit: was})
				require.NoError(b, err)
			}
		})
	}
}

// BenchmarkRestore100Files measures the restore of a snapshot of 100 files among 10,000.
func BenchmarkRestore100Files(b *testing.B) {
	_, d, want := synced(b, 10_000)
	other := maps.Clone(want)
	for _, p := range slices.Sorted(maps.Keys(want))[:100] {
		other[p] = file{content: "changed"}
	}
	syncTo(b, d, other, anySnapshots)
	for b.Loop() {
		names := ids(b, d)
		_, err := takeBack(b, d, names[len(names)-1], nil)
		require.NoError(b, err)
	}
}

// BenchmarkDriftByStat measures a drift check by stat alone. The goal is 15 µs per file.
func BenchmarkDriftByStat(b *testing.B) {
	const n = 20_000
	_, d, _ := synced(b, n)
	for b.Loop() {
		got, err := d.Drift(b.Context(), false)
		require.NoError(b, err)
		require.Zero(b, got.Files)
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/n, "µs/file")
}

// BenchmarkFirstSyncOf2000Files compares the cost of durability: none, one syncfs, or one fsync per file.
func BenchmarkFirstSyncOf2000Files(b *testing.B) {
	for _, mode := range []struct {
		name string
		o    Options
	}{{"none", Options{around: quick}}, {"syncfs", Options{}}, {"fsync", Options{FsyncFiles: 1 << 20}}} {
		b.Run(mode.name, func(b *testing.B) {
			want := large(2000)
			for b.Loop() {
				d, err := Open(seeded(b), mode.o)
				require.NoError(b, err)
				apply(b, d, want)
				require.NoError(b, d.Close())
			}
		})
	}
}

// BenchmarkRecord adds a line to a full audit record, and a report of changes.
func BenchmarkRecord(b *testing.B) {
	root := seeded(b)
	d := open(b, root, Options{})
	line, diff := bytes.Repeat([]byte("x"), 400), bytes.Repeat([]byte("x"), 20<<10)
	put(b, root, ".stoker/"+records.AuditFile, strings.Repeat(string(line)+"\n", records.MaxAudit/(len(line)+1)))
	for b.Loop() {
		require.NoError(b, d.AddAudit(line))
		_, err := d.AddDiff("area-4", time.Now(), diff)
		require.NoError(b, err)
	}
}
