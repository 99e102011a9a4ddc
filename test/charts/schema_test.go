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
)

// refused checks that the chart refuses values and that the message contains words.
func refused(t *testing.T, v values, words ...string) {
	t.Helper()
	_, err := install(t, v)
	if assert.Error(t, err, "%v", v) {
		for _, word := range words {
			assert.ErrorContains(t, err, word)
		}
	}
}

// place returns a dotted path in the notation of the schema's messages.
func place(path string) string { return "/" + strings.ReplaceAll(path, ".", "/") }

func TestValueOfWrongType(t *testing.T) {
	t.Parallel()
	for path, v := range leaves(t) {
		for _, wrong := range []any{[]any{}, values{}, "not this", 0.5, true} {
			if fmt.Sprintf("%T", plain(set("v", v))["v"]) == fmt.Sprintf("%T", plain(set("v", wrong))["v"]) {
				continue
			}
			if _, isText := v.(string); isText && wrong == "not this" {
				continue
			}
			if strings.Contains(strings.ToLower(path), "resources.") && wrong == 0.5 {
				continue // a quantity may be a number
			}
			refused(t, set(path, wrong), place(path))
		}
	}
}

func TestUnknownValue(t *testing.T) {
	t.Parallel()
	groups := map[string]bool{"": true}
	for path := range leaves(t) {
		for i := range path {
			if path[i] == '.' {
				groups[path[:i+1]] = true
			}
		}
	}
	require.Greater(t, len(groups), 10)
	for group := range groups {
		refused(t, set(group+"replica", 1), "'"+strings.TrimSuffix(place(group), "/")+"'", "replica")
	}
	for _, path := range []string{"injector.affinity.node", "webhook.certManager.issuerRef.names"} {
		refused(t, set(path, "x"), filepath.Base(strings.ReplaceAll(path, ".", "/")))
	}
	refused(t, set("imagePullSecrets", []any{"registry"}), "/imagePullSecrets/0")
	refused(t, set("imagePullSecrets", []any{values{"names": "registry"}}), "/imagePullSecrets/0")
}

