package charts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A kustomization cannot turn a plain rules file into a PrometheusRule, so it has a copy of the alerts. `go test -update` writes it.
func TestKustomizeAlerts(t *testing.T) {
	t.Parallel()
	plain, err := os.ReadFile(filepath.Join(chartDir, "files/prometheus/rules.yaml"))
	require.NoError(t, err)
	_, groups, found := strings.Cut(string(plain), "\ngroups:\n")
	require.True(t, found)
	sameFile(t, filepath.Join(kustomizeDir, "components/monitoring-rules/rules.yaml"), `# The alerts of charts/stoker/files/prometheus/rules.yaml, written by "go test -update" in test/charts.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: stoker
  namespace: stoker-system
  labels:
    app.kubernetes.io/name: stoker
    app.kubernetes.io/part-of: stoker
spec:
  groups:
`+indented(groups))
}

func indented(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString("  " + line)
	}
	return b.String()
}

func sameFile(t *testing.T, path, want string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
		return
	}
	is, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, want, string(is), "go test -run 'Kustomize|Readme' . -update")
}

func TestUnknownAlertHasNoSeverity(t *testing.T) {
	t.Parallel()
	_, err := install(t, with(set("metrics.rules.enabled", true), set("metrics.rules.severities", values{"StokerMadeUp": "page"})))
	require.ErrorContains(t, err, "there is no alert StokerMadeUp")
}
