// Package kubetest provides tests with a real Kubernetes. It builds what is missing. With go test -short, Control
// skips the test, because make test runs on a machine that has no Kubernetes, and Objects gives it an API server in memory.
//
//	func TestMain(m *testing.M) { kubetest.Main(m) }
//
//	func TestSomething(t *testing.T) {
//		cluster := kubetest.Control(t, kubetest.Controllers())
//		namespace := cluster.Namespace(t)
//		client, err := kubernetes.NewForConfig(cluster.RESTConfig())
//		…
//	}
//
// All tests of a process share one control plane with the project's CRDs installed; each uses its own namespace. A test
// that stops or starts programs needs a private one. Nothing outlives the test process, however it ends.
package kubetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"stoker.io/stoker/test/cluster/build"
	"stoker.io/stoker/test/cluster/control"
	"stoker.io/stoker/test/cluster/process"
	"stoker.io/stoker/test/cluster/rundir"
)

// Cluster is a running Kubernetes.
type Cluster struct {
	kubeconfig string
	rest       *rest.Config
	programs   programs
	shared     bool
	memory     bool  // has neither accounts nor rights
	nodes      nodes // nil if there are none

	mu          sync.Mutex
	plane       *control.Plane // of a control plane in this process, otherwise nil
	controllers bool
	close       func() error // ends the cluster
}

// programs controls the programs of a cluster.
type programs interface {
	Stop(name string) error
	Kill(name string) error
	Pause(name string) error
	Resume(name string) error
	Restart(ctx context.Context, name string) error
	States() ([]process.State, error)
	Tail(name string) (string, error)
}

// nodes gives access to the nodes of a cluster.
type nodes interface {
	// load imports an image's archive into every node.
	load(ctx context.Context, archive string) error
	// host returns the address at which pods reach the test.
	host(ctx context.Context) (string, error)
	// volumes creates a number of volumes of a class and returns the class.
	volumes(ctx context.Context, c *Cluster, number int) (class string, err error)
}

// Option configures the result of Control and of Start.
type Option func(*options)

type options struct {
	controllers, private, withoutCRDs bool
	version                           string
}

// Controllers requests the controllers: garbage collection by owners works, deployments and stateful sets create pods,
// and namespaces get their service account.
func Controllers() Option { return func(o *options) { o.controllers = true } }

// Private requests a control plane that no other test shares, and that ends with the test.
func Private() Option { return func(o *options) { o.private = true } }

// WithoutKinds requests a private control plane without the project's CRDs.
func WithoutKinds() Option { return func(o *options) { o.withoutCRDs, o.private = true, true } }

// shared has the clusters that the tests of the process share.
var shared struct {
	mu          sync.Mutex
	endedByMain bool // M.Run ends the clusters
	cluster     *Cluster
	err         error
	memory      *Cluster
	full        *Cluster // with nodes
	fullErr     error
}

// M runs the tests of a package and then ends their shared clusters. goleak.VerifyTestMain accepts it.
type M struct{ *testing.M }

// Run runs the tests.
func (m M) Run() int {
	shared.mu.Lock()
	shared.endedByMain = true
	shared.mu.Unlock()
	code := m.M.Run()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	for _, c := range []*Cluster{shared.cluster, shared.memory, shared.full} {
		if c == nil {
			continue
		}
		if err := c.close(); err != nil {
			fmt.Fprintln(os.Stderr, "kubetest: end of the cluster:", err)
			code = max(code, 1)
		}
	}
	return code
}

// Main is the TestMain of a package that uses Control, Objects or Full.
func Main(m *testing.M) { os.Exit(M{m}.Run()) }

// NotShort skips a test of go test -short.
func NotShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs Kubernetes, or minutes: run make test-cluster, or go test without -short")
	}
}

// buildTimeout is the timeout for building and starting a cluster.
const buildTimeout = 20 * time.Minute

// Control returns a control plane without nodes: etcd, the API server and the requested options. Pods can be created
// but do not run.
func Control(t testing.TB, opts ...Option) *Cluster {
	t.Helper()
	NotShort(t)
	o := options{version: os.Getenv(build.VersionVariable)}
	for _, set := range opts {
		set(&o)
	}
	ctx, cancel := context.WithTimeout(context.Background(), buildTimeout)
	defer cancel()
	c, err := o.cluster(ctx, t)
	if err == nil {
		err = c.startMissing(ctx, o)
	}
	if err != nil {
		t.Fatalf("control plane: %v", err)
	}
	return c
}

