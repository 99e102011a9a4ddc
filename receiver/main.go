// Command receiver accepts webhooks of git hosts, Argo CD, Kargo and scripts, and makes the same requests to GatewaySyncs as
// the command line.
//
// docs/reference/receiver.md is the reference of its flags, routes, rights and metrics.
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
		debug.SetGCPercent(25) // request bodies become garbage at once; keep the heap small
	}
	os.Exit(run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}
