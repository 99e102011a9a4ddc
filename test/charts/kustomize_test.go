package charts

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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

// part is a folder of kustomize/ with the values that make the chart render the same objects.
type part struct {
	needs  []string // the folders without which it cannot be used; all need base and crd
	values values
	// byHand folders have no objects.yaml, because they only patch or use the files of the chart.
	byHand bool
}

// kustomizeParts has every folder of kustomize/ except crd and components/argocd. The test renders each objects.yaml from its values.
var kustomizeParts = map[string]part{
	"base":                               {},
	"overlays/cluster":                   {byHand: true},
	"overlays/namespaced":                {values: set("watchNamespaces", []any{"ignition"})},
	"components/cert-manager":            {values: set("webhook.certManager.enabled", true)},
	"components/monitoring":              {values: with(set("metrics.serviceMonitor.enabled", true), set("metrics.podMonitor.enabled", true))},
	"components/monitoring-rules":        {values: set("metrics.rules.enabled", true)},
	"components/dashboards":              {values: set("metrics.dashboards.enabled", true), byHand: true},
	"components/receiver":                {values: on},
	"components/receiver-secrets":        {needs: []string{"components/receiver"}, values: set("webhookReceiver.secrets", []any{values{"namespace": "ignition", "name": "stoker-webhook"}})},
	"components/receiver-ingress":        {needs: []string{"components/receiver"}, values: with(onIngress, set("webhookReceiver.ingress.tls", []any{values{"hosts": []any{"stoker.example.com"}, "secretName": "stoker-example-com"}}))},
	"components/receiver-network-policy": {needs: []string{"components/receiver"}, values: onNetworking, byHand: true},
	"components/receiver-monitoring":     {needs: []string{"components/monitoring", "components/receiver"}},
	"components/receiver-namespaced":     {needs: []string{"overlays/namespaced", "components/receiver"}},
	"components/notifier":                {values: onNotifier},
	"components/notifier-secrets":        {needs: []string{"components/notifier"}, values: set("notifier.secrets", []any{values{"namespace": "ignition", "name": "stoker-alerts"}})},
	"components/notifier-monitoring":     {needs: []string{"components/monitoring", "components/notifier"}},
	"components/configsync":              {values: with(onConfigSync, set("configSync.namespaces", []any{"ignition"}))},
	"components/configsync-monitoring":   {needs: []string{"components/monitoring", "components/configsync"}},
	"components/hooks":                   {values: with(set("hooks.namespaces", []any{"ignition"}), set("hooks.applications.names", []any{"plant"}))},
	"components/hooks-pods":              {needs: []string{"components/hooks"}, values: set("hooks.pods", true)},
	"components/kargo":                   {values: set("kargo.tasks.enabled", true), byHand: true},
	"components/kargo/analysis":          {values: set("kargo.verification.enabled", true), byHand: true},
}

func (p part) all() values {
	merged := p.values
	for _, name := range p.needs {
		merged = with(merged, kustomizeParts[name].all())
	}
	return merged
}

// ofHelm matches what only objects of Helm have: labels, an annotation, and the hash in the name of the first renewal. It also matches
// quotes of namespaces, which users replace.
var ofHelm = regexp.MustCompile(`(?m)^ +(?:helm\.sh/(?:chart|resource-policy)|app\.kubernetes\.io/(?:instance|version|managed-by)): .*\n` +
	`|(name: stoker-certificate)-[0-9a-f]{8}$|(namespace: )"(.*)"$`)

// manifestOf renders the chart as kustomize/ has it, one document per object.
func manifestOf(t *testing.T, v values) string {
	t.Helper()
	r, err := install(t, v)
	require.NoError(t, err)
	return ofHelm.ReplaceAllString(r.Manifest, "$1$2$3")
}

// objectsFile returns the content of a folder's objects.yaml: its objects without those of base and of the folders that it needs.
func objectsFile(t *testing.T, name string) string {
	t.Helper()
	known := objects{}
	if name != "base" {
		for _, need := range append(kustomizeParts[name].needs, "base") {
			maps.Copy(known, parse(t, []byte(manifestOf(t, kustomizeParts[need].all()))))
		}
	}
	text := "# Generated from charts/stoker by `make generate`. Do not change it here.\n"
	for document := range strings.SplitSeq(manifestOf(t, kustomizeParts[name].all()), "---\n# Source: ") {
		_, document, _ = strings.Cut(document, "\n") // the file of the template
		o, err := parsedOne([]byte(document))
		require.NoError(t, err)
		if o == nil || o.GetKind() == "CustomResourceDefinition" || known[key(o)] != nil {
			continue
		}
		text += "---\n" + strings.TrimSpace(document) + "\n"
	}
	assert.NotContains(t, text, "helm.sh/")
	assert.NotContains(t, text, "managed-by")
	return text
}

// With -update, the test writes the files: make generate.
func TestKustomizeIsGenerated(t *testing.T) {
	t.Parallel()
	for name, p := range kustomizeParts {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(kustomizeDir, name, "objects.yaml")
			if p.byHand {
				require.NoFileExists(t, path)
				return
			}
			want := objectsFile(t, name)
			if *update {
				require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
			}
			is, err := os.ReadFile(path)
			require.NoError(t, err)
			assert.Equal(t, want, string(is), "run make generate")
		})
	}
}

func TestKustomizeMatchesChart(t *testing.T) {
	t.Parallel()
	for name, p := range kustomizeParts {
		t.Run(name, func(t *testing.T) {
			resources, components := "../../crd, ../../base", []string{}
			for _, folder := range append(p.needs, name) {
				if component, ok := strings.CutPrefix(folder, "components/"); ok {
					components = append(components, component)
				} else if folder != "base" {
					resources = "../../" + folder
				}
			}
			chart, got := parse(t, []byte(manifestOf(t, p.all()))), kustomized(t, withComponents(t, resources, components...))
			if name == "components/kargo/analysis" { // only the chart knows the installed version of the hooks
				chart["ClusterAnalysisTemplate/stoker-wait"] = without(t, chart["ClusterAnalysisTemplate/stoker-wait"], "spec/args/image", "value")
			}
			if strings.Contains(resources, "overlays/") {
				require.Contains(t, got, "Namespace/"+namespace) // helm install creates it with --create-namespace
				delete(got, "Namespace/"+namespace)
			}
			assert.Equal(t, slices.Sorted(maps.Keys(chart)), slices.Sorted(maps.Keys(got)))
			for name, o := range chart {
				if other := got[name]; other != nil {
					assert.Equal(t, sortedArguments(o), sortedArguments(other), name)
				}
			}
		})
	}
	root := filepath.Join(kustomizeDir, "components")
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "kustomization.yaml" && path != filepath.Join(root, "argocd", d.Name()) { // TestArgoCDFilesMatchKustomize
			assert.Contains(t, kustomizeParts, strings.TrimPrefix(filepath.Dir(path), kustomizeDir+"/"))
		}
		return err
	}))
}

// sortedArguments returns the content of an object, with the arguments of its first container sorted, because patches append arguments.
func sortedArguments(o *object) map[string]any {
	o = o.DeepCopy()
	if arguments, ok := at(o.Object, pod+"/containers/0/args"); ok {
		slices.SortFunc(arguments.([]any), func(a, b any) int { return strings.Compare(a.(string), b.(string)) })
	}
	return o.Object
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

// withComponents writes an overlay of resources with the given components.
func withComponents(t testing.TB, resources string, components ...string) string {
	t.Helper()
	lines := "resources: [" + resources + "]\ncomponents:\n"
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

// The agent's image is an annotation of the injector's pod, not a field called image. The overlay must not change
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
