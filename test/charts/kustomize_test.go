package charts

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

const kustomizeDir = "../../kustomize"

// kustomized runs `kubectl kustomize` with its default restrictions: a kustomization cannot use files
// outside its folder, except other kustomizations.
func kustomized(t testing.TB, dir string) objects {
	t.Helper()
	found, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	require.NoError(t, err)
	manifest, err := found.AsYaml()
	require.NoError(t, err)
	return parse(t, manifest)
}

// ownLabels are labels that only objects from Helm have.
var ownLabels = []string{"helm.sh/chart", "app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "app.kubernetes.io/version"}

// alike removes what only one of the two ways to install has.
func alike(all objects) objects {
	found := objects{}
	for name, o := range all {
		if o.GetKind() == "Namespace" {
			continue // helm install creates it with --create-namespace
		}
		o = o.DeepCopy()
		if o.GetKind() == "Job" {
			prefix, hash, _ := strings.Cut(o.GetName(), "-certificate")
			o.SetName(prefix + "-certificate") // the chart adds a hash of the template
			name = strings.TrimSuffix(name, hash)
		}
		for _, path := range [][]string{{"metadata"}, {"spec", "template", "metadata"}, {"spec", "jobTemplate", "spec", "template", "metadata"}} {
			for _, label := range ownLabels {
				unstructured.RemoveNestedField(o.Object, append(slices.Clone(path), "labels", label)...)
			}
		}
		unstructured.RemoveNestedField(o.Object, "metadata", "annotations", "helm.sh/resource-policy")
		unstructured.RemoveNestedField(o.Object, "spec", "jobTemplate", "metadata") // kustomize labels it, too
		if o.GetKind() == "Deployment" {
			arguments, _ := at(o.Object, pod+"/containers/0/args")
			slices.SortFunc(arguments.([]any), func(a, b any) int { return strings.Compare(a.(string), b.(string)) })
		}
		found[name] = o
	}
	return found
}

func same(t *testing.T, chart, kustomize objects) {
	t.Helper()
	chart, kustomize = alike(chart), alike(kustomize)
	assert.Equal(t, slices.Sorted(maps.Keys(chart)), slices.Sorted(maps.Keys(kustomize)))
	for name, o := range chart {
		if other, ok := kustomize[name]; ok {
			assert.Equal(t, o.Object, other.Object, name)
		}
	}
}

func TestKustomizeBaseMatchesChart(t *testing.T) {
	t.Parallel()
	base := kustomized(t, filepath.Join(kustomizeDir, "base"))
	maps.Copy(base, kustomized(t, filepath.Join(kustomizeDir, "crd")))
	same(t, rendered(t, nil), base)
}

func TestClusterOverlayMatchesChart(t *testing.T) {
	t.Parallel()
	overlay := kustomized(t, filepath.Join(kustomizeDir, "overlays", "cluster"))
	require.Contains(t, overlay, "Namespace/"+namespace)
	same(t, rendered(t, nil), overlay)
}

func TestNamespaceOverlayMatchesChart(t *testing.T) {
	t.Parallel()
	same(t, rendered(t, set("watchNamespaces", []any{"ignition"})), kustomized(t, filepath.Join(kustomizeDir, "overlays", "namespaced")))
}

func TestComponentsMatchChart(t *testing.T) {
	t.Parallel()
	onHooks := with(set("hooks.namespaces", []any{"ignition"}), set("hooks.applications.names", []any{"plant"}))
	for components, v := range map[string]values{
		"cert-manager":                            set("webhook.certManager.enabled", true),
		"monitoring":                              with(set("metrics.serviceMonitor.enabled", true), set("metrics.podMonitor.enabled", true)),
		"dashboards":                              set("metrics.dashboards.enabled", true),
		"monitoring-rules":                        set("metrics.rules.enabled", true),
		"receiver":                                on,
		"receiver receiver-secrets":               with(on, set("webhookReceiver.secrets", []any{values{"namespace": "ignition", "name": "stoker-webhook"}})),
		"receiver receiver-ingress":               with(onIngress, set("webhookReceiver.ingress.tls", []any{values{"hosts": []any{"stoker.example.com"}, "secretName": "stoker-example-com"}})),
		"receiver receiver-network-policy":        onNetworking,
		"monitoring receiver receiver-monitoring": with(on, set("metrics.serviceMonitor.enabled", true), set("metrics.podMonitor.enabled", true)),
		"notifier":                                set("notifier.enabled", true),
		"notifier notifier-secrets":               with(set("notifier.enabled", true), set("notifier.secrets", []any{values{"namespace": "ignition", "name": "stoker-alerts"}})),
		"configsync":                              with(set("configSync.enabled", true), set("configSync.namespaces", []any{"ignition"})),
		"monitoring configsync configsync-monitoring": with(set("configSync.enabled", true), set("configSync.namespaces", []any{"ignition"}),
			set("metrics.serviceMonitor.enabled", true), set("metrics.podMonitor.enabled", true)),
		"monitoring notifier notifier-monitoring": with(set("notifier.enabled", true), set("metrics.serviceMonitor.enabled", true), set("metrics.podMonitor.enabled", true)),
		"hooks":            onHooks,
		"hooks hooks-pods": with(onHooks, set("hooks.pods", true)),
		"kargo":            set("kargo.tasks.enabled", true),
	} {
		t.Run(components, func(t *testing.T) {
			same(t, rendered(t, v), kustomized(t, withComponents(t, strings.Fields(components)...)))
		})
	}
	t.Run("kargo/analysis", func(t *testing.T) {
		chart := rendered(t, set("kargo.verification.enabled", true))
		// Only the chart knows the installed version of the hooks.
		chart["ClusterAnalysisTemplate/stoker-wait"] = without(t, chart["ClusterAnalysisTemplate/stoker-wait"], "spec/args/image", "value")
		same(t, chart, kustomized(t, withComponents(t, "kargo/analysis")))
	})
	t.Run("receiver-namespaced", func(t *testing.T) {
		dir := overlay(t, "resources: [../namespaced]\ncomponents: [../../components/receiver, ../../components/receiver-namespaced]\n")
		same(t, rendered(t, with(on, set("watchNamespaces", []any{"ignition"}))), kustomized(t, dir))
	})
}

// without returns a copy of an object without a key at a path.
func without(t *testing.T, o *object, path, key string) *object {
	t.Helper()
	o = o.DeepCopy()
	in, ok := at(o.Object, path)
	require.True(t, ok, path)
	require.Contains(t, in, key)
	delete(in.(map[string]any), key)
	return o
}

// Users who install Argo CD with kustomize add the component. Others patch its ConfigMaps with the patches
// of the chart. Both must keep the other content of the ConfigMaps.
func TestArgoCDFilesMatchKustomize(t *testing.T) {
	t.Parallel()
	dir := overlay(t, "resources: [argocd.yaml]\ncomponents: [../../components/argocd]\n")
	names := []string{"argocd-cm", "argocd-notifications-cm"}
	var theirs strings.Builder
	for _, name := range names {
		fmt.Fprintf(&theirs, "---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: %s}, data: {theirs: kept}}\n", name)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "argocd.yaml"), []byte(theirs.String()), 0o644))
	patched := kustomized(t, dir)
	config := rendered(t, set("argocd.config.enabled", true))["ConfigMap/stoker-system/stoker-argocd"]
	patches, ok := at(config.Object, "data")
	require.True(t, ok)
	assert.Len(t, patches, len(names))
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			patch := parseOne(t, patches.(values)[name+".yaml"].(string))
			assert.Equal(t, name, patch.GetName())
			want := maps.Clone(patch.Object["data"].(values))
			assert.NotEmpty(t, want)
			want["theirs"] = "kept"
			assert.Equal(t, want, patched["ConfigMap/"+name].Object["data"], name)
		})
	}
}

