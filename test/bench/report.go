package main

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// results holds the samples by size, case and contestant.
type results map[key][]sample

type key struct{ size, benchCase, contestant string }

const (
	once     = "agent --once"
	resident = "agent, resident"
	rsync    = "git + checkout + rsync -c"
	fetch    = "git fetch alone"
)

func (r results) add(size, benchCase, contestant string, s sample) {
	k := key{size, benchCase, contestant}
	r[k] = append(r[k], s)
}

// median returns the median of a figure; ok is false where nothing was measured.
func median[T cmp.Ordered](r results, k key, figure func(sample) T) (m T, ok bool) {
	samples := r[k]
	if len(samples) == 0 {
		return m, false
	}
	var all []T
	for _, s := range samples {
		all = append(all, figure(s))
	}
	slices.Sort(all)
	return all[len(all)/2], true
}

func wall(s sample) time.Duration { return s.wall }
func cpu(s sample) time.Duration  { return s.cpu }
func anon(s sample) int64         { return s.anon }
func pack(s sample) int64         { return s.pack }
func fetches(s sample) int        { return s.fetches }
func kept(s sample) int64         { return s.disk }
func changed(s sample) int64      { return s.changed }

// write prints one table a size, and the goals.
func (r results) write(out io.Writer, s settings) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Bench\n\n%s/%s, %d cores, %s, %d rounds, medians. Times in seconds. Anonymous memory is the peak of the process tree; "+
		"kept is what lies on the disk beside the live data.\n", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), s.rounds)
	for _, size := range s.sizes {
		fmt.Fprintf(&b, "\n## %s: %d files\n\n", size.name, size.files)
		t := table(&b, "work", "who", "wall", "from – to", "CPU", "anon MiB", "pack bytes", "kept MB")
		for _, c := range s.cases {
			for _, who := range []string{once, resident, rsync, fetch} {
				r.row(t, c, key{size.name, c.name, who})
			}
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	b.WriteString("\n## Goals\n\n")
	t := table(&b, "goal", "measured", "")
	for _, g := range r.goals(s) {
		fmt.Fprintf(t, "| %s\t| %s\t| %s\t|\n", g.what, g.measured, g.verdict)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// table starts a Markdown table whose columns line up in a terminal too.
func table(out io.Writer, columns ...string) *tabwriter.Writer {
	t := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	for _, c := range columns {
		fmt.Fprintf(t, "| %s\t", c)
	}
	fmt.Fprint(t, "|\n")
	for range columns {
		fmt.Fprint(t, "| ---\t")
	}
	fmt.Fprint(t, "|\n")
	return t
}

func (r results) row(out io.Writer, c benchCase, k key) {
	w, ok := median(r, k, wall)
	if !ok {
		return
	}
	compare := func(a, b sample) int { return cmp.Compare(a.wall, b.wall) }
	low, high := slices.MinFunc(r[k], compare).wall, slices.MaxFunc(r[k], compare).wall
	used, _ := median(r, k, cpu)
	memory, _ := median(r, k, anon)
	bytes, _ := median(r, k, pack)
	disk, _ := median(r, k, kept)
	fmt.Fprintf(out, "| %s\t| %s\t| %.3f\t| %.3f – %.3f\t| %.3f\t| %s\t| %d\t| %.1f\t|\n",
		c.title, k.contestant, w.Seconds(), low.Seconds(), high.Seconds(), used.Seconds(), mebibytes(memory), bytes, float64(disk)/1e6)
}

// mebibytes prints memory; where the system does not tell it there is none.
func mebibytes(n int64) string {
	if n == 0 {
		return "?"
	}
	return fmt.Sprintf("%.1f", float64(n)/(1<<20))
}
