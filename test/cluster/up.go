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
	"stoker.io/stoker/test/cluster/keeper"
	"stoker.io/stoker/test/cluster/local"
)

// size is the requested kind of cluster.
type size struct {
	nodes      int
	control    bool
	kubernetes string
}

func (s *size) register(f *flag.FlagSet) {
	f.IntVar(&s.nodes, "nodes", 1, "how many nodes")
	f.BoolVar(&s.control, "control", false, "the control plane alone")
	f.StringVar(&s.kubernetes, "kubernetes", os.Getenv(build.VersionVariable),
		fmt.Sprintf("version of Kubernetes, one of %s; without it %s", strings.Join(build.KubernetesVersions(), ", "), build.DefaultKubernetes))
}

func (s size) config(ctx context.Context, a app) (keeper.Config, error) {
	if s.control {
		s.nodes = 0
	}
	cache, err := build.Open(build.Cache{Say: a.stderr})
	if err != nil {
		return keeper.Config{}, err
	}
	return local.Prepare(ctx, cache, s.nodes, s.kubernetes)
}

func (a app) up(ctx context.Context, args []string) error {
	var s size
	f := a.flags("up")
	s.register(f)
	if err := f.Parse(args); err != nil {
		return err
	}
	k, err := a.start(ctx, s)
	if err != nil {
		return err
	}
	if err := k.Stay(); err != nil {
		return err
	}
	fmt.Fprintf(a.stdout, "export KUBECONFIG=%s\n", k.Kubeconfig)
	return nil
}

func (a app) start(ctx context.Context, s size) (*keeper.Keeper, error) {
	config, err := s.config(ctx, a)
	if err != nil {
		return nil, err
	}
	return keeper.Start(ctx, "/proc/self/exe", config, a.stderr)
}

// run runs a cluster for as long as a command. The cluster also ends if this process ends for any reason.
func (a app) run(ctx context.Context, args []string) (err error) {
	var s size
	f := a.flags("run")
	s.register(f)
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() == 0 {
		return errors.New("run: which command?")
	}
	k, err := a.start(ctx, s)
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

func (a app) down(ctx context.Context, args []string) error {
	f := a.flags("down")
	control := f.Bool("control", false, "the control plane alone, and no other")
	if err := f.Parse(args); err != nil {
		return err
	}
	runs, err := runs()
	if err != nil {
		return err
	}
	var errs []error
	for _, run := range runs {
		if *control && run != runs[controlRun] {
			continue
		}
		errs = append(errs, keeper.Down(ctx, run))
	}
	return errors.Join(errs...)
}

// controlRun is the index of the control plane in runs.
const controlRun = 1

// nodesRun is the run directory of a cluster with nodes, of which a machine has one. It is a variable so that tests do
// not interfere with it.
var nodesRun = keeper.Nodes

// runs lists the run directories of clusters, the one with nodes first.
func runs() ([]string, error) {
	cache, err := build.Open(build.Cache{})
	if err != nil {
		return nil, err
	}
	return []string{nodesRun, local.ControlRun(cache), local.KindRun(cache)}, nil
}

func (a app) build(ctx context.Context, args []string) error {
	var s size
	f := a.flags("build")
	s.register(f)
	f.Lookup("nodes").DefValue = "0"
	s.nodes = 0
	if err := f.Parse(args); err != nil {
		return err
	}
	config, err := s.config(ctx, a)
	if err != nil {
		return err
	}
	fmt.Fprintln(a.stdout, filepath.Clean(config.Bin))
	return nil
}
