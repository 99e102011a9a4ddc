// Command stoker requests refs and reports the state of gateways, from a terminal and from Jobs. Installed as kubectl-stoker,
// it is a kubectl plugin.
//
// docs/cli.md is the reference of its commands, generated from them.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// version is set by the build.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args, os.Stdout, os.Stderr))
}
