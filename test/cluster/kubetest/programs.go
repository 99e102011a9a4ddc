package kubetest

import (
	"context"
	"testing"
	"time"
)

// The programs of a control plane.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
)

// HasPrograms reports whether the programs of the cluster can be stopped and started, which is not possible for an
// existing cluster or kind.
func (c *Cluster) HasPrograms() bool { return c.programs != nil }

// Stop terminates a program and waits until it has ended.
func (c *Cluster) Stop(t testing.TB, name string) {
	t.Helper()
	c.control(t, "stop", programs.Stop, name)
}

// Kill kills a program with SIGKILL and waits until it has ended.
func (c *Cluster) Kill(t testing.TB, name string) {
	t.Helper()
	c.control(t, "kill", programs.Kill, name)
}

// Pause freezes a program: connections to it stay open without answers.
func (c *Cluster) Pause(t testing.TB, name string) {
	t.Helper()
	c.control(t, "pause", programs.Pause, name)
}

// Resume continues a paused program.
func (c *Cluster) Resume(t testing.TB, name string) {
	t.Helper()
	c.control(t, "resume", programs.Resume, name)
}

// Start restarts a program that has ended, as it ran before, and waits until it is ready.
func (c *Cluster) Start(t testing.TB, name string) {
	t.Helper()
	c.requirePrivate(t)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	c.requireNoError(t, "start", name, c.programs.Restart(ctx, name))
}

// Log returns the end of a program's output.
func (c *Cluster) Log(t testing.TB, name string) string {
	t.Helper()
	if c.programs == nil {
		t.Fatal("the cluster of a given kubeconfig does not show its logs")
	}
	tail, err := c.programs.Tail(name)
	c.requireNoError(t, "log of", name, err)
	return tail
}

// PID returns the process id of a program, or 0 if it does not run. In a cluster with nodes it is the id inside the
// cluster's namespace.
func (c *Cluster) PID(t testing.TB, name string) int {
	t.Helper()
	if c.programs == nil {
		t.Fatal("the cluster of a given kubeconfig does not show its processes")
	}
	states, err := c.programs.States()
	c.requireNoError(t, "process of", name, err)
	for _, s := range states {
		if s.Name == name {
			return s.PID
		}
	}
	t.Fatalf("no program %q among %v", name, states)
	return 0
}

// control calls do for a program of a cluster that no other test uses.
func (c *Cluster) control(t testing.TB, verb string, do func(programs, string) error, name string) {
	t.Helper()
	c.requirePrivate(t)
	c.requireNoError(t, verb, name, do(c.programs, name))
}

// requirePrivate ends the test if other tests use the cluster, or if its programs cannot be controlled.
func (c *Cluster) requirePrivate(t testing.TB) {
	t.Helper()
	if c.shared {
		t.Fatal("other tests use this control plane: use kubetest.Private() to stop and start programs")
	}
	if c.programs == nil {
		t.Fatal("the programs of a cluster that was not started here cannot be stopped and started")
	}
}

func (c *Cluster) requireNoError(t testing.TB, verb, name string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s %s: %v", verb, name, err)
	}
}
