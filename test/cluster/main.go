//go:build linux

// Command cluster runs a real Kubernetes for tests on this machine, without a container engine or a registry:
// everything is built from Go modules, once, and nodes use containerd from Debian.
//
//	go run ./test/cluster up            a control plane, a node and DNS; needs root
//	go run ./test/cluster up -nodes 2
//	go run ./test/cluster up -control   etcd, API server, controllers and scheduler; needs no root
//	go run ./test/cluster kubectl get nodes
//	go run ./test/cluster load registry.local/agent:dev ./agent
//	go run ./test/cluster ctl status | stop, kill, pause, resume, start, restart or log <program>
//	go run ./test/cluster down
//	go run ./test/cluster run [flags of up] -- command …   a cluster for as long as a command runs
//	go run ./test/cluster build [-nodes 1]                 build in advance what the other verbs need
//
// A cluster started by up runs until down. When the process that keeps it ends for any reason, everything ends.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"stoker.io/stoker/test/cluster/keeper"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

// app is the environment of the verbs.
type app struct {
	stdout, stderr io.Writer
}

type verb struct {
	name string
	do   func(a app, ctx context.Context, args []string) error
}

var verbs = []verb{
	{"up", app.up}, {"down", app.down}, {"run", app.run}, {"build", app.build}, {"load", app.load}, {"ctl", app.ctl}, {"kubectl", app.kubectl},
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	var names []string
	for _, v := range verbs {
		names = append(names, v.name)
	}
	if len(args) == 0 {
		return fmt.Errorf("want one of %q", names)
	}
	if mine, err := keeper.Run(ctx, args[0], stdin, stdout); mine {
		return err
	}
	i := slices.Index(names, args[0])
	if i < 0 {
		return fmt.Errorf("%q: want one of %q", args[0], names)
	}
	return verbs[i].do(app{stdout, stderr}, ctx, args[1:])
}

// flags returns a flag set that prints to stderr.
func (a app) flags(name string) *flag.FlagSet {
	f := flag.NewFlagSet("cluster "+name, flag.ContinueOnError)
	f.SetOutput(a.stderr)
	return f
}
