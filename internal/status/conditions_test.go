package status

import (
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the table of conditions in docs/reference/status.md")

func TestDocumentedConditions(t *testing.T) {
	const page, begin, end = "../../docs/reference/status.md", "<!-- conditions: begin -->\n", "<!-- conditions: end -->\n"
	raw, err := os.ReadFile(page)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(raw), begin)
	require.True(t, found)
	is, after, found := strings.Cut(rest, end)
	require.True(t, found)
	table := "| condition | True | False | Unknown |\n|---|---|---|---|\n"
	for _, c := range Conditions {
		table += "| `" + c.Type + "` | " + c.True + " | " + c.False + " | " + c.Unknown + " |\n"
	}
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(before+begin+table+end+after), 0o644))
		return
	}
	assert.Equal(t, table, is, "go test ./internal/status -update")
}

func TestEventsAreDocumented(t *testing.T) {
	source, err := os.ReadFile("../../api/v1alpha1/event.go")
	require.NoError(t, err)
	page, err := os.ReadFile("../../docs/reference/status.md")
	require.NoError(t, err)
	names := regexp.MustCompile(`\bEvent\w+ += "(\w+)"`).FindAllStringSubmatch(string(source), -1)
	require.Greater(t, len(names), 15)
	for _, name := range names {
		assert.Contains(t, string(page), "`"+name[1]+"`")
	}
}

func TestConditionsAreListed(t *testing.T) {
	s := newScene(t, 1)
	s.GatewaySync.Spec.Git.Repo = "git@git.example.com:site.git"
	listed := map[string]bool{}
	for _, c := range Conditions {
		listed[c.Type] = true
	}
	s.moves(commitB)
	for _, c := range s.write().Conditions {
		assert.True(t, listed[c.Type], c.Type)
	}
}
