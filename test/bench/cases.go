package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// benchCase is one kind of work.
type benchCase struct {
	name, title string
	// line is the line of commits that the rounds walk; "" stays at the commit that is there.
	line  string
	fresh bool // from an empty workspace
	lost  loss
}

// cases, in the order in which the rounds walk the history.
var cases = []benchCase{
	{name: "first", title: "first sync", fresh: true},
	{name: "nothing", title: "nothing to do"},
	{name: "one", title: "one file changed", line: "one"},
	{name: "merge", title: "merge of an older branch", line: "merge"},
	{name: "hundred", title: "hundred files changed", line: "hundred"},
	{name: "adopt", title: "manifest lost, nothing changed", lost: manifest},
	{name: "lost", title: "store lost, nothing changed", lost: store},
	{name: "late", title: "store lost, one file changed", lost: store, line: "late"},
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
	remote      *remote
	contestants []contestant
	at          map[string]string // contestant → commit of its workspace
	talk        *log.Logger
}

func benchSize(ctx context.Context, s settings, size size, agent, work string, talk *log.Logger, all results) (err error) {
	began := time.Now()
	generated, err := generate(ctx, s.cache, size)
	if err != nil {
		return err
	}
	talk.Printf("%s: %d files in %s (%s)", size.name, size.files, generated, time.Since(began).Round(time.Second))
	remote, err := newRemote(ctx, generated, filepath.Join(work, "remote"))
	if err != nil {
		return err
	}
	b := &bench{remote: remote, at: map[string]string{}, talk: talk}
	defer func() {
		for _, c := range b.contestants {
			err = errors.Join(err, c.close())
		}
		err = errors.Join(err, remote.server.Close())
	}()
	if err := b.invite(agent, work); err != nil {
		return err
	}
	return b.run(ctx, s, size, all)
}

// run lets the contestants take turns.
func (b *bench) run(ctx context.Context, s settings, size size, all results) error {
	for _, c := range s.cases {
		for round := 1; round <= s.rounds; round++ {
			for _, who := range b.contestants {
				if !who.can(c) {
					continue
				}
				sample, err := b.round(ctx, c, who, round)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", c.title, who.name(), err)
				}
				b.talk.Printf("%s: %s, %s: %s", size.name, c.title, who.name(), sample.wall.Round(time.Millisecond))
				all.add(size.name, c.name, who.name(), sample)
			}
		}
	}
	return nil
}

// invite makes the contestants.
func (b *bench) invite(agent, work string) error {
	url := b.remote.url()
	once, err := newAgent(agent, filepath.Join(work, "once"), url)
	if err != nil {
		return err
	}
	stays, err := newAgent(agent, filepath.Join(work, "resident"), url)
	if err != nil {
		return err
	}
	b.contestants = []contestant{once, &agentResident{agentOnce: stays, remote: b.remote}}
	if _, err := exec.LookPath("rsync"); err != nil {
		b.talk.Print("rsync is not installed: git + checkout + rsync -c takes no part (install rsync and run again)")
	} else {
		b.contestants = append(b.contestants, &checkout{filepath.Join(work, "checkout"), filepath.Join(work, "live"), url})
	}
	b.contestants = append(b.contestants, &fetchOnly{filepath.Join(work, "fetch"), url})
	return nil
}

// round prepares a workspace and measures one sync in it.
func (b *bench) round(ctx context.Context, c benchCase, who contestant, round int) (sample, error) {
	target := b.remote.refs[baseRef]
	if at := b.at[who.name()]; at != "" {
		target = at
	}
	var changed int64
	if c.line != "" {
		target = b.remote.commit(c.line, round)
		before, err := b.remote.parent(ctx, target)
		if err != nil {
			return sample{}, err
		}
		if err := b.bring(ctx, who, before); err != nil {
			return sample{}, err
		}
		if changed, err = b.remote.changedBytes(ctx, target); err != nil {
			return sample{}, err
		}
	} else if !c.fresh {
		if err := b.bring(ctx, who, target); err != nil {
			return sample{}, err
		}
	}
	if c.fresh {
		if err := who.reset(ctx); err != nil {
			return sample{}, err
		}
	}
	if c.lost != nothing {
		if err := who.lose(ctx, c.lost); err != nil {
			return sample{}, err
		}
	}
	settle(ctx)
	if err := b.remote.push(ctx, target); err != nil {
		return sample{}, err
	}
	s, err := who.sync(ctx)
	b.at[who.name()] = target
	if err != nil {
		return s, err
	}
	stats := b.remote.server.Stats()
	s.pack, s.fetches, s.changed = stats.PackBytes, stats.UploadPacks, changed
	s.disk, err = dirSize(who.kept()...)
	return s, err
}

// bring puts a workspace at a commit, untimed.
func (b *bench) bring(ctx context.Context, who contestant, commit string) error {
	if b.at[who.name()] == commit {
		return nil
	}
	if err := b.remote.push(ctx, commit); err != nil {
		return err
	}
	if b.at[who.name()] == "" {
		if err := who.reset(ctx); err != nil {
			return err
		}
	}
	b.at[who.name()] = commit
	_, err := who.sync(ctx)
	return err
}

// settle writes out what earlier runs left to the kernel, so that nobody waits for somebody else's disk.
func settle(ctx context.Context) {
	cmd := exec.CommandContext(ctx, "sync")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	_ = cmd.Run() // without it the figures are only noisier
}
