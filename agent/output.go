package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"slices"
	"strings"
	gosync "sync"
	"time"

	"golang.org/x/term"

	"stoker.io/stoker/agent/audit"
	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/agent/textdiff"
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
	lastLine      string // of a state
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

const textDiffUsage = `agent text-diff prints the text of changed files as a unified diff. It works beside a running agent, and reads only.

  agent text-diff drift --data-dir DIR [--repo-dir DIR] PATH [PATH …]     what was changed on the gateway: git's content and the file now
  agent text-diff sync  --data-dir DIR [--repo-dir DIR] ID   [PATH …]     what a sync changed; ID is the field diff of its audit record

--repo-dir is the agent's cache of git objects. In the agent's container, both directories are known. Write -- before a PATH that begins with -.

A file that is binary, has secrets or more than 512 KiB or 10,000 lines, or whose content the cache does not have, has one line with the
reason instead, and the exit code is 0. At most 100 files and 1 MiB are printed.
`

const (
	textDiffTime = 4 * time.Second // less than a page of "stoker ui" waits
	// textDiffDelta bounds the deltas that are read, because the container's memory is for the agent.
	textDiffDelta = 8 << 20
)

// textDiff returns the subcommand. It ends early when ctx is canceled.
func textDiff(ctx context.Context) inspection {
	return inspection{"text-diff", textDiffUsage, []verb{{"drift", 1, math.MaxInt}, {"sync", 1, math.MaxInt}}, func(d *disk.Dir, in invocation) error {
		ctx, cancel := context.WithTimeout(ctx, textDiffTime)
		defer cancel()
		s := settings{DataDir: in.dataDir, RepoDir: in.repoDir}
		dir, err := s.repoDir()
		if err != nil {
			return err
		}
		objects, err := repo.OpenReadOnly(ctx, dir, repo.Limits{DeltaBytes: textDiffDelta})
		if err != nil {
			return fmt.Errorf("the cache of git objects: %w", err)
		}
		defer objects.Close()
		if in.verb == "drift" {
			return textdiff.Drift(ctx, in.stdout, d, objects, in.args)
		}
		report, err := readReport(in.dataDir, in.args[0])
		if err != nil {
			return err
		}
		return textdiff.Sync(ctx, in.stdout, report, objects, in.args[1:])
	}}
}

// readReport returns the report of what a sync changed.
func readReport(dataDir, id string) (report audit.Diff, err error) {
	raw, err := disk.ReadDiff(dataDir, id)
	switch {
	case err != nil:
		return report, err
	case raw == nil:
		return report, fmt.Errorf("there is no report %.300q: the last ten are kept", id)
	}
	if err := json.Unmarshal(raw, &report); err != nil || report.Schema < 1 {
		return report, errors.Join(fmt.Errorf("the report %.300q is not one of the agent", id), err)
	}
	return report, nil
}
