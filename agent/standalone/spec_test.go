package standalone

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

const minimal = `apiVersion: stoker.io/v1alpha1
kind: GatewaySync
spec:
  git: {repo: "https://git.example.com/plant.git", ref: main}
  sync: {profiles: {default: {mappings: [{source: a, destination: projects}]}}}
`

func writeFile(t *testing.T, name, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	return file
}

func TestLoadMultipleDocuments(t *testing.T) {
	gs, _, err := Load(writeFile(t, "line-1.yaml", "kind: ConfigMap\napiVersion: v1\nodd: field\n---\n"+minimal+"---\n# nothing\n"))
	require.NoError(t, err, "the ConfigMap is not read")
	assert.Equal(t, "line-1", gs.Name)
	assert.Equal(t, "standalone", gs.Namespace)
}

func TestLoadErrorsNameTheField(t *testing.T) {
	for broken, names := range map[string]string{
		strings.Replace(minimal, "ref: main", "ref: [main]", 1):                    "ref",
		strings.Replace(minimal, "ref: main", "ref: -x", 1):                        "spec.git.ref",
		strings.Replace(minimal, "destination: projects", "destination: ../up", 1): "destination",
		strings.Replace(minimal, "stoker.io/v1alpha1", "stoker.io/v9", 1):          "stoker.io/v9",
		"kind: ConfigMap":           "GatewaySync",
		minimal + "---\n" + minimal: "more than one",
		"a: [":                      "line",
		minimal + "  unknown: {}\n": `unknown field "spec.unknown"`,
	} {
		t.Run(broken, func(t *testing.T) {
			file := writeFile(t, "gs.yaml", broken)
			_, _, err := Load(file)
			require.Error(t, err, broken)
			assert.Equal(t, v1alpha1.ReasonProfilesInvalid, failure.Reason(err, ""), broken)
			assert.Contains(t, err.Error(), names)
			assert.Contains(t, err.Error(), file)
		})
	}
	_, _, err := Load(filepath.Join(t.TempDir(), "nothing.yaml"))
	assert.ErrorIs(t, err, os.ErrNotExist)
	_, _, err = Load(writeFile(t, "huge.yaml", strings.Repeat("#", maxFile+1)))
	assert.ErrorContains(t, err, "larger than")
}
