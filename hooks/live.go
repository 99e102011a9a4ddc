package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/request"
)

// lookEvery is how often --watch reads the status, and redrawEvery how often it redraws an unchanged one, because ages grow.
const (
	statusInterval = time.Second
	redrawEvery    = 5 * time.Second
)

// live shows the status of a GatewaySync until ctx is done: as a table that is drawn again on a terminal, otherwise as a line for each
// change.
type live struct {
	*cli
	from   target
	name   string
	screen bool // stdout is a terminal
	colors bool

	last  string            // what was drawn or printed last
	drawn time.Time         // when
	said  map[string]string // by gateway, without a terminal
	err   string            // the last error, so that it is printed once
}

func (c *cli) watchStatus(ctx context.Context, p target, name string) error {
	l := &live{cli: c, from: p, name: name, screen: isTerminal(c.stdout), said: map[string]string{}}
	l.colors = l.screen && c.colors()
	for {
		if err := l.look(ctx); err != nil {
			return err
		}
		if !backoff.Wait(ctx, statusInterval) {
			return nil // the user has seen enough
		}
	}
}

// colors reports whether the user's terminal shows colors.
func (c *cli) colors() bool { return c.env("NO_COLOR") == "" && c.env("TERM") != "dumb" }

// look reads the status and shows what changed. It fails only for errors that do not pass.
func (l *live) look(ctx context.Context) error {
	ask, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	gs, err := l.from.get(ask, l.name)
	var v request.Verdict
	if err == nil {
		v, err = request.Look(ask, l.from.Clients, gs, "")
	}
	switch {
	case ctx.Err() != nil:
		return nil
	case gs == nil && !unavailable(err) && !errors.Is(err, context.DeadlineExceeded), apierrors.IsNotFound(err):
		return l.from.explain(l.name, err)
	case err != nil && l.err == "":
		fmt.Fprintln(l.stderr, clean(err.Error())+"; trying again")
	}
	if l.err = ""; err != nil {
		l.err = err.Error()
	}
	if gs == nil {
		return nil
	}
	if l.screen {
		l.draw(gs, v)
	} else {
		l.tell(gs, v)
	}
	return nil
}

// draw replaces the table on the terminal.
func (l *live) draw(gs *v1alpha1.GatewaySync, v request.Verdict) {
	var b bytes.Buffer
	describe(&b, unfinishedFirst(gs), v)
	text := b.String()
	if text == l.last && time.Since(l.drawn) < redrawEvery {
		return
	}
	l.last, l.drawn = text, time.Now()
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	width, height := 80, 24
	if f, ok := l.stdout.(*os.File); ok {
		if w, h, err := term.GetSize(int(f.Fd())); err == nil && w > 0 && h > 2 {
			width, height = w, h
		}
	}
	_, _ = io.WriteString(l.stdout, "\x1b[H\x1b[J"+strings.Join(l.fit(lines, width, height-1), "\n")+"\n") // a closed terminal ends the command
}

// fit cuts lines to a screen and colors them.
func (l *live) fit(lines []string, width, height int) []string {
	if len(lines) > height {
		more := len(lines) - height + 1
		lines = append(slices.Clone(lines[:height-1]), fmt.Sprintf("… and %d more lines: stoker status %s shows all", more, l.name))
	}
	at := -1 // the column STATUS
	for i, line := range lines {
		if runes := []rune(line); len(runes) > width {
			line = string(runes[:width-1]) + "…"
		}
		if strings.HasPrefix(line, "GATEWAY ") {
			at = strings.Index(line, "STATUS ")
		} else if l.colors && at > 0 {
			line = colored(line, at)
		}
		lines[i] = line
	}
	return lines
}

var stateColors = map[v1alpha1.GatewaySyncState]string{
	v1alpha1.GatewaySynced: "32", v1alpha1.GatewayStandby: "32", v1alpha1.GatewaySyncing: "36", v1alpha1.GatewayPending: "36",
	v1alpha1.GatewayHeld: "33", v1alpha1.GatewayError: "31",
}

// colored colors the state of a gateway, which begins at a column of its line. The state stands there as a word, so that it can be read
// without the color.
func colored(line string, at int) string {
	if len(line) <= at {
		return line
	}
	state, _, _ := strings.Cut(line[at:], " ")
	code, ok := stateColors[v1alpha1.GatewaySyncState(state)]
	if !ok {
		return line
	}
	return line[:at] + "\x1b[" + code + "m" + state + "\x1b[0m" + line[at+len(state):]
}

// unfinishedFirst returns a copy of gs whose gateways that do not run the commit come first.
func unfinishedFirst(gs *v1alpha1.GatewaySync) *v1alpha1.GatewaySync {
	c := *gs
	c.Status.DiscoveredGateways = slices.Clone(gs.Status.DiscoveredGateways)
	done := func(g v1alpha1.DiscoveredGateway) int {
		if g.SyncStatus == v1alpha1.GatewaySynced || g.SyncStatus == v1alpha1.GatewayStandby {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(c.Status.DiscoveredGateways, func(a, b v1alpha1.DiscoveredGateway) int { return done(a) - done(b) })
	return &c
}

// tell prints a line if the whole fleet changed, and one for each gateway that did.
func (l *live) tell(gs *v1alpha1.GatewaySync, v request.Verdict) {
	stamp := time.Now().UTC().Format(time.RFC3339)
	fleet := fmt.Sprintf("%s %s, %d of %d gateways run %s", gs.Name, v.Phase, v.Gateways.Synced, v.Gateways.Total, at(v.Ref, v.Commit))
	if r := gs.Status.Rollout; r != nil {
		fleet += fmt.Sprintf("; rollout %s, step %d of %d", r.Phase, r.Step, r.Steps)
		if r.Stage != "" {
			fleet += ", stage " + r.Stage
		}
	}
	if v.Message != "" {
		fleet += ": " + v.Message
	}
	if fleet != l.last {
		l.last = fleet
		fmt.Fprintln(l.stdout, stamp, oneLine(fleet))
	}
	for _, g := range gs.Status.DiscoveredGateways {
		line := request.Behind{Name: g.Name, Pod: g.PodName, Status: g.SyncStatus, Reason: g.Reason, Message: g.Message}.String()
		if g.SyncedCommit != "" {
			line += " at " + request.Short(g.SyncedCommit)
		}
		if l.said[g.Name] != line {
			l.said[g.Name] = line
			fmt.Fprintln(l.stdout, stamp, oneLine(line))
		}
	}
}
