// Package cgroup runs commands in control groups of Linux with a limit on memory or CPU, as containers of Kubernetes have.
package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Group is a control group with a limit on memory or CPU, like the limit of a Kubernetes container. If memory runs
// out, the kernel reclaims page cache and kills a process whose own memory does not fit. If the CPU time of a period is
// used up, processes stop until the next one.
type Group struct {
	Dir string
	v1  bool
}

// groups is the directory of control groups: one tree per controller in version 1, a single tree in version 2.
const groups = "/sys/fs/cgroup"

// period is the CPU accounting period that a kubelet sets by default.
const period = 100 * time.Millisecond

// NewMemoryLimit creates a control group with a limit on memory, in bytes.
func NewMemoryLimit(limit int64) (*Group, error) {
	text := strconv.FormatInt(limit, 10)
	return newGroup("memory",
		[][2]string{{"memory.limit_in_bytes", text}, {"memory.swappiness", "0"}},
		[][2]string{{"memory.max", text}, {"memory.swap.max", "0"}})
}

// NewCPULimit creates a control group with a limit on CPU, in thousandths of a processor.
func NewCPULimit(milli int64) (*Group, error) {
	quota := strconv.FormatInt(milli*period.Microseconds()/1000, 10)
	length := strconv.FormatInt(period.Microseconds(), 10)
	return newGroup("cpu",
		[][2]string{{"cpu.cfs_period_us", length}, {"cpu.cfs_quota_us", quota}},
		[][2]string{{"cpu.max", quota + " " + length}})
}

// newGroup creates a control group with the settings of either version. It needs root and a writable control group
// tree.
func newGroup(controller string, v1, v2 [][2]string) (*Group, error) {
	c, settings := &Group{Dir: filepath.Join(groups, controller), v1: true}, v1
	if _, err := os.Stat(filepath.Join(c.Dir, v1[0][0])); err != nil {
		c, settings = &Group{Dir: groups}, v2
	}
	var err error
	if c.Dir, err = os.MkdirTemp(c.Dir, "stoker-bench-"); err != nil {
		return nil, err
	}
	for _, s := range settings {
		name := filepath.Join(c.Dir, s[0])
		if _, err := os.Stat(name); errors.Is(err, os.ErrNotExist) && s[0] == "memory.swap.max" {
			continue // a kernel without swap accounting
		}
		if err := os.WriteFile(name, []byte(s[1]), 0); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

// Wrap returns a command prefix that runs a command in the group.
func (c *Group) Wrap() []string {
	return []string{"sh", "-c", `echo $$ > "$0" && exec "$@"`, filepath.Join(c.Dir, "cgroup.procs")}
}

// Killed returns the number of processes killed for lack of memory.
func (c *Group) Killed() (int, error) {
	name := "memory.events"
	if c.v1 {
		name = "memory.oom_control"
	}
	n, err := c.count(name, "oom_kill")
	return int(n), err
}

// Throttled returns how long processes were stopped because their CPU time was used up.
func (c *Group) Throttled() (time.Duration, error) {
	if c.v1 {
		n, err := c.count("cpu.stat", "throttled_time")
		return time.Duration(n), err
	}
	n, err := c.count("cpu.stat", "throttled_usec")
	return time.Duration(n) * time.Microsecond, err
}

// count reads the number of a key from a file of the group.
func (c *Group) count(file, key string) (int64, error) {
	content, err := os.ReadFile(filepath.Join(c.Dir, file))
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

// Close removes the group. The kernel takes a moment to release processes that have ended.
func (c *Group) Close() error {
	deadline := time.Now().Add(5 * time.Second)
	for {
		err := os.Remove(c.Dir)
		if err == nil || errors.Is(err, os.ErrNotExist) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}
