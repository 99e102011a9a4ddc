//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"stoker.io/stoker/test/cluster/build"
	"stoker.io/stoker/test/cluster/image"
	"stoker.io/stoker/test/cluster/keeper"
	"stoker.io/stoker/test/cluster/rundir"
)

// running returns the run directory of the running cluster.
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
