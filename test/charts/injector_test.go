package charts

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/injector/admission"
	"stoker.io/stoker/test/cluster/build"
)

// The injector says which pods it wants to be asked about; the chart tells the API server.
func TestWebhookConfigurationIsWhatTheInjectorExpects(t *testing.T) {
	for name, c := range map[string]struct {
		values values
		of     admission.Installation
	}{
		"defaults":           {nil, admission.Installation{Namespace: namespace, TimeoutSeconds: 2}},
		"labelled":           {set("webhook.namespaceSelector.requireLabel", true), admission.Installation{Namespace: namespace, TimeoutSeconds: 2, RequireLabel: true}},
		"namespaces":         {set("watchNamespaces", []any{"north", "south"}), admission.Installation{Namespace: namespace, TimeoutSeconds: 2, Watch: []string{"north", "south"}}},
		"another patience":   {set("webhook.timeoutSeconds", 7), admission.Installation{Namespace: namespace, TimeoutSeconds: 7}},
		"labelled, patience": {with(set("webhook.namespaceSelector.requireLabel", true), set("webhook.timeoutSeconds", 7)), admission.Installation{Namespace: namespace, TimeoutSeconds: 7, RequireLabel: true}},
	} {
		t.Run(name, func(t *testing.T) {
			want, err := json.Marshal(admission.Webhooks(c.of))
			require.NoError(t, err)
			got, err := json.Marshal(rendered(t, c.values)[webhooks].Object["webhooks"])
			require.NoError(t, err)
			assert.JSONEq(t, string(want), string(got))
		})
	}
}

// The injector's own program reads what the chart passes: a flag that it does not know, or a value that it refuses, ends it
// with exit code 2 before it does anything else.
func TestTheInjectorTakesTheArgumentsItIsGiven(t *testing.T) {
	program := filepath.Join(t.TempDir(), "injector")
	cache, err := build.Open(build.Cache{Say: os.Stderr})
	require.NoError(t, err)
	require.NoError(t, cache.Main(t.Context(), "./injector", program))
	// Without an API server it ends with 1, which is later.
	exits := func(t *testing.T, arguments ...string) (int, string) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var said bytes.Buffer
		cmd := exec.CommandContext(ctx, program, arguments...)
		cmd.Env, cmd.Stderr = []string{"POD_NAME=injector", "POD_NAMESPACE=" + namespace}, &said
		_ = cmd.Run() // its exit code says it
		return cmd.ProcessState.ExitCode(), said.String()
	}
	for _, c := range valueCases {
		t.Run(c.path, func(t *testing.T) {
			for name, p := range pods(t, with(c.given, set(c.path, c.value))) {
				code, said := exits(t, append(p.Spec.Containers[0].Args, "--kubeconfig="+filepath.Join(t.TempDir(), "none"))...)
				assert.Equal(t, 1, code, "%s: %s", name, said)
				assert.Contains(t, said, "find the API server", name)
			}
		})
	}
	code, said := exits(t, "--agent-image=x:1", "--nobody-knows=this")
	assert.Equal(t, 2, code, said)
	_, help := exits(t, "--help")
	for flag, value := range map[string]string{
		"webhook-addr": ":9443", "health-addr": ":8082", "metrics-addr": ":8083", "certificate-dir": "/etc/stoker/tls",
		"certificate-secret": "stoker-injector-cert", "webhook-configuration": "stoker-injector",
	} {
		_, after, found := strings.Cut(help, "-"+flag+" ")
		require.True(t, found, flag)
		usage, _, _ := strings.Cut(after, "\n  -")
		assert.Contains(t, usage, `(default "`+value+`")`, "the chart counts on it")
	}
	_, after, _ := strings.Cut(help, "-agent-resources ")
	usage, _, _ := strings.Cut(after, "\n  -")
	_, standard, found := strings.Cut(usage, `(default "`)
	require.True(t, found)
	standard, _, _ = strings.Cut(standard, `")`)
	assert.JSONEq(t, strings.ReplaceAll(standard, `\"`, `"`), mustJSON(t, loadChart(t).Values["agentResources"]), "chart and injector have one default")
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	require.NoError(t, err)
	return string(data)
}
