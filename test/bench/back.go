package main

import (
	"bytes"
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"stoker.io/stoker/test/gitserver"
)

// backCases measure an agent that sends changes of its gateway back to git, in this order.
var backCases = []benchCase{
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
	proposing = "feature on"
	off       = "feature off"
)

// backFigures has the figures of a size that the goals need beside the samples of the agents.
type backFigures struct {
	ratios          []float64 // of the CPU time of comparisons with the feature to those without
	requests, bytes map[string]int64
	asked           int64 // requests to the forge
	deflated        []int64
	writes, scans   int
	reports         []int
	delays          []time.Duration
	binary          int64
}

// back measures what it costs to send changes of a gateway back to git.
func back(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	s, err := parse(args, stderr, "M,L")
	if err != nil {
		return err
	}
	return s.within(ctx, stderr, func(ctx context.Context, programs programs, work string, talk *log.Logger) error {
		all, figures := results{}, map[string]*backFigures{}
		for _, size := range s.sizes {
			x := &backBench{s: s, all: all, figures: &backFigures{requests: map[string]int64{}, bytes: map[string]int64{}}}
			figures[size.name] = x.figures
			if err := x.run(ctx, size, programs, filepath.Join(work, size.name), talk); err != nil {
				return fmt.Errorf("size %s: %w", size.name, err)
			}
		}
		return writeBack(stdout, s, all, figures)
	})
}

// backBench measures one repository.
type backBench struct {
	*bench
	s       settings
	all     results
	figures *backFigures
	// on proposes changes, and off does not.
	on, off *agentBeside
	views   []view
	writer  *writer
	saves   int
}

func (x *backBench) run(ctx context.Context, size size, programs programs, work string, talk *log.Logger) (err error) {
	generated, err := generate(ctx, x.s.cache, size)
	if err != nil {
		return err
	}
	remote, err := newRemote(ctx, generated, filepath.Join(work, "remote"), gitserver.Options{Pushes: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remote.server.Close()) }()
	if x.bench, x.writer = newBench(size, remote, work, talk), newWriter(2, size.mean); x.figures.binary == 0 {
		info, err := os.Stat(programs.agent)
		if err != nil {
			return err
		}
		x.figures.binary = info.Size()
	}
	x.agent = programs.agent
	for _, p := range layout(size.files) {
		if project, dir, ok := strings.Cut(p.name, "/com.inductiveautomation.perspective/views/"); ok && p.kind == viewFile {
			x.views = append(x.views, view{strings.TrimPrefix(project, "projects/"), "com.inductiveautomation.perspective/views/" + strings.TrimSuffix(dir, "/view.json")})
		}
	}
	if err := remote.push(ctx, remote.refs[baseRef]); err != nil {
		return err
	}
	f, err := newForge()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	if x.on, err = newAgentBeside(x.bench, "on", fmt.Sprintf(withForge, f.url)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.on.close()) }()
	if x.off, err = newAgentBeside(x.bench, "off", ""); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.off.close()) }()
	for _, a := range []*agentBeside{x.on, x.off} {
		if err := a.ready(ctx); err != nil {
			return err
		}
	}
	x.log.Printf("%s: first syncs done", size.name)
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

func (x *backBench) addSample(c, who string, s sample) {
	x.log.Printf("%s: %s, %s: %s, CPU %s, anon %s MiB", x.size.name, c, who, s.wall.Round(time.Millisecond), s.cpu.Round(time.Millisecond), mebibytes(s.anon))
	x.all.add(x.size.name, c, who, s)
}

// measureIdle watches both agents at the same time, while nothing happens. In a minute one of them also walks once.
func (x *backBench) measureIdle(ctx context.Context, f *forge) error {
	for _, a := range []*agentBeside{x.on, x.off} {
		if err := a.ready(ctx); err != nil {
			return err
		}
	}
	time.Sleep(2 * syncPeriod) // the first comparison and the first walk after the start
	settle(ctx)
	x.remote.server.Forget()
	f.requests.Store(0)
	load := loadAverage()
	end := map[string]func() sample{proposing: x.on.meter(), off: x.off.meter()}
	select {
	case <-time.After(x.s.idle):
	case <-ctx.Done():
		return ctx.Err()
	}
	for who, stop := range end {
		s := stop()
		s.load = load
		x.addSample("still", who, s)
	}
	for _, r := range x.remote.server.Requests() {
		x.figures.requests["all"]++
		x.figures.bytes["all"] += r.In + r.Out
	}
	x.figures.asked = f.requests.Load()
	return x.on.setBidirectional(withoutForge) // from here on only the branch counts
}

// meter measures an agent until the returned function is called.
func (a *agentBeside) meter() (stop func() sample) {
	pid := a.cmd.Process.Pid
	watch, cpu, began := watchMemory(pid), cpuTime(pid), time.Now()
	return func() sample {
		return sample{wall: time.Since(began), cpu: cpuTime(pid) - cpu, anon: watch.stop()}
	}
}

