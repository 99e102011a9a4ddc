package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	gosync "sync"
	"time"

	"golang.org/x/term"

	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/internal/daemon"
)

// screen is the agent's output: readable plans and progress on a terminal, otherwise JSON logs. With --once, plan and outcome always go to
// stdout, because they are the result. It is safe for concurrent use.
type screen struct {
	stdout, stderr io.Writer
	log            *slog.Logger // writes to the screen
	plans          bool         // print plans and outcomes
	live           bool         // stderr is a terminal, so progress can be redrawn

	mu            gosync.Mutex
	drawn         time.Time // when the progress was last drawn
	progressShown bool      // a line of progress is on the terminal
	lastReport    *sync.Report
	lastLine      string // the last line that screen.state printed
}

func newScreen(stdout, stderr io.Writer, s settings, isTerminal func(io.Writer) bool) *screen {
	onTerminal := isTerminal(stdout) && isTerminal(stderr)
	c := &screen{stdout: stdout, stderr: stderr, plans: onTerminal || s.Once, live: isTerminal(stderr)}
	format, level := s.LogFormat, s.LogLevel
	if format == "auto" && c.live {
		format = "text"
		if c.plans && level == "info" {
			level = "warn" // the plans show the rest
		}
	}
	c.log = daemon.Log(c, format, level)
	return c
}

func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Write writes log lines. It clears a line of progress first.
func (c *screen) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clear()
	return c.stderr.Write(p)
}

// redrawInterval limits how often the progress is drawn.
const redrawInterval = 100 * time.Millisecond

// progress draws the progress of long steps.
func (c *screen) progress(step string, done, total int) {
	if !c.live {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.drawn) >= redrawInterval {
		c.drawn, c.progressShown = now, true
		if total > 0 {
			fmt.Fprintf(c.stderr, "\r\x1b[K%s %d/%d", step, done, total)
		} else {
			fmt.Fprintf(c.stderr, "\r\x1b[K%s …", step)
		}
	}
}

// clear removes the line of progress. The caller holds mu.
func (c *screen) clear() {
	if c.progressShown {
		fmt.Fprint(c.stderr, "\r\x1b[K")
		c.progressShown = false
	}
}

// state prints what has changed since the last call: a plan that was applied or refused, an outcome, drift.
func (c *screen) state(s loop.State) {
	if !c.plans {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clear()
	if s.Report != nil && s.Report != c.lastReport {
		c.lastReport = s.Report
		if len(s.Plan) > 1 { // more than the summary
			fmt.Fprintln(c.stdout, strings.Join(s.Plan, "\n"))
		}
		for _, n := range s.Report.Notes {
			if !slices.Contains(s.Plan, "warning: "+n) { // not printed with the plan
				fmt.Fprintln(c.stdout, "note:", n)
			}
		}
	}
	line := fmt.Sprintf("%s: %s", s.GatewayName, s.Line())
	if line != c.lastLine {
		c.lastLine = line
		fmt.Fprintln(c.stdout, line)
	}
}
