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

// container is a memory control group: what a container's memory limit is to Kubernetes. Page cache is reclaimed where
// the limit is reached, and a process whose own memory does not fit is killed.
type container struct {
	dir string
	v1  bool
}

// The places where memory can be limited: a tree of its own in version 1, the one tree in version 2.
const (
	groupsV1 = "/sys/fs/cgroup/memory"
	groupsV2 = "/sys/fs/cgroup"
)

// newContainer makes a control group with a limit in bytes. It wants root and a control group tree that may be written.
func newContainer(limit int64) (*container, error) {
	c := &container{dir: groupsV1, v1: true}
	if _, err := os.Stat(filepath.Join(groupsV1, "memory.limit_in_bytes")); err != nil {
		c = &container{dir: groupsV2}
	}
	var err error
	if c.dir, err = os.MkdirTemp(c.dir, "stoker-bench-"); err != nil {
		return nil, err
	}
	settings := [][2]string{{"memory.max", strconv.FormatInt(limit, 10)}, {"memory.swap.max", "0"}}
	if c.v1 {
		settings = [][2]string{{"memory.limit_in_bytes", strconv.FormatInt(limit, 10)}, {"memory.swappiness", "0"}}
	}
	for _, s := range settings {
		name := filepath.Join(c.dir, s[0])
		if _, err := os.Stat(name); errors.Is(err, os.ErrNotExist) && s[0] == "memory.swap.max" {
			continue // a kernel without swap
		}
		if err := os.WriteFile(name, []byte(s[1]), 0); err != nil {
			return nil, errors.Join(err, c.close())
		}
	}
	return c, nil
}

// wrap is put before a command, so that it runs in the container.
func (c *container) wrap() []string {
	return []string{"sh", "-c", `echo $$ > "$0" && exec "$@"`, filepath.Join(c.dir, "cgroup.procs")}
}

// killed is how many processes were killed here for want of memory.
func (c *container) killed() (int, error) {
	name := "memory.events"
	if c.v1 {
		name = "memory.oom_control"
	}
	content, err := os.ReadFile(filepath.Join(c.dir, name))
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(content) {
		if n, found := strings.CutPrefix(string(line), "oom_kill "); found {
			return strconv.Atoi(strings.TrimSpace(n))
		}
	}
	return 0, fmt.Errorf("%s does not tell whether processes were killed", name)
}

// close removes the group. The kernel takes a moment to let go of processes that have ended.
func (c *container) close() error {
	deadline := time.Now().Add(5 * time.Second)
	for {
		err := os.Remove(c.dir)
		if err == nil || errors.Is(err, os.ErrNotExist) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// confined is a contestant that works in a container. Being killed there is a result.
type confined struct {
	contestant
	container *container
}

func (c *confined) sync(ctx context.Context) (sample, error) {
	before, err := c.container.killed()
	if err != nil {
		return sample{}, err
	}
	s, failed := c.contestant.sync(ctx)
	after, err := c.container.killed()
	if err != nil {
		return s, errors.Join(failed, err)
	}
	if s.killed = after > before; s.killed {
		return s, nil
	}
	return s, failed
}

func (c *confined) close() error {
	return errors.Join(c.contestant.close(), c.container.close())
}
