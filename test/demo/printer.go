package main

import (
	"fmt"
	"io"
	"strings"
)

// printer prints the story, and counts the checked facts.
type printer struct {
	out    io.Writer
	checks int
}

func (t *printer) line(format string, args ...any) {
	fmt.Fprintf(t.out, format+"\n", args...)
}

func (t *printer) step(n int, title string) { t.line("\n%d. %s", n, title) }

// say prints what happens.
func (t *printer) say(text string) { t.line("   %s", text) }

// show prints evidence, at most eight lines.
func (t *printer) show(text string) {
	const maxLines = 8
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i, line := range lines {
		if i == maxLines {
			t.line("     | … and %d more lines", len(lines)-maxLines)
			return
		}
		t.line("     | %s", line)
	}
}

// check prints a fact that is true. Otherwise it returns the error that ends the demo.
func (t *printer) check(ok bool, format string, args ...any) error {
	fact := fmt.Sprintf(format, args...)
	if !ok {
		return fmt.Errorf("this should be true and is not: %s", fact)
	}
	t.checks++
	t.line("   ✓ %s", fact)
	return nil
}
