// Package browser opens an address in the user's browser. It starts the program that the operating system has for opening files, and only when
// the user asks for it (stoker ui --open).
package browser

import (
	"context"
	"errors"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// commands are the programs that open a file, with their arguments, by operating system.
var commands = map[string][]string{
	"linux":   {"xdg-open"},
	"darwin":  {"open"},
	"windows": {"rundll32", "url.dll,FileProtocolHandler"},
}

// page leads to a URL.
const page = `<!DOCTYPE html><html lang="en"><meta charset="utf-8"><meta name="referrer" content="no-referrer"><title>Stoker</title>
<meta http-equiv="refresh" content="0; url=%[1]s"><p><a href="%[1]s">Open the page</a></p></html>
`

// Open opens a URL in the browser of the user. Other users of the machine can see the arguments of a program, so the program gets the
// name of a file that leads to the URL and that only the user can read. The caller calls remove when the browser has read the file.
func Open(url string) (remove func(), err error) {
	remove = func() {}
	command, ok := commands[runtime.GOOS]
	if !ok {
		return remove, fmt.Errorf("no program is known for %s", runtime.GOOS)
	}
	dir, err := os.MkdirTemp("", "stoker-ui-") // with mode 0700
	if err != nil {
		return remove, err
	}
	remove = func() { _ = os.RemoveAll(dir) } // the token in the file is valid once
	file := filepath.Join(dir, "open.html")
	if err := os.WriteFile(file, fmt.Appendf(nil, page, html.EscapeString(url)), 0o600); err != nil {
		remove()
		return func() {}, err
	}
	// The program may be the browser itself, so it must not end together with this one.
	process := exec.CommandContext(context.Background(), command[0], append(command[1:], file)...)
	if err := process.Start(); err != nil {
		remove()
		if errors.Is(err, exec.ErrNotFound) {
			err = fmt.Errorf("%s is not installed", command[0])
		}
		return func() {}, err
	}
	go func() { _ = process.Wait() }() // the user sees whether a page opens
	return remove, nil
}
