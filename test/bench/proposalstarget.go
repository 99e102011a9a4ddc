package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"stoker.io/stoker/test/bench/repository"
	"stoker.io/stoker/test/gitserver"
)

// targetCommits is the number of measured commits, both while a push hangs and while none does.
const targetCommits = 9

// compareDuringHungPush compares how soon both agents have the file of a new commit, first while nothing is pushed, then
// while the push of one of them hangs. They run without gateways, because a scan takes longer than everything else.
func (x *proposalBench) compareDuringHungPush(ctx context.Context) error {
	for _, a := range []*agentWithGateway{x.on, x.off} {
		if err := a.restartWithoutGateway(ctx); err != nil {
			return err
		}
	}
	if err := x.compareTargets(ctx, "plain"); err != nil {
		return err
	}
	remove := x.remote.Server.Inject(gitserver.Stall(0).On(gitserver.ReceivePack))
	if err := x.on.save(ctx, x.nextView(), x.content()); err != nil {
		return err
	}
	for x.remote.Server.InFlight() == 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	if err := x.compareTargets(ctx, "hung"); err != nil {
		return err
	}
	remove()
	if err := x.on.restartWithoutGateway(ctx); err != nil { // ends the wait for the server's answer
		return err
	}
	_, err := x.waitPushed(ctx, "") // the server has it, or gets it now
	return err
}

// compareTargets measures both agents on the same commits, in turns.
func (x *proposalBench) compareTargets(ctx context.Context, c string) error {
	for range targetCommits {
		commit, file, err := x.nextCommit(ctx)
		if err != nil {
			return err
		}
		load := loadAverage()
		var walls []time.Duration
		for _, a := range []*agentWithGateway{x.off, x.on} {
			s, err := x.measureArrival(ctx, a, commit, filepath.Join(a.data(), filepath.FromSlash(file)))
			if err != nil {
				return err
			}
			s.load = load
			x.addSample(c, map[bool]string{true: withFeature, false: withoutFeature}[a == x.on], s)
			walls = append(walls, s.wall)
		}
		if c == "hung" {
			if x.remote.Server.InFlight() == 0 {
				return errors.New("the push does not hang any more")
			}
			x.figures.delays = append(x.figures.delays, walls[1]-walls[0])
		}
	}
	return nil
}

