package display

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/hooks/output"
	"stoker.io/stoker/internal/request"
)

// redrawInterval is how often an unchanged status is drawn again, because the size of the terminal may have changed.
const redrawInterval = 5 * time.Second

// Viewer shows a GatewaySync while it changes: as a table that it redraws on a terminal, otherwise as a line for each change.
type Viewer struct {
	w        io.Writer
	terminal bool
	colors   bool
	context  string // that commands name
	behind   bool   // only gateways that are behind

	last     string            // what was drawn or printed last
	lastDraw time.Time         // of last
	lines    map[string]string // last line of each gateway, without a terminal
}

// NewViewer returns a Viewer that writes to w. It uses colors on a terminal, unless the environment env tells it not to. context
// and onlyBehind are as for Describe.
func NewViewer(w io.Writer, env func(string) string, context string, onlyBehind bool) *Viewer {
	terminal := output.IsTerminal(w)
	return &Viewer{w: w, terminal: terminal, colors: terminal && allowsColors(env), context: context, behind: onlyBehind, lines: map[string]string{}}
}

func allowsColors(env func(string) string) bool {
	return env("NO_COLOR") == "" && env("TERM") != "dumb"
}

// Show shows what changed since the last call.
func (l *Viewer) Show(gs *v1alpha1.GatewaySync, v request.Verdict) {
	if l.terminal {
		l.draw(gs, v)
	} else {
		l.printChanges(gs, v)
	}
}

// draw replaces the table on the terminal.
func (l *Viewer) draw(gs *v1alpha1.GatewaySync, v request.Verdict) {
	var b bytes.Buffer
	Describe(&b, gs, v, l.context, l.behind)
	text := b.String()
	if text == l.last && time.Since(l.lastDraw) < redrawInterval {
		return
	}
	l.last, l.lastDraw = text, time.Now()
	width, height := 80, 24
	if f, ok := l.w.(*os.File); ok {
		if w, h, err := term.GetSize(int(f.Fd())); err == nil && w > 0 && h > 2 {
			width, height = w, h
		}
	}
	lines := l.fit(gs.Name, strings.Split(strings.TrimRight(text, "\n"), "\n"), width, height-1)
	_, _ = io.WriteString(l.w, "\x1b[H\x1b[J"+strings.Join(lines, "\n")+"\n") // a closed terminal ends the command
}

// fit cuts lines to a screen and colors them. It wraps the lines above the tables, which say what to do.
func (l *Viewer) fit(name string, lines []string, width, height int) []string {
	head := slices.Index(lines, "")
	if head < 0 {
		head = len(lines)
	}
	var wrapped []string
	for _, line := range lines[:head] {
		wrapped = append(wrapped, wrap(line, width)...)
	}
	if lines = append(wrapped, lines[head:]...); len(lines) > height {
		more := len(lines) - height + 1
		lines = append(slices.Clone(lines[:height-1]), fmt.Sprintf("… and %d more lines: stoker status %s shows all", more, name))
	}
	statusColumn := -1
	for i, line := range lines {
		if runes := []rune(line); len(runes) > width {
			line = string(runes[:width-1]) + "…"
		}
		if strings.HasPrefix(line, "GATEWAY ") {
			statusColumn = strings.Index(line, "STATUS ")
		} else if l.colors && statusColumn > 0 {
			line = colorStatus(line, statusColumn)
		}
		lines[i] = line
	}
	return lines
}

// wrap breaks a line at spaces. Further lines begin below the value of its label.
func wrap(line string, width int) (lines []string) {
	const indent = 13 // of the values that Describe prints
	for {
		runes := []rune(line)
		if len(runes) <= width || width <= 2*indent {
			return append(lines, line)
		}
		at := width
		for at > indent && runes[at] != ' ' {
			at--
		}
		if at == indent { // a word that is wider than the screen, which cuts it
			return append(lines, line)
		}
		lines = append(lines, strings.TrimRight(string(runes[:at]), " "))
		line = strings.Repeat(" ", indent) + strings.TrimLeft(string(runes[at:]), " ")
	}
}

var statusColors = map[v1alpha1.GatewaySyncState]string{
	v1alpha1.GatewaySynced: "32", v1alpha1.GatewayStandby: "32", v1alpha1.GatewaySyncing: "36", v1alpha1.GatewayPending: "36",
	v1alpha1.GatewayHeld: "33", v1alpha1.GatewayError: "31",
}

// colorStatus colors the word of a line that begins at a column, if it is the status of a gateway.
func colorStatus(line string, column int) string {
	if len(line) <= column {
		return line
	}
	status, _, _ := strings.Cut(line[column:], " ")
	code, ok := statusColors[v1alpha1.GatewaySyncState(status)]
	if !ok {
		return line
	}
	return line[:column] + "\x1b[" + code + "m" + status + "\x1b[0m" + line[column+len(status):]
}

// printChanges prints a line if the summary changed, and one for each gateway that did.
func (l *Viewer) printChanges(gs *v1alpha1.GatewaySync, v request.Verdict) {
	now := time.Now().Format(time.RFC3339)
	summary := fmt.Sprintf("%s %s, %d of %d gateways run %s", gs.Name, v.Phase, v.Gateways.Synced, v.Gateways.Total, output.RefAt(v.Ref, v.Commit))
	if r := gs.Status.Rollout; r != nil {
		summary += "; rollout " + rolloutStep(r)
	}
	if v.Message != "" {
		summary += ": " + v.Message
	}
	if summary != l.last {
		l.last = summary
		fmt.Fprintln(l.w, now, output.OneLine(summary))
	}
	gateways, behind := behindFirst(gs, v)
	for i, g := range gateways {
		if l.behind && i >= behind && l.lines[g.Name] == "" {
			continue
		}
		line := request.Behind{Name: g.Name, Pod: g.PodName, Status: g.SyncStatus, Reason: g.Reason, Message: g.Message}.String()
		if g.SyncedCommit != "" {
			line += " at " + syntax.ShortCommit(g.SyncedCommit)
		}
		if l.lines[g.Name] != line {
			l.lines[g.Name] = line
			fmt.Fprintln(l.w, now, output.OneLine(line))
		}
	}
}
