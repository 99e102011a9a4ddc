// Command injector puts the agent into gateway pods: a mutating admission webhook, and beside it, in one replica at a time,
// the upkeep of what admission cannot do.
//
// docs/injector.md is the reference of its flags, its routes, its rights and its metrics.
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
