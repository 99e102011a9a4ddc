package main

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"
)

// Goals of safe changes: what a snapshot adds to a sync, how long a restore takes, and how much room snapshots need.
const (
	maxSnapshotTime  = 3 * time.Millisecond // more than the apply step of one file takes without snapshots
	maxSnapshotCPU   = 0.05                 // more than the CPU time of a sync of a hundred files without snapshots
	maxRestore       = 500 * time.Millisecond
	maxRestoreByFile = 600 * time.Microsecond // of a restore of all files: 6 s for 10,000
	maxRestoreOfAll  = 30 * time.Second       // for 100,000 files and more
	maxSnapshotBytes = 40 << 20
	snapshotNotes    = 16 << 10 // of one snapshot, beside the manifest and the files
)

// writeSafe prints a table per size, and the goals.
func writeSafe(out io.Writer, s settings, all results, figures map[string]*safeFigures) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Safe changes\n\n%s/%s, %d cores, %s, %d rounds, medians. Times in seconds. One and hundred files are synced by resident agents, the rest by a process for one sync.%s\n",
		runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), s.rounds, all.loads())
	for _, size := range s.sizes {
		fmt.Fprintf(&b, "\n## Snapshots, %s: %s\n\n", size.Name, size)
		t := table(&b, "work", "agent", "wall", "from – to", "CPU", "anon MiB", "pack bytes", "kept MB")
		for _, c := range safeCases {
			for _, who := range []string{withSnapshots, withoutSnapshots} {
				all.row(t, c, key{size.Name, c.name, who})
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

// least returns the minimum of a figure. For short syncs it is less noisy than the median.
func least[T cmp.Ordered](r results, k key, figure func(sample) T) (m T) {
	for i, s := range r[k] {
		if v := figure(s); i == 0 || v < m {
			m = v
		}
	}
	return m
}

// safeGoals compares the figures with the goals. A figure that was not measured misses its goal.
func safeGoals(s settings, all results, figures map[string]*safeFigures) []goal {
	var found []goal
	for _, size := range s.sizes {
		g, f := judge{all, size, nil}, figures[size.Name]
		middle := func(c, contestant string, figure func(sample) time.Duration) time.Duration {
			d, _ := median(g.r, g.key(c, contestant), figure)
			return d
		}
		within := func(measured, most time.Duration) bool { return measured > 0 && measured <= most }
		apply := func(s sample) time.Duration { return s.apply }

		applyWith, applyWithout := middle("one", withSnapshots, apply), middle("one", withoutSnapshots, apply)
		g.add(applyWithout > 0 && within(applyWith, applyWithout+maxSnapshotTime),
			fmt.Sprintf("one file changed: applying it takes at most %.0f ms more than without snapshots", milliseconds(maxSnapshotTime)),
			fmt.Sprintf("%+.1f ms; %.1f without", milliseconds(applyWith-applyWithout), milliseconds(applyWithout)))

		cpuWith, cpuWithout := least(g.r, g.key("hundred", withSnapshots), cpu), least(g.r, g.key("hundred", withoutSnapshots), cpu)
		g.add(within(cpuWith, time.Duration((1+maxSnapshotCPU)*float64(cpuWithout))),
			fmt.Sprintf("hundred files changed: at most %.0f %% more CPU time than without snapshots, the least of each", 100*maxSnapshotCPU),
			fmt.Sprintf("%+.1f %%; %.0f ms without", 100*(float64(cpuWith)/float64(max(cpuWithout, 1))-1), milliseconds(cpuWithout)))

		few := middle("few", withSnapshots, wall)
		g.add(within(few, maxRestore), fmt.Sprintf("restore of hundred files: at most %.2g s", maxRestore.Seconds()),
			fmt.Sprintf("%.3f s; CPU %.3f", few.Seconds(), middle("few", withSnapshots, cpu).Seconds()))

		whole, limit := middle("all", withSnapshots, wall), max(maxRestore, min(time.Duration(size.Files)*maxRestoreByFile, maxRestoreOfAll))
		g.add(within(whole, limit), fmt.Sprintf("restore of all files: at most %.2g s", limit.Seconds()),
			fmt.Sprintf("%.3f s; CPU %.3f", whole.Seconds(), middle("all", withSnapshots, cpu).Seconds()))
		g.add(f.requests == 0, "restores: no request for a pack", fmt.Sprintf("%d requests", f.requests))

		most := min(keptSnapshots*(f.manifest+snapshotNotes)+f.changed, maxSnapshotBytes)
		g.add(f.snapshots > 0 && f.snapshots <= most,
			fmt.Sprintf("%d snapshots of one file: at most a manifest and 16 kB each, and the changed files; at most 40 MiB", keptSnapshots),
			fmt.Sprintf("%.2f MB; %.2f allowed", float64(f.snapshots)/1e6, float64(most)/1e6))

		first, _ := median(g.r, g.key("first", withSnapshots), anon)
		restored, _ := median(g.r, g.key("all", withSnapshots), anon)
		g.add(restored > 0 && restored <= first, "restore of all files: at most the anonymous memory of a first sync",
			fmt.Sprintf("%s MiB against %s", mebibytes(restored), mebibytes(first)))
		g.add(len(f.left) == 0, "nothing enabled: nothing of a snapshot on the disk", fmt.Sprintf("%d names", len(f.left)))
		g.add(f.binary <= maxAgent, "the agent: at most 53 MiB", fmt.Sprintf("%.1f MiB", float64(f.binary)/(1<<20)))
		found = append(found, g.found...)
	}
	return found
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
