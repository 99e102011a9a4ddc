// Command reference writes docs/reference/gatewaysync.md and configsync.md from the types of api/v1alpha1: the comments and markers
// that become `kubectl explain` become the tables of the reference, too. `go generate ./api/...` runs it in the folder of the types.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if err := run(os.Args[1:], "."); err != nil {
		fmt.Fprintln(os.Stderr, "reference:", err)
		os.Exit(1)
	}
}

// run reads the package in dir and writes the file that the one argument names. The name of the file selects the kind.
func run(args []string, dir string) error {
	if len(args) != 1 {
		return fmt.Errorf("want one argument, the file to write; got %d", len(args))
	}
	api, err := parse(dir)
	if err != nil {
		return err
	}
	page, err := render(api, kindOf(args[0]))
	if err != nil {
		return err
	}
	return os.WriteFile(args[0], page, 0o644)
}

// kindOf returns the kind that a file describes: ConfigSync for configsync.md, GatewaySync for any other name.
func kindOf(file string) kind {
	if filepath.Base(file) == "configsync.md" {
		return configSync
	}
	return gatewaySync
}
