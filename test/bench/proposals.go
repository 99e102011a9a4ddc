package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/test/bench/repository"
	"stoker.io/stoker/test/gitserver"
)

// proposalCases measure an agent that proposes changes of its gateway to git, in the order of the measurements.
var proposalCases = []benchCase{
	{name: "compare", title: "comparison of all files, nothing changed"},
	{name: "base", title: "reading what git has"},
	{name: "walk", title: "walk for new files"},
	{name: "still", title: "nothing happens"},
	{name: "save", title: "one view saved"},
	{name: "merge", title: "the save merged"},
	{name: "plain", title: "one file changed in git"},
	{name: "hung", title: "one file changed in git, while a push hangs"},
	{name: "large", title: "28 MiB saved"},
}

const (
	withFeature    = "feature on"
	withoutFeature = "feature off"
)

// proposalFigures are the numbers of one size that the goals need in addition to the samples of the agents.
type proposalFigures struct {
	ratios          []float64        // CPU time of a comparison with the feature, divided by that without
	requests, bytes map[string]int64 // to and from the git server while nothing happens
	forgeRequests   int64            // while nothing happens
	deflated        []int64          // compressed size of the files of each save, in bytes
	writes, scans   int              // of files and by the gateway, in the syncs of all merges
	reports         []int            // in the sync of each merge
	delays          []time.Duration  // by how much a hanging push delays the file of each commit
	binary          int64            // size of the agent, in bytes
}

// proposals measures what it costs to propose changes of a gateway to git.
func proposals(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	s, err := parse(args, stderr, "M,L")
	if err != nil {
		return err
	}
	return s.within(ctx, stderr, func(ctx context.Context, programs programs, work string, progress *log.Logger) error {
		all, figures := results{}, map[string]*proposalFigures{}
		for _, size := range s.sizes {
			x := &proposalBench{settings: s, all: all, figures: &proposalFigures{requests: map[string]int64{}, bytes: map[string]int64{}}}
			figures[size.Name] = x.figures
			if err := x.run(ctx, size, programs, filepath.Join(work, size.Name), progress); err != nil {
				return fmt.Errorf("size %s: %w", size.Name, err)
			}
		}
		return writeProposals(stdout, s, all, figures)
	})
}

// proposalBench measures one repository.
type proposalBench struct {
	*bench
	settings settings
	all      results
	figures  *proposalFigures
	// on proposes changes, and off does not.
	on, off *agentWithGateway
	views   []view
	writer  *repository.Writer
	saves   int
}

