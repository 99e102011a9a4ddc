package main

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"
)

// Goals of safe changes.
const (
	snapshotOfOne     = 3 * time.Millisecond
	snapshotOfHundred = 0.05
	restoreOfFew      = 500 * time.Millisecond
	restorePerFile    = 600 * time.Microsecond // 6 s for 10,000 files
	restoreOfAll      = 30 * time.Second       // for 100,000
	snapshotBytes     = 40 << 20
	snapshotNotes     = 16 << 10 // of a snapshot, beside the manifest and the files
)

// writeSafe prints a table per size, and the goals.
func writeSafe(out io.Writer, s settings, all results, figures map[string]*safeFigures) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Safe changes\n\n%s/%s, %d cores, %s, %d rounds, medians. Times in seconds. One and hundred files are synced by resident agents, the rest by a process for one sync.%s\n",
		runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), s.rounds, all.loads())
	for _, size := range s.sizes {
		fmt.Fprintf(&b, "\n## Snapshots, %s: %s\n\n", size.name, size)
		t := table(&b, "work", "agent", "wall", "from – to", "CPU", "anon MiB", "pack bytes", "kept MB")
		for _, c := range safeCases {
			for _, who := range []string{withSnapshots, withoutSnapshots} {
				all.row(t, c, key{size.name, c.name, who})
			}
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	b.WriteString("\n## Goals\n\n")
	t := table(&b, "goal", "measured", "")
	for _, goal := range safeGoals(s, all, figures) {
		fmt.Fprintf(t, "| %s\t| %s\t| %s\t|\n", goal.what, goal.measured, goal.verdict)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// least returns the smallest of a figure: of short syncs, the one that the machine disturbed least.
func least[T cmp.Ordered](r results, k key, figure func(sample) T) (m T) {
	for i, s := range r[k] {
		if v := figure(s); i == 0 || v < m {
			m = v
		}
	}
	return m
}

// safeGoals compares the figures with the goals.
func safeGoals(s settings, all results, figures map[string]*safeFigures) []goal {
	var found []goal
	for _, size := range s.sizes {
		g, f := judge{all, size, nil}, figures[size.name]
		at := func(c string, figure func(sample) time.Duration) time.Duration {
			d, _ := median(g.r, g.key(c, withSnapshots), figure)
			return d
		}
		applying := func(s sample) time.Duration { return s.apply }
		one, _ := median(g.r, g.key("one", withSnapshots), applying)
		without, _ := median(g.r, g.key("one", withoutSnapshots), applying)
		g.add(one > 0 && one-without <= snapshotOfOne, "one file changed: applying it takes at most 3 ms more than without snapshots",
			fmt.Sprintf("%+.1f ms; %.1f without", milliseconds(one-without), milliseconds(without)))
		hundred, without := least(g.r, g.key("hundred", withSnapshots), cpu), least(g.r, g.key("hundred", withoutSnapshots), cpu)
		g.add(float64(hundred) <= (1+snapshotOfHundred)*float64(without), "hundred files changed: at most 5 % more CPU time than without snapshots, the least of each",
			fmt.Sprintf("%+.1f %%; %.0f ms without", 100*(float64(hundred)/float64(max(without, 1))-1), milliseconds(without)))
		few := at("few", wall)
		g.add(few <= restoreOfFew, "restore of hundred files: at most 0.5 s", fmt.Sprintf("%.3f s; CPU %.3f", few.Seconds(), at("few", cpu).Seconds()))
		whole, limit := at("all", wall), max(restoreOfFew, min(time.Duration(size.files)*restorePerFile, restoreOfAll))
		g.add(whole <= limit, fmt.Sprintf("restore of all files: at most %.2g s", limit.Seconds()), fmt.Sprintf("%.3f s; CPU %.3f", whole.Seconds(), at("all", cpu).Seconds()))
		g.add(f.requests == 0, "restores: no request for a pack", fmt.Sprintf("%d requests", f.requests))
		most := min(keptSnapshots*(f.manifest+snapshotNotes)+f.changed, snapshotBytes)
		g.add(f.snapshots <= most, fmt.Sprintf("%d snapshots of one file: at most as many manifests and the changed files; at most 40 MiB", keptSnapshots),
			fmt.Sprintf("%.2f MB; %.2f allowed", float64(f.snapshots)/1e6, float64(most)/1e6))
		first, _ := median(g.r, g.key("first", withSnapshots), anon)
		restored, _ := median(g.r, g.key("all", withSnapshots), anon)
		g.add(restored <= first, "restore of all files: at most the anonymous memory of a first sync", fmt.Sprintf("%s MiB against %s", mebibytes(restored), mebibytes(first)))
		g.add(len(f.left) == 0, "nothing enabled: nothing of a snapshot on the disk", fmt.Sprintf("%d names", len(f.left)))
		g.add(f.binary <= maxAgent, "the agent: at most 59 MiB", fmt.Sprintf("%.1f MiB", float64(f.binary)/(1<<20)))
		found = append(found, g.found...)
	}
	return found
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
