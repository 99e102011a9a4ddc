// Package main of the folder hooks is the command line interface stoker. Its main commands request refs, wait until gateways run them, and
// report the state of gateways. Operators run it in a terminal; installed as kubectl-stoker, it is a kubectl plugin. Hook Jobs of Argo CD run
// the same program, so the folder is named hooks.
//
// Each command has a constructor, such as newSetRefCommand, in the file of the command or of its group. A test generates
// docs/reference/cli.md from the commands.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"stoker.io/stoker/internal/configsync/builder"
	"stoker.io/stoker/internal/configsync/render"
)

// version is set by the build.
var version = "dev"

func main() {
	builder.Main(render.Functions()) // does not return in a child process that runs a tool such as kustomize
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args, os.Stdout, os.Stderr))
}
