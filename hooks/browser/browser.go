// Package browser opens an address in the user's browser. It is the only package of the product that starts a program: the one
// that the operating system has for this, with one argument, and only when the user asks for it (stoker ui --open).
package browser

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
)

// commands are the programs that open a URL, with their arguments, by operating system.
var commands = map[string][]string{
	"linux":   {"xdg-open"},
	"darwin":  {"open"},
	"windows": {"rundll32", "url.dll,FileProtocolHandler"},
}

// Open opens a URL in the browser of the user. Other users of the machine can see the URL while the program runs.
func Open(url string) error {
	command, ok := commands[runtime.GOOS]
	if !ok {
		return fmt.Errorf("no program is known for %s", runtime.GOOS)
	}
	// The program may be the browser itself, so it must not end together with this one.
	process := exec.CommandContext(context.Background(), command[0], append(command[1:], url)...)
	if err := process.Start(); err != nil {
		return err
	}
	go func() { _ = process.Wait() }() // the user sees whether a page opens
	return nil
}
