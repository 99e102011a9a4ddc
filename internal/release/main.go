// Command release builds what users install, with Go alone: no container daemon and no base image. It is a module of its own, so that the
// go.mod of the product stays small.
//
//	go run . images [--registry registry.example.com/stoker] [--tar images.tar] [--version 0.1.0]
//	go run . artifacts [--version 0.1.0] [--key key.pem]
//	go run . reproduce
//	go run . licences
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run carries out a command, and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	commands := map[string]func(context.Context, []string, io.Writer, io.Writer) error{"images": images, "artifacts": artifacts, "reproduce": reproduce, "licences": printLicences}
	if len(args) == 0 || commands[args[0]] == nil {
		fmt.Fprintln(stderr, "usage: release images|artifacts|reproduce|licences [flags]")
		return 2
	}
	if err := commands[args[0]](ctx, args[1:], stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "release:", err)
		return 1
	}
	return 0
}

// printLicences prints the terms of the modules in the programs.
func printLicences(ctx context.Context, _ []string, stdout, stderr io.Writer) error {
	text, err := licences(ctx, filepath.Join("..", ".."), stderr)
	if err != nil {
		return err
	}
	_, err = stdout.Write(text)
	return err
}
