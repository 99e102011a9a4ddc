// Command injector adds the agent to gateway pods. It is a mutating admission webhook. One replica at a time also runs the reconciler,
// which does what admission cannot do.
//
// docs/reference/injector.md is the reference of its flags, routes, rights and metrics.
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
	os.Exit(run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}
