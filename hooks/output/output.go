// Package output prints the results of commands as a table, JSON, YAML or names. Texts come from the cluster and from git: tables
// and names replace the characters that could control a terminal.
package output

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/pflag"
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/hooks/exit"
)

// Formats.
const (
	Table = "table"
	JSON  = "json"
	YAML  = "yaml"
	Name  = "name"
)

// AddFlag adds the flag --output to the flags of a command. CheckFlag checks its value before the command runs.
func AddFlag(f *pflag.FlagSet) *string {
	return f.StringP("output", "o", Table, "output format: table, json, yaml or name")
}

// CheckFlag returns an error if the flags of a command have --output with an unknown format.
func CheckFlag(f *pflag.FlagSet) error {
	flag := f.Lookup("output")
	if flag == nil || slices.Contains([]string{Table, JSON, YAML, Name}, flag.Value.String()) {
		return nil
	}
	return exit.Errorf(exit.Usage, "unknown --output %.40q: use table, json, yaml or name", flag.Value.String())
}

// Result is the output of a command in all formats.
type Result struct {
	Data  any // for JSON and YAML
	Names []string
	// Head and Rows are the table. If Text is set, it prints the table instead.
	Head []string
	Rows [][]string
	Text func(io.Writer)
}

// Add adds a row to the table, and the name of what it shows.
func (r *Result) Add(name string, cells ...string) {
	r.Names = append(r.Names, name)
	r.Rows = append(r.Rows, cells)
}

// Print writes r to w. An unknown format is a table.
func (r *Result) Print(w io.Writer, format string) error {
	switch format {
	case JSON:
		b, err := json.MarshalIndent(r.Data, "", "    ")
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(w, "%s\n", b)
		return err
	case YAML:
		b, err := yaml.Marshal(r.Data)
		if err != nil {
			return err
		}
		_, err = w.Write(b)
		return err
	case Name:
		for _, name := range r.Names {
			if _, err := fmt.Fprintln(w, Clean(name)); err != nil {
				return err
			}
		}
		return nil
	}
	if r.Text != nil {
		r.Text(w)
	} else {
		WriteTable(w, r.Head, r.Rows)
	}
	return nil
}

// WriteTable writes a table as kubectl does. It cleans the cells, and writes "-" for an empty one.
func WriteTable(w io.Writer, head []string, rows [][]string) {
	t := printers.GetNewTabWriter(w)
	fmt.Fprintln(t, strings.Join(head, "\t"))
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			if cells[i] = OneLine(cell); cells[i] == "" {
				cells[i] = "-"
			}
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	_ = t.Flush() // if stdout is closed, there is no place to report the error
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Clean replaces characters that could control a terminal: control characters except the newline, and bidirectional ones.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && (unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control)) {
			return '?'
		}
		return r
	}, s)
}

// CleanText is Clean for the text of files: it keeps tabs, and shows the other ASCII control characters as their symbols.
func CleanText(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\t':
			return r
		case r < ' ':
			return '\u2400' + r
		case unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control):
			return '?'
		}
		return r
	}, s)
}

// OneLine returns s cleaned, with each run of white space replaced by one space.
func OneLine(s string) string { return Clean(strings.Join(strings.Fields(s), " ")) }

const maxCell = 100

// Shorten returns s as one line that is cut to 100 characters, for a cell of a table.
func Shorten(s string) string {
	s = OneLine(s)
	if r := []rune(s); len(r) > maxCell {
		return string(r[:maxCell-1]) + "…"
	}
	return s
}

// Age returns how long ago t was, such as 5m, or "" for the zero time.
func Age(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return duration.HumanDuration(time.Since(t))
}

// RefAt returns a ref with its commit, such as "main at 1f0c2d3".
func RefAt(ref, commit string) string {
	switch {
	case commit == "":
		return ref
	case strings.HasPrefix(commit, ref):
		return syntax.ShortCommit(commit)
	}
	return ref + " at " + syntax.ShortCommit(commit)
}

// Count returns a number with its noun, such as "2 files".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