// cluster returns the shared control plane, or a new private one that ends with the test.
func (o options) cluster(ctx context.Context, t testing.TB) (*Cluster, error) {
	if o.private {
		c, err := start(ctx, o)
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() {
			if err := c.close(); err != nil {
				t.Errorf("end of the control plane: %v", err)
			}
		})
		return c, nil
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if !shared.endedByMain {
		return nil, errShared
	}
	if shared.cluster == nil && shared.err == nil {
		shared.cluster, shared.err = start(ctx, o)
		if shared.cluster != nil {
			shared.cluster.shared = true
		}
	}
	return shared.cluster, shared.err
}

// Kubectl returns the path of kubectl, in the version of Kubernetes that the tests use, and the root of the repository. It
// builds kubectl if the cache does not have it.
func Kubectl(t testing.TB) (program, root string) {
	t.Helper()
	cache, err := build.Open(build.Cache{Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	bin, err := cache.Kubernetes(t.Context(), os.Getenv(build.VersionVariable))
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(bin, "kubectl"), cache.SourceDir
}

var errShared = errors.New("the shared cluster would never end: write func TestMain(m *testing.M) { kubetest.Main(m) }, or use kubetest.Private()")

// start starts etcd and the API server and installs the project's CRDs.
func start(ctx context.Context, o options) (_ *Cluster, err error) {
	cache, err := build.Open(build.Cache{Progress: os.Stderr})
	if err != nil {
		return nil, err
	}
	bin, err := cache.Kubernetes(ctx, o.version)
	if err != nil {
		return nil, err
	}
	dir, err := rundir.New(filepath.Join(cache.Dir, "run"), "control")
	if err != nil {
		return nil, err
	}
	plane, err := control.Start(ctx, control.Options{Bin: bin, Dir: dir.Path})
	if err != nil {
		return nil, errors.Join(err, dir.Remove())
	}
	end := sync.OnceValue(func() error { return errors.Join(plane.Close(), dir.Remove()) })
	c, err := open(plane.Kubeconfig())
	if err != nil {
		return nil, errors.Join(err, end())
	}
	c.plane, c.programs, c.close = plane, ownPrograms{plane}, end
	if !o.withoutCRDs {
		if err := c.apply(ctx, filepath.Join(cache.SourceDir, "charts", "stoker", "files", "crds")); err != nil {
			return nil, errors.Join(err, end())
		}
	}
	return c, nil
}

// open returns the cluster of a kubeconfig.
func open(kubeconfig string) (*Cluster, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS = -1 // no client-side limit: tests measure the server
	return &Cluster{kubeconfig: kubeconfig, rest: config, close: func() error { return nil }}, nil
}

// startMissing starts the requested programs that do not run yet. The CRDs are already installed, because running
// controllers need up to 40 seconds to notice a new one.
func (c *Cluster) startMissing(ctx context.Context, o options) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o.controllers && !c.controllers {
		if err := c.plane.StartControllers(ctx); err != nil {
			return err
		}
		c.controllers = true
	}
	return nil
}

// ownPrograms controls the programs of a control plane in this process.
type ownPrograms struct{ plane *control.Plane }

func (o ownPrograms) Stop(name string) error   { return o.plane.Programs.Stop(name) }
func (o ownPrograms) Kill(name string) error   { return o.plane.Programs.Kill(name) }
func (o ownPrograms) Pause(name string) error  { return o.plane.Programs.Pause(name) }
func (o ownPrograms) Resume(name string) error { return o.plane.Programs.Resume(name) }
func (o ownPrograms) Restart(ctx context.Context, name string) error {
	return o.plane.Restart(ctx, name)
}
func (o ownPrograms) States() ([]process.State, error) { return o.plane.Programs.States(), nil }
func (o ownPrograms) Tail(name string) (string, error) { return o.plane.Programs.Tail(name), nil }

// Start returns a private control plane for a program that is not a test. Close ends it. It does not outlive the
// program, however that ends.
func Start(ctx context.Context, opts ...Option) (*Cluster, error) {
	o := options{version: os.Getenv(build.VersionVariable)}
	for _, set := range opts {
		set(&o)
	}
	ctx, cancel := context.WithTimeout(ctx, buildTimeout)
	defer cancel()
	c, err := start(ctx, o)
	if err != nil {
		return nil, err
	}
	if err := c.startMissing(ctx, o); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// Close ends a control plane that Start returned.
func (c *Cluster) Close() error { return c.close() }

// Install applies the YAML files at a path, as Apply does.
func (c *Cluster) Install(ctx context.Context, path string) error { return c.apply(ctx, path) }

// InstallYAML applies the documents of a text.
func (c *Cluster) InstallYAML(ctx context.Context, text string) error {
	return c.applyDocuments(ctx, "", strings.NewReader(text))
}

// The programs of a control plane.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
)

// HasPrograms reports whether the programs of the cluster can be stopped and started, which is not possible for an
// existing cluster, for kind and for an API server in memory.
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
