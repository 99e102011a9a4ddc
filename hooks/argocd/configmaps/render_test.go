package main

import (
	"cmp"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	texttemplate "text/template"

	"github.com/expr-lang/expr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/internal/sender"
)

const (
	kinds   = "../resource_customizations/stoker.io"
	scripts = kinds + "/GatewaySync"
	shipped = "../../../charts/stoker/files/argocd"
)

func TestConfigMapsAreCurrent(t *testing.T) {
	patches, err := render(os.DirFS(kinds))
	require.NoError(t, err)
	for name, want := range patches {
		got, err := os.ReadFile(filepath.Join(shipped, name))
		require.NoError(t, err)
		assert.Equal(t, want, string(got), "run go generate ./hooks/argocd/...")
	}
}

// Argo CD must run exactly the files that the tests cover, byte for byte.
func TestConfigMapHoldsScripts(t *testing.T) {
	patches, err := render(os.DirFS(kinds))
	require.NoError(t, err)
	var cm struct{ Data map[string]string }
	require.NoError(t, yaml.UnmarshalStrict([]byte(patches["argocd-cm.yaml"]), &struct {
		APIVersion, Kind string
		Metadata         map[string]string
		Data             *map[string]string
	}{Data: &cm.Data}))
	file := func(path string) string {
		text, err := os.ReadFile(filepath.Join(scripts, path))
		require.NoError(t, err)
		return string(text)
	}
	assert.Equal(t, file("health.lua"), cm.Data["resource.customizations.health.stoker.io_GatewaySync"])
	assert.Equal(t, file("../ConfigSync/health.lua"), cm.Data["resource.customizations.health.stoker.io_ConfigSync"])
	var menu struct {
		Discovery   string `json:"discovery.lua"`
		Definitions []struct {
			Name   string `json:"name"`
			Action string `json:"action.lua"`
		} `json:"definitions"`
	}
	require.NoError(t, yaml.UnmarshalStrict([]byte(cm.Data["resource.customizations.actions.stoker.io_GatewaySync"]), &menu))
	assert.Equal(t, file("actions/discovery.lua"), menu.Discovery)
	folders, err := filepath.Glob(filepath.Join(scripts, "actions", "*", "action.lua"))
	require.NoError(t, err)
	require.Len(t, menu.Definitions, len(folders), "each action with a script must be offered")
	for _, d := range menu.Definitions {
		assert.Equal(t, file("actions/"+d.Name+"/action.lua"), d.Action)
	}
	menu.Definitions = nil
	require.NoError(t, yaml.UnmarshalStrict([]byte(cm.Data["resource.customizations.actions.stoker.io_ConfigSync"]), &menu))
	assert.Equal(t, file("../ConfigSync/actions/discovery.lua"), menu.Discovery)
	require.Len(t, menu.Definitions, 4)
	for _, d := range menu.Definitions {
		assert.Equal(t, file("actions/"+d.Name+"/action.lua"), d.Action, "both kinds must have the same action")
	}
	for _, kind := range []string{"GatewaySync", "ConfigSync"} {
		var updates struct{ JSONPointers []string }
		require.NoError(t, yaml.UnmarshalStrict([]byte(cm.Data["resource.customizations.ignoreResourceUpdates.stoker.io_"+kind]), &updates))
		assert.Equal(t, []string{"/status"}, updates.JSONPointers)
	}
	assert.Len(t, cm.Data, 6)
}

// application returns an Application as a template sees it.
func application(phase string) map[string]any {
	status := map[string]any{}
	if phase != "" {
		status["operationState"] = map[string]any{"phase": phase, "startedAt": "2026-01-02T12:00:00Z"}
	}
	return map[string]any{"app": map[string]any{
		"metadata": map[string]any{"name": "line", "annotations": map[string]any{"stoker.io/gatewaysync": "site"}},
		"spec":     map[string]any{"destination": map[string]any{"namespace": "plant"}},
		"status":   status,
	}}
}

// filled executes a template of a notification as Argo CD does.
func filled(t *testing.T, text string, app map[string]any) string {
	t.Helper()
	parsed, err := texttemplate.New("").Parse(text)
	require.NoError(t, err)
	var b strings.Builder
	require.NoError(t, parsed.Execute(&b, app))
	return b.String()
}

// The receiver accepts the HTTP request that the notification describes.
func TestNotificationReachesReceiver(t *testing.T) {
	var n struct {
		Webhook struct {
			Stoker struct{ Method, Path, Body string }
		}
	}
	require.NoError(t, yaml.Unmarshal([]byte(syncTemplate), &n))
	app := application("Succeeded")
	assert.Equal(t, http.MethodPost, n.Webhook.Stoker.Method)
	assert.Equal(t, "/webhook/plant/site", filled(t, n.Webhook.Stoker.Path, app))
	var s struct {
		Headers []struct{ Name, Value string }
	}
	require.NoError(t, yaml.Unmarshal([]byte(service), &s))
	header := http.Header{}
	for _, h := range s.Headers {
		header.Set(h.Name, h.Value)
	}
	assert.Equal(t, "Bearer $stoker-token", header.Get("Authorization"))
	got, err := sender.Parse(header, []byte(filled(t, n.Webhook.Stoker.Body, app)))
	require.NoError(t, err)
	assert.Equal(t, sender.Request{Sender: sender.ArgoCD, Kind: sender.KindRequest, ID: "line/2026-01-02T12:00:00Z"}, got, "Argo CD syncs a commit of another repository, so the request must not name a ref")
}

