package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/test/bench/repository"
)

// checkDrift compares all files of the agent's data directory, as the resident agent does every half minute. It runs in
// the bench itself, so that nothing else is measured.
func checkDrift(ctx context.Context, b *bench, who contestant) (s sample, err error) {
	agent, ok := who.(*agentOnce)
	if !ok {
		return s, fmt.Errorf("%s keeps no record of its files", who.name())
	}
	dir, err := disk.Open(agent.data(), disk.Options{})
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	var before, after syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &before); err != nil {
		return s, err
	}
	began := time.Now()
	drift, err := dir.Drift(ctx, false)
	s.wall = time.Since(began)
	if err != nil {
		return s, err
	}
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &after); err != nil {
		return s, err
	}
	s.cpu = time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
	if drift.Checked != b.size.Files || drift.Files != 0 || drift.Hashed != 0 {
		return s, fmt.Errorf("%d of %d files were looked at, %d read, %d changed: none of them was touched", drift.Checked, b.size.Files, drift.Hashed, drift.Files)
	}
	return s, nil
}

// age walks the resident agent through many commits, and samples what it keeps. The result has the time per commit, and
// the maximum that was kept.
func age(ctx context.Context, b *bench, who contestant) (s sample, err error) {
	n := b.size.Commits
	start, err := b.remote.Parent(ctx, b.remote.Commit("aged", 1))
	if err != nil {
		return s, err
	}
	b.commits[who.home()] = "" // start with a store of one commit
	if err := b.syncTo(ctx, who, start); err != nil {
		return s, err
	}
	const looks = 50
	var wall, cpu time.Duration
	for i := 1; i <= n; i++ {
		if err := b.remote.Push(ctx, b.remote.Commit("aged", i)); err != nil {
			return s, err
		}
		step, err := who.sync(ctx)
		if err != nil {
			return s, fmt.Errorf("commit %d: %w", i, err)
		}
		wall, cpu = wall+step.wall, cpu+step.cpu
		s.anon = max(s.anon, step.anon)
		s.pack, s.fetches = s.pack+b.remote.Server.Stats().PackBytes, s.fetches+b.remote.Server.Stats().UploadPacks
		if i%max(n/looks, 1) == 0 {
			kept, err := dirSize(who.kept()...)
			if err != nil {
				return s, err
			}
			s.disk = max(s.disk, kept)
		}
	}
	b.commits[who.home()] = b.remote.Commit("aged", n)
	s.wall, s.cpu = wall/time.Duration(n), cpu/time.Duration(n)
	s.pack /= int64(n)
	return s, nil
}

// crowd lets many resident agents with their own data directories fetch the same commit at the same time. They and the
// server share this machine. The time is that of the last one.
func crowd(ctx context.Context, b *bench, _ contestant) (s sample, err error) {
	agents, err := b.startCrowd(ctx)
	defer func() {
		for _, a := range agents {
			err = errors.Join(err, a.close())
		}
	}()
	if err != nil {
		return s, err
	}
	b.next["crowd"]++
	want := b.remote.Commit("one", b.next["crowd"])
	if err := b.remote.Push(ctx, want); err != nil {
		return s, err
	}
	began := time.Now()
	ended := make([]time.Time, len(agents))
	err = together(agents, func(i int, a *agentResident) error {
		if err := a.triggerSync(); err != nil {
			return err
		}
		at, err := a.waitSynced(ctx, want, began)
		if err != nil {
			return err
		}
		took, err := time.ParseDuration(at.Report.Duration)
		ended[i] = at.started().Add(took)
		return err
	})
	if err != nil {
		return s, err
	}
	for _, t := range ended {
		s.wall = max(s.wall, t.Sub(began))
	}
	stats := b.remote.Server.Stats()
	s.pack, s.fetches, s.asked = stats.PackBytes, stats.UploadPacks, stats.Advertisements
	s.changed, err = b.remote.ChangedBytes(ctx, want)
	return s, err
}

// startCrowd starts the crowd at the previous commit, a few agents at a time, because this is not measured.
func (b *bench) startCrowd(ctx context.Context) ([]*agentResident, error) {
	before := b.remote.Refs[repository.Base]
	if n := b.next["crowd"]; n > 0 {
		before = b.remote.Commit("one", n)
	}
	if err := b.remote.Push(ctx, before); err != nil {
		return nil, err
	}
	b.crowdCount++
	var agents []*agentResident
	for i := range b.size.agents {
		dir := filepath.Join(b.work, fmt.Sprintf("crowd-%d-%d", b.crowdCount, i))
		once, err := newAgent(b.agent, dir, b.remote.URL())
		if err != nil {
			return agents, err
		}
		a := &agentResident{agentOnce: once, remote: b.remote, pollInterval: 200 * time.Millisecond}
		agents = append(agents, a)
	}
	for start := 0; start < len(agents); start += 4 {
		err := together(agents[start:min(start+4, len(agents))], func(_ int, a *agentResident) error {
			return errors.Join(a.reset(ctx), a.ready(ctx))
		})
		if err != nil {
			return agents, err
		}
	}
	return agents, nil
}

// together calls do for all agents concurrently.
func together(agents []*agentResident, do func(i int, a *agentResident) error) error {
	errs := make([]error, len(agents))
	var all sync.WaitGroup
	for i, a := range agents {
		all.Go(func() { errs[i] = do(i, a) })
	}
	all.Wait()
	return errors.Join(errs...)
}