// withComponents writes an overlay that uses the given components.
func withComponents(t testing.TB, components ...string) string {
	t.Helper()
	lines := "resources: [../../crd, ../../base]\ncomponents:\n"
	for _, c := range components {
		lines += "  - ../../components/" + c + "\n"
	}
	return overlay(t, lines)
}

// overlay writes a kustomization beside the existing overlays.
func overlay(t testing.TB, text string) string {
	t.Helper()
	dir, err := os.MkdirTemp(filepath.Join(kustomizeDir, "overlays"), "test-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o644))
	return dir
}

func TestEveryComponentHasATest(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir(filepath.Join(kustomizeDir, "components"))
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	assert.Equal(t, []string{"argocd", "cert-manager", "configsync", "configsync-monitoring", "dashboards", "hooks", "hooks-pods", "kargo", "monitoring", "monitoring-rules", "notifier", "notifier-monitoring", "notifier-secrets",
		"receiver", "receiver-ingress", "receiver-monitoring",
		"receiver-namespaced", "receiver-network-policy", "receiver-secrets"}, names)
}

// The agent's image is an argument of the injector, not a field called image. The overlay must not change
// the variables of other containers.
func TestPrivateRegistry(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, folder := range []string{"kustomize", "charts/stoker/files/crds"} {
		require.NoError(t, os.CopyFS(filepath.Join(dir, folder), os.DirFS(filepath.Join("../..", folder))))
	}
	overlay := filepath.Join(dir, "kustomize", "overlays", "cluster")
	file := filepath.Join(overlay, "kustomization.yaml")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	before, block, found := strings.Cut(string(text), "# images:\n")
	require.True(t, found)
	block = "images:\n" + strings.ReplaceAll(block, "#   ", "  ")
	assertImages := func(t *testing.T, objects objects) {
		t.Helper()
		injector := objects[deployment]
		require.NotNil(t, injector)
		for path, want := range map[string]string{container + "/image": "registry.example.com/stoker/injector:0.1.0", agentImage: "registry.example.com/stoker/agent:0.1.0"} {
			got, _ := at(injector.Object, path)
			assert.Equal(t, want, got, path)
		}
	}

	t.Run("in a kustomization above", func(t *testing.T) {
		above := filepath.Join(dir, "above")
		require.NoError(t, os.Mkdir(above, 0o755))
		for name, text := range map[string]string{"kustomization.yaml": "resources: [../kustomize/overlays/cluster, app.yaml]\n" + block, "app.yaml": `
apiVersion: apps/v1
kind: Deployment
metadata: {name: app}
spec: {template: {spec: {containers: [{name: app, image: example.com/app, env: [{name: IMAGE, value: ghcr.io/stoker-io/agent}]}]}}}
`} {
			require.NoError(t, os.WriteFile(filepath.Join(above, name), []byte(text), 0o644))
		}
		all := kustomized(t, above)
		assertImages(t, all)
		value, _ := at(all["Deployment/app"].Object, pod+"/containers/app/env/0/value")
		assert.Equal(t, "ghcr.io/stoker-io/agent", value)
	})
	t.Run("in the overlay itself", func(t *testing.T) {
		require.NoError(t, os.WriteFile(file, []byte(before+block), 0o644))
		assertImages(t, kustomized(t, overlay))
	})
}
