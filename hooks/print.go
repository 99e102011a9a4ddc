package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/internal/request"
)

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Output formats.
const (
	asTable = "table"
	asJSON  = "json"
	asYAML  = "yaml"
	asName  = "name"
)

// addOutputFlag adds the flag for the output format to a command. The format is checked before the command runs.
func addOutputFlag(command *cobra.Command) *string {
	form := command.Flags().StringP("output", "o", asTable, "output format: table, json, yaml or name")
	inner := command.RunE
	command.RunE = func(command *cobra.Command, args []string) error {
		switch *form {
		case asTable, asJSON, asYAML, asName:
			return inner(command, args)
		}
		return exitErrorf(exitUsage, "unknown --output %.40q: use table, json, yaml or name", *form)
	}
	return form
}

// result is the output of a command in all formats.
type result struct {
	table func(io.Writer)
	data  any      // for JSON and YAML
	names []string // one per line
}

func (c *cli) print(form string, r result) error {
	switch form {
	case asJSON:
		b, err := json.MarshalIndent(r.data, "", "    ")
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(c.stdout, "%s\n", b)
		return err
	case asYAML:
		b, err := yaml.Marshal(r.data)
		if err != nil {
			return err
		}
		_, err = c.stdout.Write(b)
		return err
	case asName:
		for _, name := range r.names {
			if _, err := fmt.Fprintln(c.stdout, clean(name)); err != nil {
				return err
			}
		}
		return nil
	}
	r.table(c.stdout)
	return nil
}

// rows writes a table as kubectl does. It cleans the cells, which come from the cluster and may hold anything.
func rows(w io.Writer, head []string, lines [][]string) {
	t := printers.GetNewTabWriter(w)
	fmt.Fprintln(t, strings.Join(head, "\t"))
	for _, cells := range lines {
		for i, cell := range cells {
			if i > 0 {
				fmt.Fprint(t, "\t")
			}
			cell = oneLine(cell)
			if cell == "" {
				cell = "-"
			}
			fmt.Fprint(t, cell)
		}
		fmt.Fprintln(t)
	}
	_ = t.Flush() // if stdout is closed, there is no place to report the error
}

// clean replaces characters that could control a terminal: control characters except the newline, and bidirectional ones.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && (unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control)) {
			return '?'
		}
		return r
	}, s)
}

func oneLine(s string) string { return clean(strings.Join(strings.Fields(s), " ")) }

const maxCell = 100

// cut shortens a text to maxCell characters for a table.
func cut(s string) string {
	s = oneLine(s)
	if r := []rune(s); len(r) > maxCell {
		return string(r[:maxCell-1]) + "…"
	}
	return s
}

func age(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return duration.HumanDuration(time.Since(t))
}

// at returns a ref with its commit.
func at(ref, commit string) string {
	switch {
	case commit == "":
		return ref
	case strings.HasPrefix(commit, ref):
		return request.Short(commit)
	}
	return ref + " at " + request.Short(commit)
}

// counted returns a number with its noun, such as "2 files".
func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}
