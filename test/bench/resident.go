package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"stoker.io/stoker/test/bench/repository"
	"stoker.io/stoker/test/program/output"
)

// agentResident is the agent as it runs beside a gateway: one process for all syncs. The agent polls git when its
// GatewaySync file is replaced, even by the same content. A measurement starts with that.
type agentResident struct {
	*agentOnce
	remote       *repository.Remote
	cmd          *exec.Cmd
	ended        chan error // receives once, when the process ends
	log          *output.Log
	client       http.Client
	pollInterval time.Duration // how often waitSynced reads the agent's state; 0 means 5 ms
}

var (
	errExitZero  = errors.New("exit code 0")
	errNoAddress = errors.New("the agent does not listen yet")
)

// state is the part of the agent's /state that the bench reads.
type state struct {
	Phase, Reason, Message string
	Commit, Target         string
	Report                 *struct {
		Started  time.Time
		Duration string
		Steps    struct{ Apply string }
		Files    struct{ Added, Modified, Deleted int }
	}
	Proposal *struct{ State, Message string }
}

func (s state) started() time.Time {
	if s.Report == nil {
		return time.Time{}
	}
	return s.Report.Started
}

func (a *agentResident) name() string { return resident }

// agentUnchecked is a resident agent that does not look for references to what does not exist.
type agentUnchecked struct{ *agentResident }

func (a *agentUnchecked) name() string         { return unchecked }
func (a *agentUnchecked) can(c benchCase) bool { return c.name == "one" }

func (a *agentResident) can(c benchCase) bool {
	return !c.fresh && c.lost == loseNothing && (c.only == "" || c.only == resident)
}

func (a *agentResident) reset(ctx context.Context) error {
	return errors.Join(a.close(), a.agentOnce.reset(ctx))
}

// ready starts the agent and waits until it is in sync. It does nothing if the agent runs already.
func (a *agentResident) ready(ctx context.Context) error {
	if a.cmd != nil {
		return nil
	}
	a.client.Timeout = time.Minute
	a.log = &output.Log{MaxBytes: outputBytes}
	args := append(a.args(), "--health-addr", "127.0.0.1:0", "--metrics-addr", "", "--log-format", "json")
	a.cmd = command{a.dir, os.Environ(), args}.prepare(ctx, a.log)
	if err := a.cmd.Start(); err != nil {
		a.cmd = nil
		return err
	}
	a.ended = make(chan error, 1)
	go func(cmd *exec.Cmd, ended chan error) { ended <- cmd.Wait() }(a.cmd, a.ended)
	want, err := a.remote.Head(ctx)
	if err == nil {
		_, err = a.waitSynced(ctx, want, time.Time{})
	}
	if err != nil {
		return errors.Join(err, a.close())
	}
	return nil
}

func (a *agentResident) sync(ctx context.Context) (sample, error) {
	pid := a.cmd.Process.Pid
	since, err := a.state(ctx)
	if err != nil {
		return sample{}, err
	}
	want, err := a.remote.Head(ctx)
	if err != nil {
		return sample{}, err
	}
	watch, cpu, began := watchMemory(pid), cpuTime(pid), time.Now()
	if err := a.triggerSync(); err != nil {
		watch.stop()
		return sample{}, err
	}
	done, err := a.waitSynced(ctx, want, since.started())
	s := sample{wall: time.Since(began), cpu: cpuTime(pid) - cpu, anon: watch.stop()}
	if err == nil && done.Report.Steps.Apply != "" {
		s.apply, err = time.ParseDuration(done.Report.Steps.Apply)
	}
	return s, err
}

// triggerSync makes the agent poll git by replacing its file with the same content.
func (a *agentResident) triggerSync() error {
	content, err := os.ReadFile(a.file())
	if err != nil {
		return err
	}
	fresh := filepath.Join(a.dir, "fresh")
	if err := os.WriteFile(fresh, content, 0o644); err != nil {
		return err
	}
	return os.Rename(fresh, a.file())
}

