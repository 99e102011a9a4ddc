package render

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// rows returns the table rows of the pages whose first cell is code.
func rows(t *testing.T) [][]string {
	t.Helper()
	var pages []byte
	// setup: one text
	for _, page := range []string{"how-to/templates.md", "reference/template-functions.md"} {
		raw, err := os.ReadFile("../../../docs/" + page)
		require.NoError(t, err)
		pages = append(pages, raw...)
	}
	var list [][]string
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| `([^`]+)` \\| (.*) \\|$").FindAllStringSubmatch(string(pages), -1) {
		list = append(list, m[1:])
	}
	return list
}

func TestDocumentedFactsAndFunctions(t *testing.T) {
	f := Facts{
		GatewayName: "line-1", PodName: "line-1-gateway-0", Namespace: "north", CRName: "plant", Ref: "main",
		Labels: map[string]string{"example.com/area": "7"}, DeploymentMode: "dev", TagProvider: "default",
	}
	var facts, functions []string
	for _, row := range rows(t) {
		if name, ok := strings.CutPrefix(row[0], "."); ok {
			facts = append(facts, name)
			continue
		}
		functions = append(functions, row[0])
		got, _, err := Text(row[0], row[1], &f)
		require.NoError(t, err)
		assert.Contains(t, row[1], row[0], "the example of %s uses it", row[0])
		assert.Equal(t, strings.Trim(row[2], "`"), strings.TrimSpace(got), row[0])
	}
	assert.ElementsMatch(t, slices.Collect(maps.Keys(f.values())), facts)
	hidden := []string{step, "html", "js", "urlquery", "call"}
	var want []string
	for name := range (&meter{}).functions() {
		if !slices.Contains(hidden, name) {
			want = append(want, name)
		}
	}
	assert.ElementsMatch(t, want, functions)
}
