package charts

import (
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

// kustomized is `kubectl kustomize`, with the restrictions it has by default: nothing outside of a kustomization's folder but
// other kustomizations.
func kustomized(t testing.TB, dir string) objects {
	t.Helper()
	found, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	require.NoError(t, err)
	manifest, err := found.AsYaml()
	require.NoError(t, err)
	return parse(t, manifest)
}

// ownLabels are those by which Helm's objects differ from others of the same content.
var ownLabels = []string{"helm.sh/chart", "app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "app.kubernetes.io/version"}

// alike takes from objects what only one of the two ways to install has.
func alike(all objects) objects {
	found := objects{}
	for name, o := range all {
		if o.GetKind() == "Namespace" {
			continue // helm install makes it with --create-namespace
		}
		o = o.DeepCopy()
		for _, path := range [][]string{{"metadata"}, {"spec", "template", "metadata"}} {
			for _, label := range ownLabels {
				unstructured.RemoveNestedField(o.Object, append(slices.Clone(path), "labels", label)...)
			}
		}
		unstructured.RemoveNestedField(o.Object, "metadata", "annotations", "helm.sh/resource-policy")
		if o.GetKind() == "Deployment" {
			arguments, _ := at(o.Object, args)
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

func TestBaseIsTheChartWithItsDefaults(t *testing.T) {
	base := kustomized(t, filepath.Join(kustomizeDir, "base"))
	maps.Copy(base, kustomized(t, filepath.Join(kustomizeDir, "crd")))
	same(t, rendered(t, nil), base)
}

func TestOverlayOfAClusterIsTheChartWithItsDefaults(t *testing.T) {
	overlay := kustomized(t, filepath.Join(kustomizeDir, "overlays", "cluster"))
	require.Contains(t, overlay, "Namespace/"+namespace)
	same(t, rendered(t, nil), overlay)
}

func TestOverlayOfANamespaceIsTheChartThatWatchesIt(t *testing.T) {
	same(t, rendered(t, set("watchNamespaces", []any{"ignition"})), kustomized(t, filepath.Join(kustomizeDir, "overlays", "namespaced")))
}

func TestComponentsAreTheChartsValues(t *testing.T) {
	for component, v := range map[string]values{
		"cert-manager": set("webhook.certManager.enabled", true),
		"monitoring":   with(set("metrics.serviceMonitor.enabled", true), set("metrics.podMonitor.enabled", true)),
	} {
		t.Run(component, func(t *testing.T) {
			same(t, rendered(t, v), kustomized(t, withComponents(t, component)))
		})
	}
}

// withComponents writes an overlay as somebody would who wants components.
func withComponents(t testing.TB, components ...string) string {
	t.Helper()
	dir, err := os.MkdirTemp(filepath.Join(kustomizeDir, "overlays"), "test-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	lines := "resources: [../../crd, ../../base]\ncomponents:\n"
	for _, c := range components {
		lines += "  - ../../components/" + c + "\n"
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(lines), 0o644))
	return dir
}

func TestEveryComponentHasATest(t *testing.T) {
	entries, err := os.ReadDir(filepath.Join(kustomizeDir, "components"))
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	assert.Equal(t, []string{"cert-manager", "monitoring"}, names)
}
