// Command release builds what users install, with Go alone: no container daemon and no base image. It is a module of its own, so that the
// products' go.mod stays small.
//
//	go run . images [--registry registry.example.com/stoker] [--tar images.tar] [--version 0.1.0]
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run carries out a command, and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 || args[0] != "images" {
		fmt.Fprintln(stderr, "usage: release images [flags]")
		return 2
	}
	if err := images(ctx, args[1:], stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "release:", err)
		return 1
	}
	return 0
}
