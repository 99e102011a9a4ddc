package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"syscall"
	"time"

	"stoker.io/stoker/agent/connect"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/propose"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/standalone"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1/effective"
)

// compareRounds is how often compare compares all files with the feature and without.
const compareRounds = 7

// compare measures the comparison of all files with the feature and without, in turns, and the walk for new files. The agent's
// engine runs in the bench itself meanwhile, so that nothing else is measured.
func (x *proposalBench) compare(ctx context.Context) (err error) {
	// Both start again, so that neither has memory from its first sync.
	if err := errors.Join(x.on.agentResident.close(), x.off.agentResident.close()); err != nil {
		return err
	}
	gs, _, err := standalone.Load(x.on.file())
	if err != nil {
		return err
	}
	profile, err := effective.Of(gs, "", nil)
	if err != nil {
		return err
	}
	facts := plan.Facts{GatewayName: "plant-1", PodName: "plant-1", Namespace: gs.Namespace, CRName: gs.Name}
	silent := slog.New(slog.DiscardHandler)
	settings := connect.ProposalSettings(gs, profile, propose.Identity{Namespace: facts.Namespace, Gateway: facts.GatewayName}, connect.LocalSecrets{Dir: filepath.Join(x.on.dir, "secrets")}, repo.RemoteOptions{Log: silent})
	if settings.Problem != nil {
		return settings.Problem
	}
	defer func() { err = errors.Join(err, settings.Remote.Close()) }()
	store, err := repo.Open(x.on.repo(), repo.StoreOptions{Log: silent})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	engine := sync.New(sync.Config{DataDir: x.on.data(), Store: store, Log: silent, Limits: plan.Limits{Files: 2_000_000}})
	defer func() { err = errors.Join(err, engine.Close()) }()
	check := func() error {
		drift, err := engine.Drift(ctx, false)
		if err == nil && (drift.Checked != x.size.Files || drift.Files != 0) {
			err = fmt.Errorf("%d of %d files were compared, and %d have changed", drift.Checked, x.size.Files, drift.Files)
		}
		return err
	}
	if err := check(); err != nil { // opens the directory
		return err
	}
	for range compareRounds {
		var with, without sample
		engine.Watch(nil)
		if without, err = timed(check); err != nil {
			return err
		}
		x.addSample("compare", withoutFeature, without)
		engine.Watch(settings.Watches)
		if with, err = timed(check); err != nil {
			return err
		}
		x.addSample("compare", withFeature, with)
		x.figures.ratios = append(x.figures.ratios, float64(with.cpu)/float64(without.cpu))
	}
	for range compareRounds {
		var base propose.Base
		load, err := timed(func() (err error) {
			base, err = engine.Base(ctx, settings.Remote, sync.Task{Profile: profile, Facts: facts})
			return err
		})
		if err != nil {
			return err
		}
		x.addSample("base", withFeature, load)
		walk, err := timed(func() error {
			added, err := engine.Added(ctx, base)
			if err == nil && len(added) > 0 {
				err = fmt.Errorf("%d new files were found, such as %s", len(added), added[0])
			}
			return err
		})
		if err != nil {
			return err
		}
		x.addSample("walk", withFeature, walk)
	}
	return nil
}

// timed measures a function of this process.
func timed(f func() error) (s sample, err error) {
	var before, after syscall.Rusage
	s.load = loadAverage()
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &before); err != nil {
		return s, err
	}
	began := time.Now()
	err = f()
	s.wall = time.Since(began)
	if err == nil {
		err = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
	}
	s.cpu = time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
	return s, err
}
