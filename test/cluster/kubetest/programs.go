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
	KubeScheduler     = "kube-scheduler"
)

// HasPrograms reports whether the programs of the cluster can be stopped and started, which is not possible for an
// existing cluster or kind.
func (c *Cluster) HasPrograms() bool { return c.programs != nil }

// Stop terminates a program and waits until it has ended.
func (c *Cluster) Stop(t testing.TB, name string) {
	t.Helper()
	c.tell(t, "stop", programs.Stop, name)
}

// Kill kills a program with SIGKILL and waits until it has ended.
func (c *Cluster) Kill(t testing.TB, name string) {
	t.Helper()
	c.tell(t, "kill", programs.Kill, name)
}

// Pause freezes a program: connections to it stay open without answers.
func (c *Cluster) Pause(t testing.TB, name string) {
	t.Helper()
	c.tell(t, "pause", programs.Pause, name)
}

// Resume continues a paused program.
func (c *Cluster) Resume(t testing.TB, name string) {
	t.Helper()
	c.tell(t, "resume", programs.Resume, name)
}

// Start restarts a program that has ended, as it ran before, and waits until it is ready.
func (c *Cluster) Start(t testing.TB, name string) {
	t.Helper()
	c.alone(t)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	c.must(t, "start", name, c.programs.Again(ctx, name))
}

// Log returns the end of a program's output.
func (c *Cluster) Log(t testing.TB, name string) string {
	t.Helper()
	if c.programs == nil {
		t.Fatal("the cluster of a given kubeconfig does not show its logs")
	}
	tail, err := c.programs.Tail(name)
	c.must(t, "log of", name, err)
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
	c.must(t, "process of", name, err)
	for _, s := range states {
		if s.Name == name {
			return s.PID
		}
	}
	t.Fatalf("no program %q among %v", name, states)
	return 0
}

// tell calls do for a program of a cluster that only this test uses.
func (c *Cluster) tell(t testing.TB, verb string, do func(programs, string) error, name string) {
	t.Helper()
	c.alone(t)
	c.must(t, verb, name, do(c.programs, name))
}

func (c *Cluster) alone(t testing.TB) {
	t.Helper()
	if c.shared {
		t.Fatal("other tests use this control plane: ask for kubetest.Private() to stop and start programs")
	}
	if c.programs == nil {
		t.Fatal("the programs of a cluster that was not started here cannot be stopped and started")
	}
}

func (c *Cluster) must(t testing.TB, verb, name string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s %s: %v", verb, name, err)
	}
}