// measureArrival moves main, makes an agent poll git, and measures until the commit's file is on the disk.
func (x *proposalBench) measureArrival(ctx context.Context, a *agentWithGateway, commit, file string) (s sample, err error) {
	since, err := a.state(ctx)
	if err != nil {
		return s, err
	}
	before, err := os.Stat(file)
	if err != nil {
		return s, err
	}
	if err := x.remote.Push(ctx, commit); err != nil {
		return s, err
	}
	stop := a.meter()
	if err := a.triggerSync(); err != nil {
		return s, err
	}
	for {
		now, err := os.Stat(file)
		if err == nil && !os.SameFile(before, now) {
			break
		}
		select {
		case <-ctx.Done():
			return s, ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	s = stop()
	_, err = a.waitSynced(ctx, commit, since.started())
	return s, err
}

// nextCommit returns a new commit after main, and the file that it changes, which no Designer saves.
func (x *proposalBench) nextCommit(ctx context.Context) (commit, file string, err error) {
	head, err := x.remote.Head(ctx)
	if err != nil {
		return "", "", err
	}
	all := repository.Layout(x.size.Files)
	at := all[slices.IndexFunc(all, func(p repository.Path) bool { return p.Kind == repository.ScriptFile })]
	err = repository.FastImport(ctx, x.remote.Dir, func(out *bufio.Writer) {
		fmt.Fprintf(out, "commit refs/bench/more\ncommitter Bench <bench@example.com> %d +0000\ndata 6\ncommit\nfrom %s\n", time.Now().Unix(), head)
		repository.WriteFile(out, repository.Mapped+at.Name, x.writer.Content(at))
	})
	if err != nil {
		return "", "", err
	}
	commit, err = repository.GitOutput(ctx, x.remote.Dir, nil, "rev-parse", "refs/bench/more")
	return commit, at.Name, err
}

// writeProposals prints a table per size, and the goals.
func writeProposals(out io.Writer, s settings, all results, figures map[string]*proposalFigures) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Changes of a gateway, back to git\n\n%s/%s, %d cores, %s, %d rounds, medians. Times in seconds; those of a save end when the branch is on the server, "+
		"and include the debounce of %s. CPU is that of the agent.%s\n", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), s.rounds, debounce, all.loads())
	for _, size := range s.sizes {
		fmt.Fprintf(&b, "\n## %s: %s\n\n", size.Name, size)
		t := table(&b, "work", "agent", "wall", "from – to", "CPU", "anon MiB", "pushed bytes")
		for _, c := range proposalCases {
			for _, who := range []string{withFeature, withoutFeature} {
				all.proposalRow(t, c, key{size.Name, c.name, who})
			}
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	b.WriteString("\n## Goals\n\n")
	t := table(&b, "goal", "measured", "")
	for _, size := range s.sizes {
		g := judge{all, size, nil}
		g.proposals(figures[size.Name])
		for _, goal := range g.found {
			fmt.Fprintf(t, "| %s\t| %s\t| %s\t|\n", goal.what, goal.measured, goal.verdict)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(out, b.String())
	return err
}

func (r results) proposalRow(out io.Writer, c benchCase, k key) {
	w, ok := median(r, k, wall)
	if !ok {
		return
	}
	compare := func(a, b sample) int { return cmp.Compare(a.wall, b.wall) }
	low, high := slices.MinFunc(r[k], compare).wall, slices.MaxFunc(r[k], compare).wall
	took, span := "", ""
	if w > 0 {
		took, span = figure(w.Seconds(), 3), fmt.Sprintf("%.3f – %.3f", low.Seconds(), high.Seconds())
	}
	used, _ := median(r, k, cpu)
	memory, _ := median(r, k, anon)
	bytes, _ := median(r, k, pack)
	fmt.Fprintf(out, "| %s\t| %s\t| %s\t| %s\t| %s\t| %s\t| %s\t|\n",
		c.title, k.contestant, took, span, figure(used.Seconds(), 3), figure(float64(memory)/(1<<20), 1), figure(float64(bytes), 0))
}

// walkGoal is how long the walk for new files may take.
func walkGoal(files int) time.Duration {
	if files <= 10_000 {
		return 60 * time.Millisecond
	}
	return 800 * time.Millisecond
}

// Goals of proposals.
const (
	ownCPU      = 100 * time.Millisecond
	packSlack   = 64 << 10
	moreMemory  = 8 << 20
	maxTotal    = 32 << 20 // guardrails.maxTotalSize
	targetDelay = 50 * time.Millisecond
	maxAgent    = 53 << 20 // as agent/settings_test.go
)

func middle[T cmp.Ordered](list []T) (m T) {
	if len(list) == 0 {
		return m
	}
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}

// proposals compares the figures of one size with the goals.
func (g *judge) proposals(f *proposalFigures) {
	at := func(c, who string, figure func(sample) time.Duration) time.Duration {
		d, _ := median(g.r, g.key(c, who), figure)
		return d
	}
	more := func(c string) int64 {
		with, _ := median(g.r, g.key(c, withFeature), anon)
		without, _ := median(g.r, g.key(c, withoutFeature), anon)
		return with - without
	}
	ratio := middle(f.ratios)
	g.add(ratio <= 1.15, "comparison of all files, nothing changed: at most 1.15 × the CPU of one without the feature", fmt.Sprintf("%.2f ×", ratio))
	walk, limit := at("walk", withFeature, wall), walkGoal(g.size.Files)
	g.add(walk <= limit, fmt.Sprintf("walk for new files: at most %d ms", limit.Milliseconds()), fmt.Sprintf("%d ms; CPU %d ms", walk.Milliseconds(), at("walk", withFeature, cpu).Milliseconds()))
	g.add(f.requests["all"] == 0 && f.forgeRequests == 0, "nothing happens: no request to the git server or the forge, with the feature and without",
		fmt.Sprintf("%d requests to the git server, %d bytes; %d to the forge", f.requests["all"], f.bytes["all"], f.forgeRequests))
	g.add(more("still") <= moreMemory, "nothing happens: at most 8 MiB more anonymous memory than without the feature", signed(more("still")))
	saved := at("save", withFeature, wall)
	g.add(saved <= debounce+2*time.Second, "one view saved: on the server within 2 s after the debounce", fmt.Sprintf("%.2f s after it", (saved-debounce).Seconds()))
	walking := at("walk", withFeature, cpu)
	own := at("save", withFeature, cpu) - at("save", withoutFeature, cpu)
	g.add(own <= ownCPU+walking, "one view saved: at most 100 ms of CPU more than without the feature, besides a walk for new files",
		fmt.Sprintf("%d ms in all; a walk takes %d", own.Milliseconds(), walking.Milliseconds()))
	sent, _ := median(g.r, g.key("save", withFeature), pack)
	g.add(sent <= middle(f.deflated)+packSlack, "one view saved: at most 64 KiB of pack besides the compressed files", fmt.Sprintf("%d bytes for files of %d", sent, middle(f.deflated)))
	g.add(more("save") <= moreMemory, "one view saved: at most 8 MiB more anonymous memory than without the feature", signed(more("save")))
	g.add(more("large") <= maxTotal+moreMemory, "28 MiB saved: at most 40 MiB more than without the feature: maxTotalSize, and the 8 above", signed(more("large")))
	merged := at("merge", withFeature, wall)
	g.add(f.writes == 0 && f.scans <= len(f.reports) && slices.Max(f.reports) == 1 && merged <= time.Second, "the save merged: no write, one scan, one report, within 1 s",
		fmt.Sprintf("%d writes, %d scans, %d report, %.3f s", f.writes, f.scans, slices.Max(f.reports), merged.Seconds()))
	g.add(middle(f.delays) <= targetDelay, "one file changed in git, while a push hangs: delayed by at most 50 ms", fmt.Sprintf("%d ms", middle(f.delays).Milliseconds()))
	g.add(f.binary <= maxAgent, "the agent: at most 53 MiB", fmt.Sprintf("%.1f MiB", float64(f.binary)/(1<<20)))
}

// signed formats a difference of memory.
func signed(n int64) string { return fmt.Sprintf("%+.1f MiB", float64(n)/(1<<20)) }
