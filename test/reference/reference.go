// Package reference compares a program with its page in the documentation.
package reference

import (
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Rows returns the rows of all tables in a text whose first cell is code. The key is the first cell without backquotes; the
// value holds the next n-1 cells.
func Rows(text string, n int) map[string][]string {
	rows := map[string][]string{}
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		first := strings.TrimSpace(cells[0])
		if len(cells) < n || !strings.HasPrefix(first, "`") {
			continue
		}
		var row []string
		for _, cell := range cells[1:n] {
			row = append(row, strings.Trim(strings.TrimSpace(cell), "`"))
		}
		rows[strings.Trim(first, "`")] = row
	}
	return rows
}

// Page returns the text of a page.
func Page(t testing.TB, page string) string {
	t.Helper()
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Flags verifies that a page lists exactly the flags of a program, each as `--name` with its default.
func Flags(t testing.TB, page string, flags *flag.FlagSet) {
	t.Helper()
	rows := Rows(Page(t, page), 2)
	names := map[string]bool{}
	flags.VisitAll(func(f *flag.Flag) {
		name := "--" + f.Name
		names[name] = true
		row, ok := rows[name]
		switch {
		case !ok:
			t.Errorf("%s does not list %s", page, name)
		case f.DefValue == "" || f.DefValue == "false":
		case !sameDefault(f.DefValue, row[0]):
			t.Errorf("%s: the default of %s is %s, and not %s", page, name, f.DefValue, row[0])
		}
	})
	if len(names) == 0 {
		t.Error("the program has no flags")
	}
	nothingElse(t, page, rows, "--", names)
}

// sameDefault compares a default with the page. Durations may differ in form, because 720h is more readable than 720h0m0s.
func sameDefault(actual, documented string) bool {
	a, errA := time.ParseDuration(actual)
	b, errB := time.ParseDuration(documented)
	return actual == documented || errA == nil && errB == nil && a == b
}

var (
	metricName   = regexp.MustCompile(`fqName: "([^"]+)"`)
	metricLabels = regexp.MustCompile(`variableLabels: \{([^}]*)\}`)
)

// Metrics verifies that a page lists exactly the registered metrics of the project, each with its labels.
func Metrics(t testing.TB, page string, registered prometheus.Collector) {
	t.Helper()
	rows := Rows(Page(t, page), 2)
	descs := make(chan *prometheus.Desc)
	go func() { registered.Describe(descs); close(descs) }()
	names := map[string]bool{}
	for d := range descs {
		m, labels := metricName.FindStringSubmatch(d.String()), metricLabels.FindStringSubmatch(d.String())
		if m == nil || labels == nil {
			t.Errorf("unexpected description of a metric: %s", d)
			continue
		}
		name := m[1]
		names[name] = true
		row, ok := rows[name]
		if !ok {
			t.Errorf("%s does not list %s", page, name)
		} else if actual, documented := plain(labels[1]), plain(row[0]); actual != documented {
			t.Errorf("%s: the labels of %s are %q, and not %q", page, name, actual, documented)
		}
	}
	if len(names) == 0 {
		t.Error("the program has no metrics")
	}
	nothingElse(t, page, rows, "stoker_", names)
}

// plain removes the Markdown and Go syntax from a list of labels.
func plain(labels string) string { return strings.NewReplacer("`", "", " ", "").Replace(labels) }

// nothingElse verifies that a page lists only existing names among those with a prefix.
func nothingElse(t testing.TB, page string, rows map[string][]string, prefix string, existing map[string]bool) {
	t.Helper()
	for name := range rows {
		if strings.HasPrefix(name, prefix) && !existing[name] {
			t.Errorf("%s lists %s, which does not exist", page, name)
		}
	}
}
