package main

import (
	"bufio"
	"bytes"
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
	left                         []string // what only snapshots leave in the agent's folder, found without them
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

// ask sets the snapshot that the first agent restores; "" for none.
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

// beside is turns with agents as they run beside a gateway. Each poll of their state takes some of their CPU time: the more, the more
// snapshots it lists. So the polls are few.
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

// hundred follows commits of a hundred files, and takes each of them back.
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

// whole changes every file, and takes that back.
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

// restore takes back the last sync of the agent with snapshots, and checks one file and that no bytes came from git.
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
