// Command agent keeps one Ignition gateway's data directory at a commit of git.
//
// Standalone, without Kubernetes, it reads a GatewaySync from a file:
//
//	agent --file gatewaysync.yaml --data-dir /usr/local/bin/ignition/data --gateway-name line-1 --gateway-url http://127.0.0.1:8088
//
// docs/agent.md is the reference of its flags, its HTTP routes and its exit codes.
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
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}
