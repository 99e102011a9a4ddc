package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"stoker.io/stoker/test/bench/cgroup"
	"stoker.io/stoker/test/program/output"
)

// sample is one measured run.
type sample struct {
	wall, cpu time.Duration
	apply     time.Duration // part of wall in which the agent moved files and wrote its records; 0 if unknown
	anon      int64         // peak anonymous memory of the process tree, bytes; 0 if unknown
	pack      int64         // bytes of packs that the server sent
	fetches   int           // requests for a pack
	disk      int64         // bytes kept beside the live data, afterwards
	changed   int64         // bytes of the files that the commit changed; 0 if the case has no such commit
	killed    bool          // for lack of memory, in a container
	load      float64       // load average of the machine in the last minute before, if known
}

// command is a process to measure.
type command struct {
	dir  string
	env  []string
	args []string
}

// measure runs a command to its end. Wall and CPU time are those of the whole process tree. Memory is sampled every
// millisecond, which may miss a spike.
func measure(ctx context.Context, c command) (sample, error) {
	said := &output.Log{MaxBytes: outputBytes}
	cmd := c.prepare(ctx, said)
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return sample{}, err
	}
	watch := watchMemory(cmd.Process.Pid)
	err := cmd.Wait()
	s := sample{wall: time.Since(began)}
	s.anon = watch.stop()
	s.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	if err != nil {
		return s, fmt.Errorf("%s: %w: %s", c.args[0], err, said.Tail())
	}
	return s, nil
}

// prepare returns the process with its own process group, so that an interrupted bench leaves nothing behind.
func (c command) prepare(ctx context.Context, said *output.Log) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.args[0], c.args[1:]...)
	cmd.Dir, cmd.Env = c.dir, c.env
	cmd.Stdout, cmd.Stderr = said, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// outputBytes is how much of the end of a process's output is kept for error messages.
const outputBytes = 4000

// memoryWatch records the peak of the anonymous memory of a process and its descendants.
type memoryWatch struct {
	quit chan struct{}
	peak chan int64
}

func watchMemory(pid int) memoryWatch {
	w := memoryWatch{make(chan struct{}), make(chan int64, 1)}
	go func() {
		var peak int64
		ticker := time.NewTicker(time.Millisecond)
		defer ticker.Stop()
		for {
			peak = max(peak, anonymous(pid, 0))
			select {
			case <-w.quit:
				w.peak <- peak
				return
			case <-ticker.C:
			}
		}
	}()
	return w
}

func (w memoryWatch) stop() int64 {
	close(w.quit)
	return <-w.peak
}

// anonymous adds up RssAnon of a process and its descendants, in bytes: what a container's memory limit counts and
// cannot reclaim. It returns 0 without /proc.
func anonymous(pid, depth int) int64 {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	status, err := os.ReadFile(filepath.Join(proc, "status"))
	if err != nil || depth > 8 {
		return 0
	}
	var sum int64
	if _, rest, found := bytes.Cut(status, []byte("\nRssAnon:")); found {
		kilobytes, _, _ := bytes.Cut(bytes.TrimLeft(rest, " \t"), []byte(" "))
		n, _ := strconv.ParseInt(string(kilobytes), 10, 64)
		sum = n << 10
	}
	tasks, _ := os.ReadDir(filepath.Join(proc, "task"))
	for _, task := range tasks {
		children, _ := os.ReadFile(filepath.Join(proc, "task", task.Name(), "children"))
		for child := range strings.FieldsSeq(string(children)) {
			if n, err := strconv.Atoi(child); err == nil {
				sum += anonymous(n, depth+1)
			}
		}
	}
	return sum
}

// loadAverage returns the machine's load average of the last minute, or 0 if unknown.
func loadAverage() float64 {
	content, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(content), " ")
	load, _ := strconv.ParseFloat(first, 64)
	return load
}

// cpuTime returns the CPU time that a running process has used, in nanoseconds if the kernel reports it.
func cpuTime(pid int) time.Duration {
	var sum time.Duration
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, task := range tasks {
		content, _ := os.ReadFile(task)
		ran, _, _ := strings.Cut(string(content), " ")
		n, _ := strconv.ParseInt(ran, 10, 64)
		sum += time.Duration(n)
	}
	return sum
}

// dirSize returns the size of the files below some directories, in bytes. It ignores missing files, because a running
// agent may remove a file meanwhile.
func dirSize(dirs ...string) (sum int64, err error) {
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				var info fs.FileInfo
				if info, err = d.Info(); err == nil {
					sum += info.Size()
				}
			}
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	return sum, nil
}

// confined is a contestant in a container. That the kernel kills it there is a result, and not an error of the benchmark.
type confined struct {
	contestant
	container *cgroup.Group
}

func (c *confined) sync(ctx context.Context) (sample, error) {
	before, err := c.container.Killed()
	if err != nil {
		return sample{}, err
	}
	s, syncErr := c.contestant.sync(ctx)
	after, err := c.container.Killed()
	if err != nil {
		return s, errors.Join(syncErr, err)
	}
	if s.killed = after > before; s.killed {
		return s, nil
	}
	return s, syncErr
}

func (c *confined) close() error {
	return errors.Join(c.contestant.close(), c.container.Close())
}

// agentGuaranteed is the agent with the CPU limit that it has in a Guaranteed pod.
type agentGuaranteed struct {
	*agentOnce
	container *cgroup.Group
}

func (a *agentGuaranteed) name() string { return guaranteed }

// can admits the cases that start with an empty workspace.
func (a *agentGuaranteed) can(c benchCase) bool { return c.fresh }

func (a *agentGuaranteed) close() error {
	return errors.Join(a.agentOnce.close(), a.container.Close())
}
