package decide

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write docs/internals/decisions.md")

const page = "../../docs/internals/decisions.md"

// TestPage compares decisions.md with the doc comments of the functions in its list.
func TestPage(t *testing.T) {
	comments := functionComments(t)
	var b strings.Builder
	b.WriteString("<!-- Generated from agent/decide by `go test ./agent/decide -run Page -update`. -->\n\n# What a gateway does next\n\n" +
		"`agent/decide` has every rule of this as a function without I/O, and a table test for each.\n")
	// sequence: the sections of one page
	for _, s := range []struct{ title, function string }{
		{"The next step", "Next"}, {"The gate of a rollout", "gate"}, {"While a gate is closed", "Closed.StopsOrder"}, {"Pauses", "Pause.Apply"},
		{"Maintenance windows", "Delivery.WaitsForWindow"}, {"The validation webhook", "Delivery.NeedsReview"}, {"Restores", "Restore"},
		{"Automatic rollback", "Failures.Add"}, {"Changes that are proposed to git", "Wait.Blocks"}, {"The next move of a proposal", "Schedule.Move"},
		{"Drift", "Drift.Repair"},
	} {
		require.NotEmpty(t, comments[s.function], s.function)
		b.WriteString("\n## " + s.title + "\n\n" + comments[s.function])
	}
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(b.String()), 0o644))
	}
	is, err := os.ReadFile(page)
	require.NoError(t, err)
	assert.Equal(t, b.String(), string(is), "run go test ./agent/decide -run Page -update")
}

// functionComments returns the comments of the package's functions as Markdown, by name; of methods by Type.Name.
func functionComments(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	comments, table := map[string]string{}, regexp.MustCompile(`(?m)^\t`)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		require.NoError(t, err)
		for _, d := range tree.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Doc != nil {
				name := f.Name.Name
				if f.Recv != nil {
					name = strings.TrimPrefix(types.ExprString(f.Recv.List[0].Type), "*") + "." + name
				}
				comments[name] = table.ReplaceAllString(f.Doc.Text(), "    ")
			}
		}
	}
	return comments
}
