package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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
