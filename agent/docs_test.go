package main

import (
	"flag"
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
	"stoker.io/stoker/internal/metrics"
)

func document(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("../docs/" + name)
	require.NoError(t, err)
	return string(b)
}

// cells returns the first n cells of every table row whose first cell is code.
func cells(doc string, n int) map[string][]string {
	rows := map[string][]string{}
	for line := range strings.Lines(doc) {
		c := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(c) >= n && strings.HasPrefix(strings.TrimSpace(c[0]), "`") {
			key := strings.Trim(strings.TrimSpace(c[0]), "`")
			for _, v := range c[1:n] {
				rows[key] = append(rows[key], strings.Trim(strings.TrimSpace(v), "`"))
			}
		}
	}
	return rows
}

func TestTheReferenceListsEveryFlagWithItsDefault(t *testing.T) {
	rows := cells(document(t, "agent.md"), 2)
	var s settings
	var names []string
	s.flags(io.Discard).VisitAll(func(f *flag.Flag) {
		names = append(names, "--"+f.Name)
		row, ok := rows["--"+f.Name]
		if !assert.True(t, ok, "docs/agent.md does not list --%s", f.Name) {
			return
		}
		want := f.DefValue
		if want == "720h0m0s" {
			want = "720h"
		}
		if want != "" && want != "false" {
			assert.Equal(t, want, row[0], "--%s", f.Name)
		}
	})
	for name := range rows {
		if strings.HasPrefix(name, "--") {
			assert.Contains(t, names, name, "docs/agent.md lists a flag that is not there")
		}
	}
}

func TestTheReferenceListsEveryVariableOfTheEnvironment(t *testing.T) {
	rows := cells(document(t, "agent.md"), 3)
	comment, err := os.ReadFile("main.go")
	require.NoError(t, err)
	var e environment
	var names []string
	for _, v := range e.variables() {
		names = append(names, v.name)
		row, ok := rows[v.name]
		if assert.True(t, ok, "docs/agent.md does not list %s", v.name) {
			assert.Equal(t, v.required, row[0] == "required", v.name)
		}
		assert.Contains(t, string(comment), v.name, "the package comment lists them all")
	}
	variable := regexp.MustCompile(`^[A-Z][A-Z_]+$`)
	for name := range rows {
		if variable.MatchString(name) {
			assert.Contains(t, names, name, "docs/agent.md lists a variable that is not there")
		}
	}
}

func TestTheReferenceListsEveryMetric(t *testing.T) {
	rows := cells(document(t, "agent.md"), 2)
	reg := prometheus.NewRegistry()
	metrics.NewAgent(reg, "v", "n", "s", "g")
	metrics.NewFleet(reg, "n", "s")
	descs := make(chan *prometheus.Desc, 100)
	reg.Describe(descs)
	close(descs)
	name := regexp.MustCompile(`fqName: "([^"]+)"`)
	labels := regexp.MustCompile(`variableLabels: \{([^}]*)\}`)
	var names []string
	for d := range descs {
		m := name.FindStringSubmatch(d.String())[1]
		names = append(names, m)
		row, ok := rows[m]
		if !assert.True(t, ok, "docs/agent.md does not list %s", m) {
			continue
		}
		documented := strings.ReplaceAll(strings.ReplaceAll(row[0], "`", ""), " ", "")
		assert.Equal(t, strings.ReplaceAll(labels.FindStringSubmatch(d.String())[1], " ", ""), documented, m)
	}
	for m := range rows {
		if strings.HasPrefix(m, "stoker_") {
			assert.Contains(t, names, m, "docs/agent.md lists a metric that is not there")
		}
	}
}

func TestTroubleshootingHasASectionForEveryReasonUnderItsClass(t *testing.T) {
	var class string
	sections := map[string]string{}
	classes := map[string]bool{}
	for _, r := range v1alpha1.Reasons {
		classes[string(r.Class)] = true
	}
	for line := range strings.Lines(document(t, "troubleshooting.md")) {
		if c, ok := strings.CutPrefix(line, "## "); ok {
			class = strings.TrimSpace(c)
		}
		if r, ok := strings.CutPrefix(line, "### "); ok && classes[class] {
			sections[strings.TrimSpace(r)] = class
		}
	}
	for _, r := range v1alpha1.Reasons {
		assert.Equal(t, string(r.Class), sections[string(r.Reason)], "docs/troubleshooting.md: ### %s", r.Reason)
		delete(sections, string(r.Reason))
	}
	assert.Empty(t, sections, "docs/troubleshooting.md has sections for reasons that are not there")
}

func TestExitCodesAreThoseOfTheReference(t *testing.T) {
	rows := document(t, "agent.md")
	for _, code := range []int{exitDone, exitFailed, exitUsage, exitTimeout, exitHeld} {
		assert.True(t, slices.ContainsFunc(strings.Split(rows, "\n"), func(l string) bool {
			return strings.HasPrefix(l, "| "+string(rune('0'+code))+" |")
		}), "exit code %d", code)
	}
}
