// Command demo shows what Stoker does, on this machine, in about a minute. It creates a git repository from
// examples/quickstart, starts two simulated Ignition gateways with standalone agents, and plays a story of commits and of what a
// user saves in a Designer. Every step shows its evidence and is verified; an unexpected result ends the demo with an error.
//
//	go run ./test/demo           # or: make demo
//	KEEP=1 go run ./test/demo    # leaves everything running at the end, and prints the addresses
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, os.Getenv("KEEP") != ""); err != nil {
		fmt.Fprintln(os.Stderr, "\ndemo:", err)
		os.Exit(1)
	}
}

// storyTimeout is the timeout of the story, without the build of the agent.
const storyTimeout = 5 * time.Minute

func run(ctx context.Context, stdout io.Writer, keep bool) (err error) {
	dir, err := os.MkdirTemp("", "stoker-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	t := &printer{out: stdout}
	t.line("Stoker keeps Ignition gateways at the commit that git asks for.")
	t.line("Building the agent (the first time takes a while) …")
	binary := filepath.Join(dir, "agent")
	module, err := buildAgent(ctx, binary)
	if err != nil {
		return err
	}
	began := time.Now()
	story, cancel := context.WithTimeout(ctx, storyTimeout)
	defer cancel()
	w, err := newWorld(filepath.Join(module, "examples", "quickstart"), dir, binary, t)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	for i, s := range steps {
		t.step(i+1, s.title)
		if err := w.do(story, s); err != nil {
			return fmt.Errorf("step %d, %s: %w%s", i+1, s.title, err, w.agent.logTail())
		}
	}
	w.sumUp(time.Since(began))
	if keep {
		w.explain()
		<-ctx.Done()
	}
	return nil
}
