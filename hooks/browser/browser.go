// Package browser opens an address in the user's browser. It is the only package of the product that starts a program: the one that the
// operating system has for this, with one argument, and only when the user asks for it (stoker ui --open).
package browser

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
)

// openers are the programs, by operating system.
var openers = map[string][]string{
	"linux":   {"xdg-open"},
	"darwin":  {"open"},
	"windows": {"rundll32", "url.dll,FileProtocolHandler"},
}

// Open opens an address. Programs on the machine can see it while the program runs.
func Open(address string) error {
	opener, ok := openers[runtime.GOOS]
	if !ok {
		return fmt.Errorf("no program is known for %s", runtime.GOOS)
	}
	// The program may be the browser itself, so it is not ended together with this one.
	command := exec.CommandContext(context.Background(), opener[0], append(opener[1:], address)...)
	if err := command.Start(); err != nil {
		return err
	}
	go func() { _ = command.Wait() }() // the user sees whether a page opens
	return nil
}
