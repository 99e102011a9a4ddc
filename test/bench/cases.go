package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"time"

	"stoker.io/stoker/test/bench/repository"
)

// benchCase is one kind of work.
type benchCase struct {
	name, title string
	// series is the series of commits that the rounds follow; "" stays at the current commit.
	series string
	fresh  bool // starts with an empty workspace
	lost   loss
	only   string // the only contestant that takes part; "" for all
	// do, if set, measures something other than a sync to the remote's main. It updates bench.commits itself.
	do func(ctx context.Context, b *bench, who contestant) (sample, error)
}

// cases are in the order of the measurement. A case with a series starts at the parent of the commit that it syncs to; another case starts at
// the commit at which the one before ended.
var cases = []benchCase{
	{name: "first", title: "first sync", fresh: true},
	{name: "nothing", title: "nothing to do"},
	{name: "one", title: "one file changed", series: "one"},
	{name: "merge", title: "merge of an older branch", series: "merge"},
	{name: "hundred", title: "hundred files changed", series: "hundred"},
	{name: "adopt", title: "manifest lost, nothing changed", lost: loseManifest},
	{name: "lost", title: "store lost, nothing changed", lost: loseStore},
	{name: "late", title: "store lost, one file changed", lost: loseStore, series: "late"},
	{name: "drift", title: "drift check by stat", only: once, do: checkDrift},
}

func caseNames() []string {
	var names []string
	for _, c := range cases {
		names = append(names, c.name)
	}
	return names
}

// bench measures one repository.
type bench struct {
	size        size
	agent       string // the binary
	work        string
	remote      *repository.Remote
	contestants []contestant
	commits     map[string]string // home → its current commit
	next        map[string]int    // home and series → number of synced commits of the series
	log         *log.Logger
}

// round prepares a workspace and measures one piece of work in it.
func (b *bench) round(ctx context.Context, c benchCase, who contestant) (sample, error) {
	target, err := b.prepare(ctx, c, who)
	if err != nil {
		return sample{}, err
	}
	var changed int64
	if c.series != "" {
		if changed, err = b.remote.ChangedBytes(ctx, target); err != nil {
			return sample{}, err
		}
	}
	settle(ctx)
	load := loadAverage()
	if err := b.remote.Push(ctx, target); err != nil {
		return sample{}, err
	}
	if c.do != nil {
		s, err := c.do(ctx, b, who)
		s.load = load
		return s, err
	}
	s, err := who.sync(ctx)
	s.load = load
	b.commits[who.home()] = target
	if err != nil {
		return s, err
	}
	stats := b.remote.Server.Stats()
	s.pack, s.fetches, s.changed = stats.PackBytes, stats.UploadPacks, changed
	s.disk, err = dirSize(who.kept()...)
	return s, err
}

// prepare brings a workspace to the start of the work, and returns the target commit.
func (b *bench) prepare(ctx context.Context, c benchCase, who contestant) (target string, err error) {
	target = b.remote.Refs[repository.Base]
	if at := b.commits[who.home()]; at != "" {
		target = at
	}
	if c.fresh {
		return target, who.reset(ctx)
	}
	before := target
	if c.series != "" {
		key := who.home() + " " + c.series
		b.next[key]++
		target = b.remote.Commit(c.series, b.next[key])
		if before, err = b.remote.Parent(ctx, target); err != nil {
			return "", err
		}
	}
	if err := b.syncTo(ctx, who, before); err != nil {
		return "", err
	}
	if c.lost != loseNothing {
		return target, who.lose(ctx, c.lost)
	}
	return target, nil
}

// syncTo syncs a workspace to a commit, untimed. An error ends the whole measurement.
func (b *bench) syncTo(ctx context.Context, who contestant, commit string) error {
	at := b.commits[who.home()]
	if at != commit {
		if err := b.remote.Push(ctx, commit); err != nil {
			return err
		}
	}
	if at == "" {
		if err := who.reset(ctx); err != nil {
			return err
		}
	}
	b.commits[who.home()] = commit
	if err := who.ready(ctx); err != nil {
		return err
	}
	if at == commit {
		return nil
	}
	_, err := who.sync(ctx)
	return errors.Join(err, who.ready(ctx))
}

// settle flushes the writes of earlier runs, so that they do not slow down the next one.
func settle(ctx context.Context) {
	cmd := exec.CommandContext(ctx, "sync")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	_ = cmd.Run() // without it the figures are only noisier
}

// run lets the contestants take turns.
func (b *bench) run(ctx context.Context, s settings, all results) error {
	for _, c := range s.cases {
		if !b.size.has(c) {
			continue
		}
		for range s.rounds {
			for _, who := range b.contestants {
				if !who.can(c) {
					continue
				}
				sample, err := b.round(ctx, c, who)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", c.title, who.name(), err)
				}
				b.log.Printf("%s: %s, %s: %s", b.size.Name, c.title, who.name(), sample.wall.Round(time.Millisecond))
				all.add(b.size.Name, c.name, who.name(), sample)
			}
		}
	}
	return nil
}
