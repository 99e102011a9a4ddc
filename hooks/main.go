// Command stoker asks for versions and tells where gateways stand, from a terminal and from Jobs. It is kubectl stoker, too,
// where it is called kubectl-stoker.
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
