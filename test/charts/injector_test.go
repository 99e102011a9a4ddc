package charts

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Values change only the namespaces and the timeout of the webhook configuration. Everything else is that of the default values,
// which is also in kustomize/base and which the injector's tests run against an API server.
func TestWebhookConfigurationValues(t *testing.T) {
	t.Parallel()
	outside := []any{"kube-system", namespace}
	expr := func(key, operator string, list ...any) any {
		return map[string]any{"key": key, "operator": operator, "values": list}
	}
	system, notDisabled := expr("kubernetes.io/metadata.name", "NotIn", outside...), expr("stoker.io/injection", "NotIn", "disabled")
	enabled := expr("stoker.io/injection", "In", "enabled")
	for name, c := range map[string]struct {
		values     values
		namespaces []any
		timeout    int64
	}{
		"defaults":                   {nil, []any{system, notDisabled}, 2},
		"required label":             {set("webhook.namespaceSelector.requireLabel", true), []any{system, enabled}, 2},
		"watched namespaces":         {set("watchNamespaces", []any{"north", "south"}), []any{system, expr("kubernetes.io/metadata.name", "In", "north", "south"), notDisabled}, 2},
		"timeout":                    {set("webhook.timeoutSeconds", 7), []any{system, notDisabled}, 7},
		"required label and timeout": {with(set("webhook.namespaceSelector.requireLabel", true), set("webhook.timeoutSeconds", 7)), []any{system, enabled}, 7},
	} {
		t.Run(name, func(t *testing.T) {
			entries := func(v values) []any { return rendered(t, v)[webhooks].Object["webhooks"].([]any) }
			got, want := entries(c.values), entries(nil)
			require.Len(t, got, 2)
			for i := range got {
				entry, base := maps.Clone(got[i].(map[string]any)), maps.Clone(want[i].(map[string]any)) // rendered objects are cached
				assert.Equal(t, map[string]any{"matchExpressions": c.namespaces}, entry["namespaceSelector"])
				assert.EqualValues(t, c.timeout, entry["timeoutSeconds"])
				for _, field := range []string{"namespaceSelector", "timeoutSeconds"} {
					delete(entry, field)
					delete(base, field)
				}
				assert.Equal(t, base, entry)
			}
		})
	}
}

// exits runs a program of the project and returns its exit code and output.
func exits(t *testing.T, part string, arguments ...string) (int, string) {
	t.Helper()
	program := shipped(t, part) // build first: a build may take longer than the timeout
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, program, arguments...)
	cmd.Env, cmd.Stderr = []string{"POD_NAME=" + part, "POD_NAMESPACE=" + namespace}, &said
	_ = cmd.Run() // the exit code is checked below
	return cmd.ProcessState.ExitCode(), said.String()
}

// Each program parses the arguments that the chart passes. It exits with code 2 before it does anything
// else if it does not know a flag or rejects a value.
func TestProgramArguments(t *testing.T) {
	t.Parallel()
	missing, mounted := filepath.Join(t.TempDir(), "none"), t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(mounted, "install-secret"), 0o700))
	for _, key := range []string{"secret", "token"} {
		require.NoError(t, os.WriteFile(filepath.Join(mounted, "install-secret", key), []byte("a secret of some length"), 0o600))
	}
	tried := map[string]int{}
	for _, c := range valueCases {
		for name, p := range pods(t, c.values()) {
			one := p.Spec.Containers[0]
			part, ends := "injector", "find the API server"
			switch {
			case strings.Contains(name, "receiver"):
				part = "receiver"
			case name == notifier, name == configSync:
				part, ends = "stoker", "load the kubeconfig"
			}
			arguments := slices.Clone(one.Args)
			if name == receiverCheck {
				continue // covered by TestReceiverRunsWithChartRights
			}
			image := p.Annotations["stoker.io/image-of-agents"] // the kubelet substitutes it
			for i, a := range arguments {
				arguments[i] = strings.NewReplacer("=/etc/stoker/install-secret", "="+mounted+"/install-secret", "$(AGENT_IMAGE)", image).Replace(a)
			}
			arguments = append(arguments, "--kubeconfig="+missing)
			if name == "CronJob/stoker-system/stoker-certificate" {
				assert.Equal(t, []string{"renew"}, one.Args)
			}
			if key := part + strings.Join(arguments, "\x00"); tried[key] == 0 {
				tried[key]++
				code, said := exits(t, part, arguments...)
				assert.Equal(t, 1, code, "%s with %s: %s", name, c.path, said)
				assert.Contains(t, said, ends, "%s with %s: without a cluster, the program must fail only after the arguments are parsed", name, c.path)
			}
		}
	}
	assert.Greater(t, len(tried), 20)
}

func TestReceiverDefaultsMatchChart(t *testing.T) {
	t.Parallel()
	code, said := exits(t, "receiver", "--nobody-knows=this")
	assert.Equal(t, 2, code, said)
	_, help := exits(t, "receiver", "--help")
	defaults(t, help, map[string]string{"webhook-addr": ":9444", "health-addr": ":8082", "metrics-addr": ":8083"})
}

// defaults checks the default values of flags in the help of a program.
func defaults(t *testing.T, help string, of map[string]string) {
	t.Helper()
	for flag, value := range of {
		_, after, found := strings.Cut(help, "-"+flag+" ")
		require.True(t, found, flag)
		usage, _, _ := strings.Cut(after, "\n  -")
		assert.Contains(t, usage, `(default "`+value+`")`, "the chart relies on this default")
	}
}

func TestInjectorDefaultsMatchChart(t *testing.T) {
	t.Parallel()
	code, said := exits(t, "injector", "--agent-image=x:1", "--nobody-knows=this")
	assert.Equal(t, 2, code, said)
	_, help := exits(t, "injector", "--help")
	defaults(t, help, map[string]string{
		"webhook-addr": ":9443", "health-addr": ":8082", "metrics-addr": ":8083", "certificate-dir": "/etc/stoker/tls",
	})
	_, after, _ := strings.Cut(help, "-agent-resources ")
	usage, _, _ := strings.Cut(after, "\n  -")
	_, standard, found := strings.Cut(usage, `(default "`)
	require.True(t, found)
	standard, _, _ = strings.Cut(standard, `")`)
	assert.JSONEq(t, strings.ReplaceAll(standard, `\"`, `"`), mustJSON(t, theChart(t).Values["agentResources"]), "chart and injector must have the same default")
}

func mustJSON(t testing.TB, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	require.NoError(t, err)
	return string(data)
}
