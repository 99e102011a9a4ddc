package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// cgroup is a control group with a limit on memory or CPU, like the limit of a Kubernetes container. If memory runs
// out, the kernel reclaims page cache and kills a process whose own memory does not fit. If the CPU time of a period is
// used up, processes stop until the next one.
type cgroup struct {
	dir string
	v1  bool
}

// groups is the directory of control groups: one tree per controller in version 1, a single tree in version 2.
const groups = "/sys/fs/cgroup"

// period is the CPU accounting period that a kubelet sets by default.
const period = 100 * time.Millisecond

// newMemoryLimit creates a control group with a limit on memory, in bytes.
func newMemoryLimit(limit int64) (*cgroup, error) {
	text := strconv.FormatInt(limit, 10)
	return newGroup("memory",
		[][2]string{{"memory.limit_in_bytes", text}, {"memory.swappiness", "0"}},
		[][2]string{{"memory.max", text}, {"memory.swap.max", "0"}})
}

// newCPULimit creates a control group with a limit on CPU, in thousandths of a processor.
func newCPULimit(milli int64) (*cgroup, error) {
	quota := strconv.FormatInt(milli*period.Microseconds()/1000, 10)
	length := strconv.FormatInt(period.Microseconds(), 10)
	return newGroup("cpu",
		[][2]string{{"cpu.cfs_period_us", length}, {"cpu.cfs_quota_us", quota}},
		[][2]string{{"cpu.max", quota + " " + length}})
}

// newGroup creates a control group with the settings of either version. It needs root and a writable control group
// tree.
func newGroup(controller string, v1, v2 [][2]string) (*cgroup, error) {
	c, settings := &cgroup{dir: filepath.Join(groups, controller), v1: true}, v1
	if _, err := os.Stat(filepath.Join(c.dir, v1[0][0])); err != nil {
		c, settings = &cgroup{dir: groups}, v2
	}
	var err error
	if c.dir, err = os.MkdirTemp(c.dir, "stoker-bench-"); err != nil {
		return nil, err
	}
	for _, s := range settings {
		name := filepath.Join(c.dir, s[0])
		if _, err := os.Stat(name); errors.Is(err, os.ErrNotExist) && s[0] == "memory.swap.max" {
			continue // a kernel without swap accounting
		}
		if err := os.WriteFile(name, []byte(s[1]), 0); err != nil {
			return nil, errors.Join(err, c.close())
		}
	}
	return c, nil
}

// wrap returns a command prefix that runs a command in the container.
func (c *cgroup) wrap() []string {
	return []string{"sh", "-c", `echo $$ > "$0" && exec "$@"`, filepath.Join(c.dir, "cgroup.procs")}
}

// killed returns the number of processes killed for lack of memory.
func (c *cgroup) killed() (int, error) {
	name := "memory.events"
	if c.v1 {
		name = "memory.oom_control"
	}
	n, err := c.count(name, "oom_kill")
	return int(n), err
}

// throttled returns how long processes were stopped because their CPU time was used up.
func (c *cgroup) throttled() (time.Duration, error) {
	if c.v1 {
		n, err := c.count("cpu.stat", "throttled_time")
		return time.Duration(n), err
	}
	n, err := c.count("cpu.stat", "throttled_usec")
	return time.Duration(n) * time.Microsecond, err
}

// count reads the number of a key from a file of the group.
func (c *cgroup) count(file, key string) (int64, error) {
	content, err := os.ReadFile(filepath.Join(c.dir, file))
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(content) {
		if n, found := strings.CutPrefix(string(line), key+" "); found {
			return strconv.ParseInt(strings.TrimSpace(n), 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no %s", file, key)
}

// close removes the group. The kernel takes a moment to release processes that have ended.
func (c *cgroup) close() error {
	deadline := time.Now().Add(5 * time.Second)
	for {
		err := os.Remove(c.dir)
		if err == nil || errors.Is(err, os.ErrNotExist) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// confined is a contestant in a container. That the kernel kills it there is a result, and not an error of the benchmark.
type confined struct {
	contestant
	container *cgroup
}

func (c *confined) sync(ctx context.Context) (sample, error) {
	before, err := c.container.killed()
	if err != nil {
		return sample{}, err
	}
	s, syncErr := c.contestant.sync(ctx)
	after, err := c.container.killed()
	if err != nil {
		return s, errors.Join(syncErr, err)
	}
	if s.killed = after > before; s.killed {
		return s, nil
	}
	return s, syncErr
}

func (c *confined) close() error {
	return errors.Join(c.contestant.close(), c.container.close())
}

// agentGuaranteed is the agent with the CPU limit that it has in a Guaranteed pod.
type agentGuaranteed struct {
	*agentOnce
	container *cgroup
}

func (a *agentGuaranteed) name() string { return guaranteed }

// can admits the cases that start with an empty workspace.
func (a *agentGuaranteed) can(c benchCase) bool { return c.fresh }

func (a *agentGuaranteed) sync(ctx context.Context) (sample, error) {
	before, err := a.container.throttled()
	if err != nil {
		return sample{}, err
	}
	s, syncErr := a.agentOnce.sync(ctx)
	after, err := a.container.throttled()
	s.throttled = after - before
	return s, errors.Join(syncErr, err)
}

func (a *agentGuaranteed) close() error {
	return errors.Join(a.agentOnce.close(), a.container.close())
}
