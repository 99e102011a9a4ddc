package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"stoker.io/stoker/test/bench/repository"
	"stoker.io/stoker/test/gitserver"
)

// safeCases are the work of an agent that takes snapshots, in the order in which it is measured.
var safeCases = []benchCase{
	{name: "first", title: "first sync", fresh: true},
	{name: "one", title: "one file changed", series: "one"},
	{name: "hundred", title: "hundred files changed", series: "hundred"},
	{name: "few", title: "restore of hundred files"},
	{name: "whole", title: "all files changed"},
	{name: "all", title: "restore of all files"},
}

const (
	withSnapshots    = "with snapshots"
	withoutSnapshots = "without"
	keptSnapshots    = 5
)

// safeFigures are what the goals need beside the samples of the agents, per size.
type safeFigures struct {
	snapshots, manifest, changed int64    // bytes of the kept snapshots, of the manifest, and of the files that they hold
	requests                     int      // of restores, for a pack
	left                         []string // files of snapshots that the agent without snapshots has
	binary                       int64
}

// safe measures what snapshots and restores cost.
func safe(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	s, err := parse(args, stderr, "M,L")
	if err != nil {
		return err
	}
	return s.within(ctx, stderr, func(ctx context.Context, programs programs, work string, progress *log.Logger) error {
		all, figures := results{}, map[string]*safeFigures{}
		for _, size := range s.sizes {
			x := &safeBench{s: s, all: all, fig: &safeFigures{}}
			figures[size.Name] = x.fig
			if err := x.run(ctx, size, programs, filepath.Join(work, size.Name), progress); err != nil {
				return fmt.Errorf("size %s: %w", size.Name, err)
			}
		}
		return writeSafe(stdout, s, all, figures)
	})
}

// safeBench measures one repository.
type safeBench struct {
	*bench
	s   settings
	all results
	fig *safeFigures
	// on takes snapshots, and off does not.
	on, off *agentOnce
}

func (x *safeBench) run(ctx context.Context, size size, programs programs, work string, progress *log.Logger) (err error) {
	generated, err := repository.Generate(ctx, x.s.cache, size.Size)
	if err != nil {
		return err
	}
	remote, err := repository.NewRemote(ctx, generated, filepath.Join(work, "remote"), gitserver.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remote.Server.Close()) }()
	x.bench = newBench(size, remote, work, progress)
	info, err := os.Stat(programs.agent)
	if err != nil {
		return err
	}
	x.fig.binary = info.Size()
	if x.on, err = newAgent(programs.agent, filepath.Join(work, "on"), remote.URL()); err != nil {
		return err
	}
	if x.off, err = newAgent(programs.agent, filepath.Join(work, "off"), remote.URL()); err != nil {
		return err
	}
	err = errors.Join(x.ask(""), os.WriteFile(x.off.file(), fmt.Appendf(nil, gatewaySync+rarely, remote.URL()), 0o644))
	if err != nil {
		return err
	}
	first := func(ctx context.Context) error { return x.turns(ctx, "first", 1, x.on, x.off) }
	for _, step := range []func(context.Context) error{first, x.one, x.hundred, x.whole} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	x.fig.left, err = filepath.Glob(filepath.Join(x.off.data(), ".stoker", "snapshots", "*"))
	return err
}

// rarely keeps resident agents from polling git before they are told to.
const rarely = "  polling: {interval: 1h}\n"

// ask sets the snapshot that the agent with snapshots restores; "" for none.
func (x *safeBench) ask(id string) error {
	more := rarely + fmt.Sprintf("  snapshots: {enabled: true, retentionCount: %d, maxSize: 4Gi}\n", keptSnapshots)
	if id != "" {
		more += fmt.Sprintf("  rollback: {toSnapshot: %s}\n", id)
	}
	return os.WriteFile(x.on.file(), fmt.Appendf(nil, gatewaySync+more, x.remote.URL()), 0o644)
}

func (x *safeBench) add(c, who string, s sample) {
	x.log.Printf("%s: %s, %s: %.3f s, CPU %.3f s, anon %s MiB", x.size.Name, c, who, s.wall.Seconds(), s.cpu.Seconds(), mebibytes(s.anon))
	x.all.add(x.size.Name, c, who, s)
}

// turns measures a case with both agents. Which one begins changes with each round.
func (x *safeBench) turns(ctx context.Context, name string, rounds int, on, off contestant) error {
	c := safeCases[slices.IndexFunc(safeCases, func(c benchCase) bool { return c.name == name })]
	for n := range rounds {
		agents := []contestant{on, off}
		if n%2 == 1 {
			slices.Reverse(agents)
		}
		for _, a := range agents {
			load := loadAverage()
			s, err := x.round(ctx, c, a)
			if err != nil {
				return fmt.Errorf("%s: %w", c.title, err)
			}
			s.load = load
			x.add(name, map[bool]string{true: withSnapshots, false: withoutSnapshots}[a == on], s)
		}
	}
	return nil
}

// beside is turns with agents as they run beside a gateway. The answer to a poll of their state lists their snapshots, which takes CPU time. So
// they are polled less often than in other cases.
func (x *safeBench) beside(ctx context.Context, name string, rounds int) error {
	const tick = 50 * time.Millisecond
	on, off := &agentResident{agentOnce: x.on, remote: x.remote, pollInterval: tick}, &agentResident{agentOnce: x.off, remote: x.remote, pollInterval: tick}
	err := errors.Join(on.ready(ctx), off.ready(ctx)) // before the commits of the case arrive
	if err == nil {
		err = x.turns(ctx, name, rounds, on, off)
	}
	return errors.Join(err, on.close(), off.close())
}

