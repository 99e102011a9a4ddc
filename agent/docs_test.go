package main

import (
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/internal/metrics"
	"stoker.io/stoker/test/reference"
)

func document(t *testing.T, name string) string {
	t.Helper()
	return reference.Page(t, "../docs/"+name)
}

func TestFlagReference(t *testing.T) {
	var s settings
	reference.Flags(t, "../docs/reference/agent.md", s.flags(io.Discard))
}

func TestEnvironmentReference(t *testing.T) {
	rows := reference.Rows(document(t, "reference/agent.md"), 3)
	comment, err := os.ReadFile("main.go")
	require.NoError(t, err)
	var e environment
	var names []string
	for _, v := range e.variables() {
		names = append(names, v.name)
		row, ok := rows[v.name]
		if assert.True(t, ok, "docs/reference/agent.md must list %s", v.name) {
			assert.Equal(t, v.required, row[0] == "required", v.name)
		}
		assert.Contains(t, string(comment), v.name, "the package comment must list the variable")
	}
	variable := regexp.MustCompile(`^[A-Z][A-Z_]+$`)
	for name := range rows {
		if variable.MatchString(name) {
			assert.Contains(t, names, name, "docs/reference/agent.md must list only variables that exist")
		}
	}
}

func TestMetricReference(t *testing.T) {
	reg := prometheus.NewRegistry()
	metrics.NewAgent(reg, "v", "n", "s", "g")
	metrics.NewFleet(reg, "n", "s")
	reference.Metrics(t, "../docs/reference/agent.md", reg)
}

func TestTroubleshooting(t *testing.T) {
	var class string
	sections := map[string]string{}
	classes := map[string]bool{}
	for _, r := range v1alpha1.Reasons {
		classes[string(r.Class)] = true
	}
	for line := range strings.Lines(document(t, "how-to/troubleshooting.md")) {
		if c, ok := strings.CutPrefix(line, "## "); ok {
			class = strings.TrimSpace(c)
		}
		if r, ok := strings.CutPrefix(line, "### "); ok && classes[class] {
			sections[strings.TrimSpace(r)] = class
		}
	}
	for _, r := range v1alpha1.Reasons {
		assert.Equal(t, string(r.Class), sections[string(r.Reason)], "docs/how-to/troubleshooting.md: ### %s", r.Reason)
		delete(sections, string(r.Reason))
	}
	assert.Empty(t, sections, "docs/how-to/troubleshooting.md has sections for reasons that do not exist")
}

func TestExitCodeReference(t *testing.T) {
	rows := document(t, "reference/agent.md")
	for _, code := range []int{daemon.ExitDone, daemon.ExitFailed, daemon.ExitUsage, exitTimeout, exitHeld} {
		assert.True(t, slices.ContainsFunc(strings.Split(rows, "\n"), func(l string) bool {
			return strings.HasPrefix(l, "| "+string(rune('0'+code))+" |")
		}), "exit code %d", code)
	}
}