func (x *proposalBench) run(ctx context.Context, size size, programs programs, work string, progress *log.Logger) (err error) {
	generated, err := repository.Generate(ctx, x.settings.cache, size.Size)
	if err != nil {
		return err
	}
	remote, err := repository.NewRemote(ctx, generated, filepath.Join(work, "remote"), gitserver.Options{Pushes: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remote.Server.Close()) }()
	x.bench, x.writer = newBench(size, remote, work, progress), repository.NewWriter(2, size.Mean)
	info, err := os.Stat(programs.agent)
	if err != nil {
		return err
	}
	x.figures.binary = info.Size()
	x.agent = programs.agent
	for _, p := range repository.Layout(size.Files) {
		if project, dir, ok := strings.Cut(p.Name, "/com.inductiveautomation.perspective/views/"); ok && p.Kind == repository.ViewFile {
			x.views = append(x.views, view{strings.TrimPrefix(project, "projects/"), "com.inductiveautomation.perspective/views/" + strings.TrimSuffix(dir, "/view.json")})
		}
	}
	if err := remote.Push(ctx, remote.Refs[repository.Base]); err != nil {
		return err
	}
	f, err := newForge()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	if x.on, err = newAgentWithGateway(x.bench, "on", fmt.Sprintf(withForge, f.url)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.on.close()) }()
	if x.off, err = newAgentWithGateway(x.bench, "off", ""); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.off.close()) }()
	for _, a := range []*agentWithGateway{x.on, x.off} {
		if err := a.ready(ctx); err != nil {
			return err
		}
	}
	x.log.Printf("%s: first syncs done", size.Name)
	for _, step := range []func(context.Context) error{
		x.compare,
		func(ctx context.Context) error { return x.measureIdle(ctx, f) },
		x.save, x.compareDuringHungPush, x.saveLarge,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (x *proposalBench) addSample(c, who string, s sample) {
	x.log.Printf("%s: %s, %s: %s, CPU %s, anon %s MiB", x.size.Name, c, who, s.wall.Round(time.Millisecond), s.cpu.Round(time.Millisecond), mebibytes(s.anon))
	x.all.add(x.size.Name, c, who, s)
}

// measureIdle watches both agents at the same time, while nothing happens. About once a minute, after ten comparisons, the
// agent with the feature also looks for new files.
func (x *proposalBench) measureIdle(ctx context.Context, f *forge) error {
	for _, a := range []*agentWithGateway{x.on, x.off} {
		if err := a.ready(ctx); err != nil {
			return err
		}
	}
	if err := pause(ctx, 2*syncPeriod); err != nil { // the first comparison and the first walk after the start
		return err
	}
	settle(ctx)
	x.remote.Server.Forget()
	f.requests.Store(0)
	load := loadAverage()
	end := map[string]func() sample{withFeature: x.on.meter(), withoutFeature: x.off.meter()}
	if err := pause(ctx, x.settings.idle); err != nil {
		return err
	}
	for who, stop := range end {
		s := stop()
		s.load = load
		x.addSample("still", who, s)
	}
	for _, r := range x.remote.Server.Requests() {
		x.figures.requests["all"]++
		x.figures.bytes["all"] += r.In + r.Out
	}
	x.figures.forgeRequests = f.requests.Load()
	return x.on.setBidirectional(withoutForge) // from here on only the branch counts
}

// meter measures an agent until the returned function is called.
func (a *agentWithGateway) meter() (stop func() sample) {
	pid := a.cmd.Process.Pid
	watch, cpu, began := watchMemory(pid), cpuTime(pid), time.Now()
	return func() sample {
		return sample{wall: time.Since(began), cpu: cpuTime(pid) - cpu, anon: watch.stop()}
	}
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	if !backoff.Wait(ctx, d) {
		return context.Cause(ctx)
	}
	return nil
}

// content returns a new version of a view.
func (x *proposalBench) content() map[string][]byte {
	return map[string][]byte{"view.json": []byte(x.writer.Content(repository.Path{Kind: repository.ViewFile}))}
}

// nextView returns the view to save. Each is 9.7 % of the views after the one before, so saves are spread over all of them.
func (x *proposalBench) nextView() view {
	x.saves++
	return x.views[(x.saves*97*len(x.views)/1000)%len(x.views)]
}

// branchTip returns the commit of the proposal's branch on the server, or "" if there is no such branch.
func (x *proposalBench) branchTip() string {
	id, _ := os.ReadFile(filepath.Join(x.remote.Dir, "refs", "heads", filepath.FromSlash(branch)))
	return strings.TrimSpace(string(id))
}

// waitPushed waits until the branch is another commit than before.
func (x *proposalBench) waitPushed(ctx context.Context, before string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		if tip := x.branchTip(); tip != before {
			return tip, nil
		}
		select {
		case <-ctx.Done():
			state, _ := x.on.state(context.WithoutCancel(ctx))
			return "", fmt.Errorf("the branch does not change: %s %s; the proposal: %+v: %s", state.Phase, state.Message, state.Proposal, x.on.log.Tail())
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// save saves a view, waits for the branch, and merges it, in each round. The agent without the feature gets the same
// save, because the work that it does for a save is not a cost of the feature.
func (x *proposalBench) save(ctx context.Context) error {
	for range x.settings.rounds {
		v, files, load := x.nextView(), x.content(), loadAverage()
		settle(ctx)
		x.remote.Server.Forget()
		before := x.branchTip()
		stop, began := x.on.meter(), time.Now()
		if err := x.on.save(ctx, v, files); err != nil {
			return err
		}
		tip, err := x.waitPushed(ctx, before)
		if err != nil {
			return err
		}
		took := time.Since(began)
		if err := pause(ctx, syncPeriod); err != nil { // what the agent does afterwards counts
			return err
		}
		s := stop()
		window := s.wall
		s.wall, s.load = took, load
		for _, r := range x.remote.Server.Requests() {
			if r.Service == gitserver.ReceivePack {
				s.pack += r.In
			}
		}
		x.addSample("save", withFeature, s)
		deflated, err := x.remote.DeflatedSize(ctx, tip)
		if err != nil {
			return err
		}
		x.figures.deflated = append(x.figures.deflated, deflated)

		load, stop, began = loadAverage(), x.off.meter(), time.Now()
		if err := x.off.save(ctx, v, files); err != nil {
			return err
		}
		if err := pause(ctx, window-time.Since(began)); err != nil {
			return err
		}
		s = stop()
		s.wall, s.load = 0, load
		x.addSample("save", withoutFeature, s)
		if err := x.merge(ctx, tip); err != nil {
			return err
		}
	}
	return nil
}

// merge moves main to the commit of the branch, whose content the gateway already has.
func (x *proposalBench) merge(ctx context.Context, tip string) error {
	scans, load := x.on.scans(), loadAverage()
	s, state, reports, err := x.measureSync(ctx, x.on, tip)
	if err != nil {
		return err
	}
	s.load = load
	x.addSample("merge", withFeature, s)
	x.figures.writes += state.Report.Files.Added + state.Report.Files.Modified + state.Report.Files.Deleted
	x.figures.scans += x.on.scans() - scans
	x.figures.reports = append(x.figures.reports, reports)
	for x.branchTip() != "" { // the agent deletes the branch
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// measureSync moves main, makes an agent poll git, and waits until it is Synced. reports is the number of syncs that the
// agent reported.
func (x *proposalBench) measureSync(ctx context.Context, a *agentWithGateway, commit string) (s sample, reached state, reports int, err error) {
	since, err := a.state(ctx)
	if err != nil {
		return s, reached, 0, err
	}
	if err := x.remote.Push(ctx, commit); err != nil {
		return s, reached, 0, err
	}
	stop := a.meter()
	if err := a.triggerSync(); err != nil {
		return s, reached, 0, err
	}
	reached, err = a.waitSynced(ctx, commit, since.started())
	s = stop()
	if err != nil {
		return s, reached, 0, err
	}
	seen := map[time.Time]bool{reached.started(): true}
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		now, err := a.state(ctx)
		if err != nil {
			return s, reached, 0, err
		}
		seen[now.started()] = true
	}
	return s, reached, len(seen), nil
}

// pictureSize is the size of one of the three pictures that saveLarge saves: 28 MiB together.
const pictureSize = 9<<20 + 256<<10

// saveLarge saves three views with a large picture each, which no compression makes smaller.
func (x *proposalBench) saveLarge(ctx context.Context) error {
	if err := pause(ctx, syncPeriod); err != nil {
		return err
	}
	random := rand.NewChaCha8([32]byte{1})
	var views []view
	var files []map[string][]byte
	for range 3 {
		picture := make([]byte, pictureSize)
		_, _ = random.Read(picture) // never fails
		content := x.content()
		content["thumbnail.png"] = append([]byte("\x89PNG\r\n\x1a\n"), picture...)
		views, files = append(views, x.nextView()), append(files, content)
	}
	before, load := x.branchTip(), loadAverage()
	x.remote.Server.Forget()
	stop, began := x.on.meter(), time.Now()
	for i, v := range views {
		if err := x.on.save(ctx, v, files[i]); err != nil {
			return err
		}
	}
	if _, err := x.waitPushed(ctx, before); err != nil {
		return err
	}
	s := stop()
	window := s.wall
	s.wall, s.load = time.Since(began), load
	x.addSample("large", withFeature, s)
	stop, began = x.off.meter(), time.Now()
	for i, v := range views {
		if err := x.off.save(ctx, v, files[i]); err != nil {
			return err
		}
	}
	if err := pause(ctx, window-time.Since(began)); err != nil {
		return err
	}
	s = stop()
	s.wall = 0
	x.addSample("large", withoutFeature, s)
	return nil
}
