// Command receiver takes what git hosts, Argo CD, Kargo and scripts send over HTTP, and asks the same of GatewaySyncs as the
// command line does.
//
// docs/webhooks.md is the reference of its flags, its routes, its rights and its metrics.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
)

// version is set by the build.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(25) // what strangers send is garbage at once, and its memory is not to be had twice
	}
	os.Exit(run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}
