package main

import (
	"context"
	"errors"

	"stoker.io/stoker/test/bench/cgroup"
)

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