// one follows commits of one file. The rounds are as many as there can be, because the difference is a few milliseconds at most, and more
// than the snapshots that are kept.
func (x *safeBench) one(ctx context.Context) error {
	if err := x.beside(ctx, "one", repository.MaxRounds); err != nil {
		return err
	}
	own := filepath.Join(x.on.data(), ".stoker")
	displaced, err := filepath.Glob(filepath.Join(own, "snapshots", "*", "*-*")) // beside manifest and journal
	if err != nil {
		return err
	}
	for of, files := range map[*int64][]string{
		&x.fig.snapshots: {filepath.Join(own, "snapshots")}, &x.fig.changed: displaced, &x.fig.manifest: {filepath.Join(own, "manifest")},
	} {
		if *of, err = dirSize(files...); err != nil {
			return err
		}
	}
	return nil
}

// hundred follows commits of a hundred files. Then it restores the last of them in each round.
func (x *safeBench) hundred(ctx context.Context) error {
	if err := x.beside(ctx, "hundred", x.s.rounds); err != nil {
		return err
	}
	for range x.s.rounds {
		if err := x.restore(ctx, "few"); err != nil {
			return err
		}
		// A commit that was rolled back stays blocked until another one is requested.
		at := x.commits[x.on.home()]
		before, err := x.remote.Parent(ctx, at)
		if err := errors.Join(err, x.syncTo(ctx, x.on, before), x.syncTo(ctx, x.on, at)); err != nil {
			return err
		}
	}
	return nil
}

// whole changes every file, and restores them.
func (x *safeBench) whole(ctx context.Context) error {
	content := repository.NewWriter(3, min(x.size.Mean, 3_000))
	at := x.commits[x.on.home()]
	err := repository.FastImport(ctx, x.remote.Dir, func(out *bufio.Writer) {
		fmt.Fprintf(out, "commit refs/bench/whole/1\ncommitter Bench <bench@example.com> %d +0000\ndata 6\ncommit\nfrom %s\n", repository.FirstCommitTime, at)
		for _, p := range repository.Layout(x.size.Files) {
			text := content.Content(p)
			if p.Kind == repository.UnaryFile || p.Kind == repository.ProjectFile { // these have one content
				text += "\n"
			}
			repository.WriteFile(out, repository.Mapped+p.Name, text)
		}
	})
	if err != nil {
		return err
	}
	if x.remote.Refs["refs/bench/whole/1"], err = repository.GitOutput(ctx, x.remote.Dir, nil, "rev-parse", "refs/bench/whole/1"); err != nil {
		return err
	}
	load := loadAverage()
	if err := x.remote.Push(ctx, x.remote.Refs["refs/bench/whole/1"]); err != nil {
		return err
	}
	for _, a := range []*agentOnce{x.on, x.off} {
		settle(ctx)
		s, err := a.sync(ctx)
		if err != nil {
			return err
		}
		s.load = load
		x.add("whole", map[bool]string{true: withSnapshots, false: withoutSnapshots}[a == x.on], s)
	}
	return x.restore(ctx, "all")
}

// restore takes back the last sync of the agent with snapshots, checks one file, and counts the requests for a pack.
func (x *safeBench) restore(ctx context.Context, c string) error {
	id, err := x.newest(ctx)
	if err != nil {
		return err
	}
	if err := x.ask(id); err != nil {
		return err
	}
	settle(ctx)
	x.remote.Server.Forget()
	load := loadAverage()
	s, err := x.on.sync(ctx)
	if err == nil || !strings.Contains(err.Error(), "Restored") {
		return fmt.Errorf("restore %s: want the reason Restored, got %w", id, err)
	}
	s.load = load
	x.fig.requests += x.remote.Server.Stats().UploadPacks
	x.add(c, withSnapshots, s)
	return errors.Join(x.ask(""), x.isBack(ctx))
}

// isBack checks that a file that the last commit changed has its earlier content.
func (x *safeBench) isBack(ctx context.Context) error {
	head, err := x.remote.Head(ctx)
	if err != nil {
		return err
	}
	list, err := repository.GitOutput(ctx, x.remote.Dir, nil, "diff-tree", "-r", "--name-only", "--no-renames", head+"^", head, "--", repository.Mapped)
	if err != nil {
		return err
	}
	name, _, _ := strings.Cut(list, "\n")
	want, err := exec.CommandContext(ctx, "git", "-C", x.remote.Dir, "cat-file", "blob", head+"^:"+name).Output()
	if err != nil {
		return err
	}
	got, err := os.ReadFile(filepath.Join(x.on.data(), filepath.FromSlash(strings.TrimPrefix(name, repository.Mapped))))
	if err == nil && !bytes.Equal(got, want) {
		err = fmt.Errorf("%s was not restored", name)
	}
	return err
}

// newest returns the id of the last snapshot.
func (x *safeBench) newest(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, x.on.binary, "snapshots", "list", "--data-dir", x.on.data(), "-o", "json").Output()
	if err != nil {
		return "", fmt.Errorf("list snapshots: %w", err)
	}
	var list []struct{ ID string }
	if err := json.Unmarshal(out, &list); err != nil {
		return "", err
	}
	if len(list) == 0 {
		return "", fs.ErrNotExist
	}
	return slices.MaxFunc(list, func(a, b struct{ ID string }) int { return strings.Compare(a.ID, b.ID) }).ID, nil
}

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

// safeGoals compares the figures with the goals. A time or a size of memory that was not measured misses its goal.
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