// Argo CD notifies the receiver once for each sync that succeeds.
func TestNotificationOncePerSync(t *testing.T) {
	var conditions []struct {
		When, OncePer string
		Send          []string
	}
	require.NoError(t, yaml.Unmarshal([]byte(syncTrigger), &conditions))
	require.Len(t, conditions, 1)
	assert.Equal(t, []string{"stoker-sync"}, conditions[0].Send)
	for phase, want := range map[string]bool{"Succeeded": true, "Running": false, "Failed": false, "Error": false, "": false} {
		t.Run(cmp.Or(phase, "none"), func(t *testing.T) {
			got, err := expr.Eval(conditions[0].When, application(phase))
			require.NoError(t, err)
			assert.Equal(t, want, got)
			once, err := expr.Eval(conditions[0].OncePer, application(phase))
			require.NoError(t, err)
			if phase != "" {
				assert.Equal(t, "2026-01-02T12:00:00Z", once)
			}
		})
	}
}

// Argo CD notifies users of the health of an Application, with what its GatewaySyncs say.
func TestNotificationOfHealth(t *testing.T) {
	var n struct{ Message string }
	require.NoError(t, yaml.Unmarshal([]byte(healthTemplate), &n))
	for name, c := range map[string]struct {
		health   string
		resource map[string]any // health of the GatewaySync
		url      string
		sent     string // by which trigger
		message  string
	}{
		"healthy": {health: "Healthy"},
		"none":    {},
		"degraded": {health: "Degraded", resource: map[string]any{"status": "Degraded", "message": "area-4: ScanFailed"}, url: "https://argocd.example.com", sent: "Degraded",
			message: "Application line is Degraded.\nGatewaySync plant/site is Degraded: area-4: ScanFailed. See: stoker status site --namespace plant\n" +
				"https://argocd.example.com/applications/argocd/line\n"},
		"waiting": {health: "Suspended", resource: map[string]any{"status": "Suspended"}, sent: "Suspended",
			message: "Application line is Suspended.\nGatewaySync plant/site is Suspended. See: stoker status site --namespace plant\n"},
		"health of the resource is missing": {health: "Degraded", sent: "Degraded",
			message: "Application line is Degraded.\nGatewaySync plant/site. See: stoker status site --namespace plant\n"},
	} {
		t.Run(name, func(t *testing.T) {
			values := application("Succeeded")
			app := values["app"].(map[string]any)
			app["metadata"].(map[string]any)["namespace"] = "argocd"
			values["context"] = map[string]any{"argocdUrl": c.url}
			sync := map[string]any{"group": "stoker.io", "kind": "GatewaySync", "namespace": "plant", "name": "site"}
			if c.resource != nil {
				sync["health"] = c.resource
			}
			status := app["status"].(map[string]any)
			status["resources"] = []any{map[string]any{"kind": "Service", "name": "line"}, sync}
			if c.health != "" {
				status["health"] = map[string]any{"status": c.health}
			}
			for _, health := range []string{"Degraded", "Suspended"} {
				t.Run(health, func(t *testing.T) {
					var conditions []struct {
						When string
						Send []string
					}
					require.NoError(t, yaml.Unmarshal([]byte(healthTrigger("x", health)), &conditions))
					require.Len(t, conditions, 1)
					assert.Equal(t, []string{"stoker-health"}, conditions[0].Send)
					got, err := expr.Eval(conditions[0].When, values)
					require.NoError(t, err)
					assert.Equal(t, c.sent == health, got, health)
				})
			}
			if c.sent != "" {
				assert.Equal(t, c.message, filled(t, n.Message, values))
			}
		})
	}
}

// The kustomize component adds keys to Argo CD's ConfigMaps. In the manifests of users these have a namespace or none, and data or none.
func TestComponentMergesConfigMaps(t *testing.T) {
	for _, metadata := range []string{"{name: NAME}", "{name: NAME, namespace: argocd}"} {
		t.Run(metadata, func(t *testing.T) {
			files := filesys.MakeFsInMemory()
			patches, err := render(os.DirFS(kinds))
			require.NoError(t, err)
			component, err := os.ReadFile(shipped + "/kustomization.yaml")
			require.NoError(t, err)
			patches["kustomization.yaml"] = string(component)
			for name, text := range patches {
				require.NoError(t, files.WriteFile("/component/"+name, []byte(text)))
			}
			base := "apiVersion: v1\nkind: ConfigMap\nmetadata: " + metadata + "\n"
			require.NoError(t, files.WriteFile("/argocd/cm.yaml", []byte(strings.ReplaceAll(base, "NAME", "argocd-cm")+"data: {url: https://argocd.example.com}\n---\n"+
				strings.ReplaceAll(base, "NAME", "argocd-notifications-cm"))))
			require.NoError(t, files.WriteFile("/argocd/kustomization.yaml", []byte("resources: [cm.yaml]\ncomponents: [../component]\n")))
			found, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, "/argocd")
			require.NoError(t, err)
			require.Equal(t, 2, found.Size())
			for i, keys := range []int{7, 6} { // argocd-cm: its own url and 6 keys of the component; argocd-notifications-cm: 6 keys of the component
				data := found.Resources()[i].GetDataMap()
				assert.Len(t, data, keys)
			}
			health, err := os.ReadFile(scripts + "/health.lua")
			require.NoError(t, err)
			assert.Equal(t, string(health), found.Resources()[0].GetDataMap()["resource.customizations.health.stoker.io_GatewaySync"])
		})
	}
}
