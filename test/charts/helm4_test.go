package charts

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Helm 4 renders the chart as Helm 3 does, and accepts its values and its schema.
func TestHelm4(t *testing.T) {
	t.Parallel()
	newer := filepath.Join(t.TempDir(), "helm4")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", newer, "helm.sh/helm/v4/cmd/helm").CombinedOutput()
	require.NoError(t, err, "%s", out)
	chart := filepath.Join("..", "..", "charts", "stoker")
	// Helm 4 writes another number of empty lines between the objects.
	objectsOf := func(out string) (all []string) {
		for o := range strings.SplitSeq(out, "\n---\n") {
			all = append(all, strings.TrimSpace(strings.TrimPrefix(o, "---\n")))
		}
		return all
	}
	run := func(t *testing.T, program string, args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), program, args...).Output()
		require.NoError(t, err, "%s %v", program, args)
		return string(out)
	}
	for name, set := range map[string]string{
		"defaults":   "crds.keep=true",
		"every part": "webhookReceiver.enabled=true,notifier.enabled=true,configSync.enabled=true,configSync.namespaces={line},metrics.serviceMonitor.enabled=true,metrics.podMonitor.enabled=true,metrics.rules.enabled=true,metrics.dashboards.enabled=true",
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"template", "stoker", chart, "--namespace", "stoker-system", "--set", set, "--kube-version", "v1.37.2"}
			older := objectsOf(run(t, theHelm(t), args...))
			assert.Greater(t, len(older), 20)
			assert.Equal(t, older, objectsOf(run(t, newer, args...)))
		})
	}
	t.Run("lint", func(t *testing.T) { run(t, newer, "lint", "--strict", chart) })
	t.Run("schema", func(t *testing.T) {
		out, err := exec.CommandContext(t.Context(), newer, "template", "stoker", chart, "--set", "injector.replicas=x").CombinedOutput()
		require.Error(t, err)
		assert.Contains(t, string(out), "replicas")
	})
}
