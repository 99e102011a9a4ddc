package main

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// results has the samples by size, case and contestant.
type results map[key][]sample

type key struct{ size, benchCase, contestant string }

const (
	once       = "agent --once"
	resident   = "agent, resident"
	unchecked  = "agent, resident, references ignored"
	unsynced   = "agent --once, nothing durable"
	guaranteed = "agent --once, in a Guaranteed pod"
	rsync      = "git + checkout + rsync -c"
	fetch      = "git fetch alone"
)

func (r results) add(size, benchCase, contestant string, s sample) {
	k := key{size, benchCase, contestant}
	r[k] = append(r[k], s)
}

// median returns the median of a figure; ok is false if nothing was measured.
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

// write prints one table per size, and the goals.
func (r results) write(out io.Writer, s settings) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Bench\n\n%s/%s, %d cores, %s, %d rounds, medians. Times in seconds. Anonymous memory is the peak of the process tree; "+
		"kept is what lies on the disk beside the live data.%s\n", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), s.rounds, r.loads())
	for _, size := range s.sizes {
		fmt.Fprintf(&b, "\n## %s: %s\n\n", size.Name, size)
		t := table(&b, "work", "who", "wall", "from – to", "CPU", "anon MiB", "pack bytes", "kept MB")
		for _, c := range s.cases {
			for _, who := range []string{once, guaranteed, unsynced, resident, unchecked, rsync, fetch} {
				r.row(t, c, key{size.Name, c.name, who})
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

// loads describes how busy the machine was, with the bench and other processes. If others were busy, wall times mean
// little.
func (r results) loads() string {
	var all []float64
	for _, samples := range r {
		for _, s := range samples {
			all = append(all, s.load)
		}
	}
	if len(all) == 0 || slices.Max(all) == 0 {
		return ""
	}
	slices.Sort(all)
	return fmt.Sprintf(" Load average of the machine meanwhile: %.1f, from %.1f to %.1f; the bench alone makes about 1.", all[len(all)/2], all[0], all[len(all)-1])
}

// table starts a Markdown table whose columns are also aligned in a terminal.
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
	if n := r.killed(k); n > 0 {
		fmt.Fprintf(out, "| %s\t| %s\t| killed (%d of %d)\t| \t| \t| \t| \t| \t|\n", c.title, k.contestant, n, len(r[k]))
		return
	}
	compare := func(a, b sample) int { return cmp.Compare(a.wall, b.wall) }
	low, high := slices.MinFunc(r[k], compare).wall, slices.MaxFunc(r[k], compare).wall
	used, _ := median(r, k, cpu)
	memory, _ := median(r, k, anon)
	bytes, _ := median(r, k, pack)
	disk, _ := median(r, k, kept)
	fmt.Fprintf(out, "| %s\t| %s\t| %.3f\t| %.3f – %.3f\t| %s\t| %s\t| %d\t| %s\t|\n",
		c.title, k.contestant, w.Seconds(), low.Seconds(), high.Seconds(), figure(used.Seconds(), 3), figure(float64(memory)/(1<<20), 1), bytes, figure(float64(disk)/1e6, 1))
}

// figure formats a number; 0 means not measured.
func figure(n float64, digits int) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatFloat(n, 'f', digits, 64)
}

// killed returns how many rounds ended for lack of memory.
func (r results) killed(k key) (n int) {
	for _, s := range r[k] {
		if s.killed {
			n++
		}
	}
	return n
}

// mebibytes formats memory, or "?" if it is unknown.
func mebibytes(n int64) string {
	if n == 0 {
		return "?"
	}
	return fmt.Sprintf("%.1f", float64(n)/(1<<20))
}