// content returns a new version of a view.
func (x *backBench) content() map[string][]byte {
	return map[string][]byte{"view.json": []byte(x.writer.content(path{kind: viewFile}))}
}

// nextView returns the view to save. Successive ones are spread over the first project.
func (x *backBench) nextView() view {
	x.saves++
	return x.views[(x.saves*97*len(x.views)/1000)%len(x.views)]
}

// branchTip returns the commit of the proposal's branch on the server, or "" if there is no such branch.
func (x *backBench) branchTip() string {
	id, _ := os.ReadFile(filepath.Join(x.remote.dir, "refs", "heads", filepath.FromSlash(branch)))
	return strings.TrimSpace(string(id))
}

// waitPushed waits until the branch is another commit than before.
func (x *backBench) waitPushed(ctx context.Context, before string) (string, error) {
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
// save, because the work that it does for a save is no cost of the feature.
func (x *backBench) save(ctx context.Context) error {
	for range x.s.rounds {
		v, files, load := x.nextView(), x.content(), loadAverage()
		settle(ctx)
		x.remote.server.Forget()
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
		time.Sleep(syncPeriod) // what the agent does afterwards counts
		s := stop()
		window := s.wall
		s.wall, s.load = took, load
		for _, r := range x.remote.server.Requests() {
			if r.Service == gitserver.ReceivePack {
				s.pack += r.In
			}
		}
		x.addSample("save", proposing, s)
		deflated, err := x.remote.deflatedSize(ctx, tip)
		if err != nil {
			return err
		}
		x.figures.deflated = append(x.figures.deflated, deflated)

		load, stop, began = loadAverage(), x.off.meter(), time.Now()
		if err := x.off.save(ctx, v, files); err != nil {
			return err
		}
		time.Sleep(window - time.Since(began))
		s = stop()
		s.wall, s.load = 0, load
		x.addSample("save", off, s)
		if err := x.merge(ctx, tip); err != nil {
			return err
		}
	}
	return nil
}

// merge moves main to the commit of the branch, whose content the gateway already has.
func (x *backBench) merge(ctx context.Context, tip string) error {
	scans, load := x.on.scans(), loadAverage()
	s, state, reports, err := x.measureSync(ctx, x.on, tip)
	if err != nil {
		return err
	}
	s.load = load
	x.addSample("merge", proposing, s)
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
func (x *backBench) measureSync(ctx context.Context, a *agentBeside, commit string) (s sample, at state, reports int, err error) {
	since, err := a.state(ctx)
	if err != nil {
		return s, at, 0, err
	}
	if err := x.remote.push(ctx, commit); err != nil {
		return s, at, 0, err
	}
	stop := a.meter()
	if err := a.triggerSync(); err != nil {
		return s, at, 0, err
	}
	at, err = a.waitSynced(ctx, commit, since.started())
	s = stop()
	if err != nil {
		return s, at, 0, err
	}
	seen := map[time.Time]bool{at.started(): true}
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		now, err := a.state(ctx)
		if err != nil {
			return s, at, 0, err
		}
		seen[now.started()] = true
	}
	return s, at, len(seen), nil
}

// saveLarge saves three views with a large picture each, which no compression makes smaller.
func (x *backBench) saveLarge(ctx context.Context) error {
	time.Sleep(syncPeriod)
	random := rand.NewChaCha8([32]byte{1})
	var views []view
	var files []map[string][]byte
	for range 3 {
		picture := make([]byte, 9<<20+1<<18)
		_, _ = random.Read(picture) // never fails
		content := x.content()
		content["thumbnail.png"] = append([]byte("\x89PNG\r\n\x1a\n"), picture...)
		views, files = append(views, x.nextView()), append(files, content)
	}
	before, load := x.branchTip(), loadAverage()
	x.remote.server.Forget()
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
	x.addSample("large", proposing, s)
	stop, began = x.off.meter(), time.Now()
	for i, v := range views {
		if err := x.off.save(ctx, v, files[i]); err != nil {
			return err
		}
	}
	time.Sleep(window - time.Since(began))
	s = stop()
	s.wall = 0
	x.addSample("large", off, s)
	return nil
}

// deflatedSize returns the size of the files that a commit changed, each compressed by itself.
func (r *remote) deflatedSize(ctx context.Context, commit string) (int64, error) {
	list, err := gitOutput(ctx, r.dir, nil, "diff-tree", "-r", "--no-renames", commit+"^", commit)
	if err != nil {
		return 0, err
	}
	var sum int64
	for line := range strings.Lines(list) {
		content, err := exec.CommandContext(ctx, "git", "-C", r.dir, "cat-file", "blob", strings.Fields(line)[3]).Output()
		if err != nil {
			return 0, err
		}
		var b bytes.Buffer
		w := zlib.NewWriter(&b)
		_, err = w.Write(content)
		if err := errors.Join(err, w.Close()); err != nil {
			return 0, err
		}
		sum += int64(b.Len())
	}
	return sum, nil
}
