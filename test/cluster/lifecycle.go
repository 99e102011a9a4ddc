//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"stoker.io/stoker/test/cluster/build"
	"stoker.io/stoker/test/cluster/image"
	"stoker.io/stoker/test/cluster/keeper"
	"stoker.io/stoker/test/cluster/local"
	"stoker.io/stoker/test/cluster/rundir"
)

// clusterFlags are the flags that say which cluster is started.
type clusterFlags struct {
	nodes      int
	control    bool
	kubernetes string
}

func (c *clusterFlags) register(f *flag.FlagSet, defaultNodes int) {
	f.IntVar(&c.nodes, "nodes", defaultNodes, "number of nodes; 0 for only a control plane")
	f.BoolVar(&c.control, "control", false, "only a control plane, without nodes; overrides -nodes")
	f.StringVar(&c.kubernetes, "kubernetes", os.Getenv(build.VersionVariable),
		fmt.Sprintf("version of Kubernetes, one of %s; without it %s", strings.Join(build.KubernetesVersions(), ", "), build.DefaultKubernetes))
}

// config builds and installs what the cluster needs, and returns its configuration.
func (c clusterFlags) config(ctx context.Context, a app) (keeper.Config, error) {
	if c.control {
		c.nodes = 0
	}
	cache, err := build.Open(build.Cache{Progress: a.stderr})
	if err != nil {
		return keeper.Config{}, err
	}
	return local.Prepare(ctx, cache, c.nodes, c.kubernetes)
}

// up starts a cluster that runs until down, and prints the command that selects it for kubectl.
func (a app) up(ctx context.Context, args []string) error {
	var flags clusterFlags
	f := a.flags("up")
	flags.register(f, 1)
	if err := f.Parse(args); err != nil {
		return err
	}
	k, err := a.start(ctx, flags)
	if err != nil {
		return err
	}
	if err := k.Stay(); err != nil {
		return err
	}
	fmt.Fprintf(a.stdout, "export KUBECONFIG=%s\n", k.Kubeconfig)
	return nil
}

func (a app) start(ctx context.Context, flags clusterFlags) (*keeper.Keeper, error) {
	config, err := flags.config(ctx, a)
	if err != nil {
		return nil, err
	}
	return keeper.Start(ctx, "/proc/self/exe", config, a.stderr)
}

// run runs a cluster for as long as a command. The cluster also ends if this process ends for any reason.
func (a app) run(ctx context.Context, args []string) (err error) {
	var flags clusterFlags
	f := a.flags("run")
	flags.register(f, 1)
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() == 0 {
		return errors.New("run: no command given: run [flags] -- command …")
	}
	k, err := a.start(ctx, flags)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, k.Stop()) }()
	cmd := exec.CommandContext(ctx, f.Arg(0), f.Args()[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Env = append(os.Environ(), "KUBECONFIG="+k.Kubeconfig)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, a.stdout, a.stderr
	return cmd.Run()
}

// down ends the clusters of a user, or only the control plane without nodes.
func (a app) down(ctx context.Context, args []string) error {
	f := a.flags("down")
	control := f.Bool("control", false, "end only the control plane without nodes, and leave other clusters")
	if err := f.Parse(args); err != nil {
		return err
	}
	cache, err := build.Open(build.Cache{})
	if err != nil {
		return err
	}
	dirs := runDirs(cache)
	if *control {
		dirs = []string{local.ControlRun(cache)}
	}
	var errs []error
	for _, dir := range dirs {
		errs = append(errs, keeper.Down(ctx, dir))
	}
	return errors.Join(errs...)
}

// nodesRun is the run directory of a cluster with nodes. A machine can have one such cluster.
var nodesRun = keeper.Nodes

// runDirs lists the run directories of all clusters that a user may have started: with nodes, only a control plane, and kind.
func runDirs(cache *build.Cache) []string {
	return []string{nodesRun, local.ControlRun(cache), local.KindRun(cache)}
}

// build builds what up needs, and prints the directory of the Kubernetes commands.
func (a app) build(ctx context.Context, args []string) error {
	var flags clusterFlags
	f := a.flags("build")
	flags.register(f, 0)
	if err := f.Parse(args); err != nil {
		return err
	}
	config, err := flags.config(ctx, a)
	if err != nil {
		return err
	}
	fmt.Fprintln(a.stdout, filepath.Clean(config.Bin))
	return nil
}

// running returns the run directory of a running cluster, of several the first one in runDirs.
func running() (string, error) {
	cache, err := build.Open(build.Cache{})
	if err != nil {
		return "", err
	}
	for _, dir := range runDirs(cache) {
		if rundir.Owned(dir) {
			return dir, nil
		}
	}
	return "", errors.New("no cluster runs: go run ./test/cluster up")
}

func (a app) ctl(ctx context.Context, args []string) error {
	run, err := running()
	if err != nil {
		return err
	}
	c := keeper.NewClient(run)
	if len(args) == 1 && args[0] == "status" {
		states, err := c.States()
		for _, s := range states {
			if s.PID == 0 {
				fmt.Fprintf(a.stdout, "%-26s down\n", s.Name)
			} else {
				fmt.Fprintf(a.stdout, "%-26s up\n", s.Name)
			}
		}
		return err
	}
	if len(args) != 2 {
		return errors.New("ctl: want status, or one of stop, kill, pause, resume, start, restart, log and a program")
	}
	name := args[1]
	switch args[0] {
	case "stop":
		return c.Stop(name)
	case "kill":
		return c.Kill(name)
	case "pause":
		return c.Pause(name)
	case "resume":
		return c.Resume(name)
	case "start":
		return c.Restart(ctx, name)
	case "restart":
		if err := c.Stop(name); err != nil {
			return err
		}
		return c.Restart(ctx, name)
	case "log":
		tail, err := c.Tail(name)
		fmt.Fprintln(a.stdout, tail)
		return err
	}
	return fmt.Errorf("ctl: %q: want status, stop, kill, pause, resume, start, restart or log", args[0])
}

func (a app) kubectl(ctx context.Context, args []string) error {
	run, err := running()
	if err != nil {
		return err
	}
	config, err := keeper.NewClient(run).Config(ctx)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(config.Bin, "kubectl"), append([]string{"--kubeconfig=" + config.Kubeconfig}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, a.stdout, a.stderr
	return cmd.Run()
}

// load makes an image of a main package of this module, or of a static program, and imports it into every node.
func (a app) load(ctx context.Context, args []string) (err error) {
	var i image.Image
	f := a.flags("load")
	f.StringVar(&i.User, "user", "", "uid, or uid:gid, that the image runs as")
	f.Func("file", "a further file, from:to", func(value string) error {
		from, to, ok := strings.Cut(value, ":")
		if !ok {
			return errors.New("want from:to")
		}
		i.Files = append(i.Files, image.File{Path: to, From: from})
		return nil
	})
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() != 2 {
		return errors.New("load: want a name such as registry.local/agent:dev, and a main package such as ./agent or a static program")
	}
	run, err := running()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "cluster-load-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cache, err := build.Open(build.Cache{Progress: a.stderr})
	if err != nil {
		return err
	}
	i.Ref = f.Arg(0)
	archive := filepath.Join(dir, "image.tar")
	program := f.Arg(1)
	if info, err := os.Stat(program); err != nil || info.IsDir() {
		program = filepath.Join(dir, filepath.Base(f.Arg(1)))
		if err := cache.Main(ctx, f.Arg(1), program); err != nil {
			return err
		}
	}
	if err := build.ProgramImage(program, archive, i); err != nil {
		return err
	}
	return keeper.NewClient(run).Import(ctx, archive)
}
