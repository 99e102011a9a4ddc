package charts

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

const (
	tableBegin = "<!-- values: written by `go test -update` in test/charts from values.yaml -->\n"
	tableEnd   = "<!-- end of values -->\n"
)

// table generates the reference of values from values.yaml and its comments.
func table(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(chartDir, "values.yaml"))
	require.NoError(t, err)
	var document yaml.Node
	require.NoError(t, yaml.Unmarshal(data, &document))
	var b strings.Builder
	b.WriteString("| value | default | meaning |\n|---|---|---|\n")
	var walk func(prefix string, in *yaml.Node)
	walk = func(prefix string, in *yaml.Node) {
		for i := 0; i < len(in.Content); i += 2 {
			name, value := in.Content[i], in.Content[i+1]
			paragraphs := strings.Split(name.HeadComment, "\n\n") // the first key also has the head comment of the file
			comment := strings.Join(strings.Fields(strings.ReplaceAll(paragraphs[len(paragraphs)-1], "#", " ")), " ")
			path := prefix + name.Value
			if value.Kind == yaml.MappingNode && len(value.Content) > 0 {
				walk(path+".", value)
				continue
			}
			require.NotEmpty(t, comment, "%s: values.yaml has no comment for it", path)
			var plain any
			require.NoError(t, value.Decode(&plain))
			standard, err := json.Marshal(plain)
			require.NoError(t, err)
			fmt.Fprintf(&b, "| `%s` | `%s` | %s |\n", path, standard, strings.NewReplacer("|", `\|`, "<", "&lt;").Replace(comment))
		}
	}
	walk("", document.Content[0])
	return b.String()
}

func TestReadmeListsValues(t *testing.T) {
	t.Parallel()
	path := filepath.Join(chartDir, "README.md")
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(data), tableBegin)
	require.True(t, found)
	got, after, found := strings.Cut(rest, tableEnd)
	require.True(t, found)
	want := table(t)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(before+tableBegin+want+tableEnd+after), 0o644))
		got = want
	}
	assert.Equal(t, want, got, "run go test -update")
	for value := range leaves(t) {
		assert.Contains(t, want, "| `"+value+"` |")
	}
}