func TestInvalidValue(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		path  string
		value any
	}{
		{"image.registry", ""},
		{"image.registry", "https://ghcr.io/stoker-io/"},
		{"image.tag", "a tag"},
		{"image.digest", "sha256:short"},
		{"image.pullPolicy", "Sometimes"},
		{"agentImage.repository", "ghcr.io/stoker-io/"},
		{"agentImage.digest", "0123"},
		{"agentEnv", values{"GIT_TOKEN_FILE": "x"}},
		{"agentEnv", values{"HTTPS_PROXY": ""}},
		{"agentEnv", values{"HTTPS_PROXY": "http://me:secret@proxy"}},
		{"agentEnv", values{"http_proxy": "ftp://proxy"}},
		{"agentEnv", values{"NO_PROXY": "me@host"}},
		{"agentEnv", values{"NO_PROXY": 1}},
		{"agentEnv", values{"HTTPS_PROXY": "http://proxy", "https_proxy": "http://proxy"}},
		{"agentArgs", []any{"--data-dir=/"}},
		{"agentArgs", []any{"--max-blob=1GiB", "--log-level=debug", "--max-blob=2GiB"}},
		{"agentArgs", []any{"--max-files=0"}},
		{"agentArgs", []any{"--max-blob=5MB"}},
		{"agentArgs", []any{"--log-level"}},
		{"watchNamespaces", []any{"North"}},
		{"watchNamespaces", []any{"north", "north"}},
		{"defaults.polling.interval", "banana"},
		{"defaults.polling.interval", "60"},
		{"webhook.replicas", 0},
		{"webhook.timeoutSeconds", 31},
		{"webhook.timeoutSeconds", 1}, // the injector's own lookup takes that long
		{"webhook.allowAgentImages", []any{""}},
		{"admissionPolicies.mountableSecretLabel", "example.com/for"},
		{"admissionPolicies.mountableSecretLabel", "a=b'c"},
		{"webhook.certManager.issuerRef", values{"kind": "ClusterIssuer"}},
		{"webhook.existingSecret", "mine"},
		{"webhook.caBundle", "Q0E="},
		{"webhook.caBundle", "-----BEGIN CERTIFICATE-----"},
		{"injector.repair", "fix"},
		{"injector.logLevel", "trace"},
		{"injector.resources.limits.memory", "a lot"},
		{"injector.extraArgs", []any{"log-level=debug"}},
		{"injector.podLabels", values{"a": "b c"}},
		{"commonLabels", values{"app.kubernetes.io/name": "mine"}},
		{"injector.podLabels", values{"app.kubernetes.io/component": "mine"}},
		{"metrics.podMonitor.labels", values{"helm.sh/chart": "mine"}},
		{"commonLabels", values{"a": strings.Repeat("x", 64)}},
		{"metrics.podMonitor.interval", "often"},
		{"webhookReceiver.replicas", 0},
		{"webhookReceiver.image.digest", "latest"},
		{"webhookReceiver.image.pullPolicy", "Sometimes"},
		{"webhookReceiver.service.type", "ExternalName"},
		{"webhookReceiver.service.port", 0},
		{"webhookReceiver.ingress.enabled", true},
		{"webhookReceiver.ingress.hosts", []any{"https://stoker.example.com"}},
		{"webhookReceiver.ingress.paths", []any{}},
		{"webhookReceiver.ingress.paths", []any{"webhook"}},
		{"webhookReceiver.ingress.tls", []any{values{"secret": "mine"}}},
		{"webhookReceiver.tls.enabled", true},
		{"webhookReceiver.tls.certManager.issuerRef", values{"kind": "ClusterIssuer"}},
		{"webhookReceiver.tls.certManager.dnsNames", []any{"a_b"}},
		{"webhookReceiver.installSecret.key", ""},
		{"webhookReceiver.installSecret.key", "a/b"},
		{"webhookReceiver.secrets", []any{values{"name": "stoker-webhook"}}},
		{"webhookReceiver.secrets", []any{values{"namespace": "Line", "name": "stoker-webhook"}}},
		{"webhookReceiver.secrets", []any{values{"namespace": "line", "name": "*"}}},
		{"webhookReceiver.networkPolicy.apiServer.ports", []any{}},
		{"webhookReceiver.networkPolicy.apiServer.ports", []any{"https"}},
		{"webhookReceiver.podLabels", values{"app.kubernetes.io/component": "mine"}},
		{"notifier.replicas", 0},
		{"notifier.settle", "soon"},
		{"notifier.pageURL", "javascript:alert(1)"},
		{"notifier.proxy.url", "http://user:password@proxy.example.com:3128"},
		{"notifier.proxy.url", "socks5://proxy.example.com"},
		{"notifier.proxy.noProxy", "a b"},
		{"configSync.namespaces", []any{"Plant"}},
		{"configSync.accounts", []any{}},
		{"configSync.temporary", "63Mi"},
		{"configSync.temporary", "67M"},
		{"configSync.temporary", "0Gi"},
		{"configSync.temporary", "1024"},
		{"configSync.accounts", []any{"plant:default"}},
		{"notifier.secrets", []any{values{"name": "stoker-alerts"}}},
		{"hooks.image.tag", "a tag"},
		{"hooks.namespaces", []any{"Line"}},
		{"hooks.namespaces", []any{"line", "line"}},
		{"hooks.applications.namespace", ""},
		{"hooks.applications.names", []any{"*"}},
		{"hooks.applications.names", []any{"plant"}},
	} {
		words := []string{place(c.path)}
		// If another value is missing, the message names that value.
		if lacks, ok := map[string]string{
			"webhook.existingSecret": "webhook.caBundle", "webhookReceiver.ingress.enabled": "webhookReceiver.ingress.hosts",
			"webhookReceiver.tls.enabled": "webhookReceiver.tls.secretName", "hooks.applications.names": "hooks",
		}[c.path]; ok {
			words = []string{place(lacks)}
		}
		if _, ok := c.value.([]any); ok {
			words = []string{strings.Split(place(c.path), "/")[1]}
		}
		refused(t, set(c.path, c.value), words...)
	}
	refused(t, with(set("webhook.certManager.enabled", true), set("webhook.existingSecret", "mine"), set("webhook.caBundle", "Q0E=")), place("webhook.existingSecret"))
	refused(t, with(onTLS, set("webhookReceiver.tls.secretName", "mine")), place("webhookReceiver.tls.secretName"))
}

// Helm adds the key global to the values of every subchart.
func TestGlobalValuesOfParentChart(t *testing.T) {
	t.Parallel()
	_, err := install(t, set("global.anything", "x"))
	assert.NoError(t, err)
}

func TestOlderKubernetesIsRejected(t *testing.T) {
	t.Parallel()
	_, err := renderOn("v1.29.9", nil)
	assert.ErrorContains(t, err, "1.30")
	for _, version := range []string{"v1.30.0", "v1.31.2-gke.100", "v1.37.1"} {
		t.Run(version, func(t *testing.T) {
			_, err := renderOn(version, nil)
			assert.NoError(t, err)
		})
	}
}

func TestSchemaCoversValues(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join(chartDir, "values.schema.json"))
	require.NoError(t, err)
	var schema map[string]any
	require.NoError(t, json.Unmarshal(raw, &schema))
	var walk func(prefix string, in map[string]any)
	known := map[string]bool{}
	walk = func(prefix string, in map[string]any) {
		properties, _ := in["properties"].(map[string]any)
		for name, p := range properties {
			known[prefix+name] = true
			walk(prefix+name+".", p.(map[string]any))
		}
	}
	walk("", schema)
	all := leaves(t)
	for path := range all {
		assert.True(t, known[path], "%s has no schema", path)
	}
	for path := range known {
		covered := path == "global"
		for leaf := range all {
			// The schema may define more keys of a map that is empty by default.
			covered = covered || leaf == path || strings.HasPrefix(leaf, path+".") || strings.HasPrefix(path, leaf+".")
		}
		covered = covered || strings.Contains(strings.ToLower(path), "resources.")
		assert.True(t, covered, "the schema has %s, which values.yaml does not have", path)
	}
}
