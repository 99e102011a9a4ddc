// Command demo shows what Stoker does, on this machine, in about a minute. It creates a git repository from
// examples/quickstart, starts two simulated Ignition gateways with standalone agents, and plays a story of commits and of what a
// user saves in a Designer. Every step shows its evidence and is verified; an unexpected result ends the demo with an error.
//
//	go run ./test/demo           # or: make demo
//	KEEP=1 go run ./test/demo    # leaves everything running at the end, and prints the addresses
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"stoker.io/stoker/test/program/output"
)

// buildAgent builds the agent of this module, and returns the module's directory.
func buildAgent(ctx context.Context, binary string) (module string, err error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", binary, "stoker.io/stoker/agent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the agent: %w\n%s", err, out)
	}
	return filepath.Dir(strings.TrimSpace(string(out))), nil
}

// agent is the running agent as an operator sees it: a process, a log and /state.
type agent struct {
	cmd    *exec.Cmd
	client http.Client
	ended  chan struct{} // closed when the process has ended; err then holds the outcome
	err    error
	log    *output.Log
}

// state holds the fields of /state that the demo uses.
type state struct {
	Phase, Reason, Message, Ref string
	Target, Commit              string
	Plan                        []string
	Report                      *struct {
		Files struct{ Added, Modified, Deleted, Kept, Saved, Total int }
		Scans []struct{ Kind, Duration string }
	}
	Drift *struct {
		Files int
		Paths []struct{ Path, What string }
	}
	Proposal *struct{ State, Branch, Message string }
}

func startAgent(binary string, args ...string) (*agent, error) {
	a := &agent{client: http.Client{Timeout: 10 * time.Second}, ended: make(chan struct{}), log: &output.Log{MaxBytes: 16 << 10}}
	a.cmd = exec.Command(binary, append(args, "--health-addr", "127.0.0.1:0", "--metrics-addr", "", "--log-format", "json")...)
	a.cmd.Stdout, a.cmd.Stderr = a.log, a.log
	if err := a.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(a.ended)
		a.err = a.cmd.Wait()
	}()
	return a, nil
}

// logTail returns the end of the log, for an error message. A nil agent has none.
func (a *agent) logTail() string {
	if a == nil {
		return ""
	}
	return "\nThe agent's log:\n" + a.log.String()
}

// url returns the address of the health port, or "" before it listens.
func (a *agent) url() string {
	addr := a.log.Address("health")
	if addr == "" {
		return ""
	}
	return "http://" + addr
}

func (a *agent) state(ctx context.Context) (state, error) {
	var s state
	if a.url() == "" {
		return s, errNoAddress
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url()+"/state", nil)
	if err != nil {
		return s, err
	}
	res, err := a.client.Do(req)
	if err != nil {
		return s, err
	}
	defer res.Body.Close()
	err = json.NewDecoder(res.Body).Decode(&s)
	return s, err
}

var (
	errExitZero  = errors.New("exit code 0")
	errNoAddress = errors.New("the agent does not listen yet")
)

// waitTimeout is the timeout of one wait. An automatic rollback alone takes most of a minute.
const waitTimeout = 2 * time.Minute

// await polls the state until wanted returns true.
func (a *agent) await(ctx context.Context, what string, wanted func(state) bool) (state, error) {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var last state
	for {
		s, err := a.state(ctx)
		switch {
		case err == nil && wanted(s):
			return s, nil
		case err == nil:
			last = s
		case ctx.Err() == nil && !errors.Is(err, errNoAddress) && !errors.Is(err, syscall.ECONNREFUSED) && !os.IsTimeout(err): // not a transient error
			return s, err
		}
		select {
		case <-a.ended:
			return last, fmt.Errorf("%s: the agent ended by itself: %w", what, cmp.Or(a.err, errExitZero))
		case <-ctx.Done():
			return last, fmt.Errorf("%s: it did not happen; the agent says %s/%s at %.7s for %.7s: %s",
				what, last.Phase, last.Reason, last.Commit, last.Target, last.Message)
		case <-tick.C:
		}
	}
}

// synced waits until a commit is delivered and verified.
func (a *agent) synced(ctx context.Context, commit string) (state, error) {
	return a.await(ctx, "synced to "+commit[:7], func(s state) bool { return s.Phase == "Synced" && s.Commit == commit })
}

// stop terminates the agent and waits for its end.
func (a *agent) stop() error {
	_ = a.cmd.Process.Signal(syscall.SIGTERM) // fails only if it has ended; err has the reason
	kill := time.AfterFunc(30*time.Second, func() { _ = a.cmd.Process.Kill() })
	defer kill.Stop()
	<-a.ended
	if a.err != nil {
		return fmt.Errorf("the agent ended badly: %w", a.err)
	}
	return nil
}

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