// waitSynced waits until the agent has synced the commit, in a sync that began after since. The polling costs the agent
// some CPU time, and the sample includes it.
func (a *agentResident) waitSynced(ctx context.Context, want string, since time.Time) (state, error) {
	tick := time.NewTicker(cmp.Or(a.pollInterval, 5*time.Millisecond))
	defer tick.Stop()
	for {
		s, err := a.state(ctx)
		switch {
		// The agent may not listen yet, and a single poll may time out.
		case err != nil && !errors.Is(err, errNoAddress) && !errors.Is(err, syscall.ECONNREFUSED) && !os.IsTimeout(err):
			return s, err
		case err == nil && s.Phase == "Error" && s.Target == want:
			return s, fmt.Errorf("the resident agent: %s: %s", s.Reason, s.Message)
		case err == nil && s.Phase == "Synced" && s.Commit == want && s.started().After(since):
			return s, nil
		}
		select {
		case err := <-a.ended:
			a.cmd = nil
			return s, fmt.Errorf("the resident agent ended by itself (%w): %s", cmp.Or(err, errExitZero), a.log.Tail())
		case <-ctx.Done():
			return s, fmt.Errorf("the resident agent did not reach %s: %w: %s", want, ctx.Err(), a.log.Tail())
		case <-tick.C:
		}
	}
}

func (a *agentResident) state(ctx context.Context) (state, error) {
	var s state
	addr := a.log.Address("health")
	if addr == "" {
		return s, errNoAddress
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/state", nil)
	if err != nil {
		return s, err
	}
	res, err := a.client.Do(req)
	if err != nil {
		return s, err
	}
	defer res.Body.Close()
	err = json.NewDecoder(res.Body).Decode(&s)
	return s, err
}

// close ends the agent as a kubelet does: SIGTERM, and SIGKILL after a minute.
func (a *agentResident) close() error {
	if a.cmd == nil {
		return nil
	}
	cmd := a.cmd
	a.cmd = nil
	_ = cmd.Process.Signal(syscall.SIGTERM) // if it has already ended, Wait has the reason
	kill := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer kill.Stop()
	if err := <-a.ended; err != nil {
		return fmt.Errorf("the resident agent ended badly: %w: %s", err, a.log.Tail())
	}
	return nil
}

// size is a synthetic repository, and what is measured of it.
type size struct {
	repository.Size

	cases []string
	// memory is the memory limit in bytes of each contestant's container; 0 means no limit.
	memory int64
}

var ordinary = []string{"first", "nothing", "one", "merge", "hundred", "adopt", "lost", "late"}

var sizes = []size{
	{Size: repository.Size{Name: "T", Files: 60, Mean: 2_000, Past: 200}, cases: append(slices.Clone(ordinary), "drift")}, // for the bench's own test
	{Size: repository.Size{Name: "S", Files: 1_000, Mean: 16_000, Past: 200}, cases: ordinary},
	{Size: repository.Size{Name: "M", Files: 10_000, Mean: 30_000, Past: 200}, cases: append(slices.Clone(ordinary), "drift")},
	{Size: repository.Size{Name: "L", Files: 100_000, Mean: 3_400, Past: 200}, cases: append(slices.Clone(ordinary), "drift")},
	{Size: repository.Size{Name: "H", Files: 3_000, Mean: 24_000, Binaries: 6, Past: 400}, cases: []string{"first"}, memory: 64 << 20},
}

// String describes the size for the report.
func (s size) String() string {
	text := fmt.Sprintf("%d files, %d commits", s.Files, s.Past)
	if s.Binaries > 0 {
		text += fmt.Sprintf(", %d of the files with %d MiB", s.Binaries, repository.BinaryBytes>>20)
	}
	if s.memory > 0 {
		text += fmt.Sprintf("; in a container of %d MiB", s.memory>>20)
	}
	return text
}

func (s size) has(c benchCase) bool { return slices.Contains(s.cases, c.name) }
