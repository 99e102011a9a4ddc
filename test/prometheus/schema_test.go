package prometheus

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const packageJSON = `{"private": true, "dependencies": {"@grafana/schema": "13.2.3", "typescript": "7.0.2"}}`

// declaration declares a dashboard of the type Dashboard. Plain replaces each enumeration by its strings, because JSON has only
// these.
const declaration = "import type { Dashboard } from '@grafana/schema';\n" +
	"type Plain<T> = T extends string ? `${T}` : T extends (infer U)[] ? Plain<U>[] : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;\n" +
	"export const dashboard: Plain<Dashboard> = "

// The dashboards match the types that Grafana publishes. The test needs npm and its registry.
func TestGrafanaSchema(t *testing.T) {
	for _, program := range []string{"npm", "node"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed: the dashboards are not compared with Grafana's types", program)
		}
	}
	dir := t.TempDir()
	write := func(name, content string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	write("package.json", packageJSON)
	install := exec.CommandContext(t.Context(), "npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=0")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		t.Skipf("npm cannot install @grafana/schema: the dashboards are not compared with Grafana's types: %v\n%s", err, out)
	}
	check := func(name string) (string, error) {
		compile := exec.CommandContext(t.Context(), "node", "node_modules/typescript/bin/tsc", "--noEmit", "--strict", "--skipLibCheck",
			"--module", "nodenext", "--moduleResolution", "nodenext", name)
		compile.Dir = dir
		out, err := compile.CombinedOutput()
		return string(out), err
	}
	for uid := range loadDashboards(t) {
		t.Run(uid, func(t *testing.T) {
			write(uid+".ts", declaration+string(readFile(t, dashboardDir+uid+".json"))+";\n")
			out, err := check(uid + ".ts")
			assert.NoError(t, err, out)
		})
	}
	t.Run("wrong type", func(t *testing.T) {
		write("wrong.ts", declaration+`{"schemaVersion": 39, "editable": "no", "panels": []};`+"\n")
		_, err := check("wrong.ts")
		assert.Error(t, err)
	})
}
