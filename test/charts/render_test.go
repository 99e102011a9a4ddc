// Package charts holds charts/stoker and kustomize/ to what a cluster makes of them: what each value does, which rights
// are given, that both ways to install are the same, and that a real API server takes what they render and refuses what
// the policies forbid. It is a module of its own because Helm as a library is heavy.
package charts

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/release"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	k8syaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

const (
	chartDir  = "../../charts/stoker"
	namespace = "stoker-system"
)

// values are the values of one installation, as a values file has them.
type values = map[string]any

// object is one rendered object.
type object = unstructured.Unstructured

// set makes values from a dotted path.
func set(path string, v any) values {
	keys := strings.Split(path, ".")
	for _, key := range slices.Backward(keys) {
		v = values{key: v}
	}
	return v.(values)
}

// with merges values; of two that say something of one path, the later counts.
func with(all ...values) values {
	merged := values{}
	for _, v := range all {
		merged = chartutil.CoalesceTables(copied(v), merged)
	}
	return merged
}

func copied(v values) values { return runtime.DeepCopyJSON(plain(v)) }

// plain makes what a YAML file would give.
func plain(v values) values {
	data, err := yaml.Marshal(v)
	if err != nil {
		panic(err) // values of a test are always YAML
	}
	out := values{}
	if err := yaml.Unmarshal(data, &out); err != nil {
		panic(err)
	}
	return out
}

func loadChart(t testing.TB) *chart.Chart {
	t.Helper()
	c, err := loader.Load(chartDir)
	require.NoError(t, err)
	return c
}

// install renders as `helm install stoker` would, without a cluster.
func install(t testing.TB, v values) (*release.Release, error) {
	t.Helper()
	return installOn(t, "v1.34.4", v)
}

func installOn(t testing.TB, kubernetes string, v values) (*release.Release, error) {
	t.Helper()
	version, err := chartutil.ParseKubeVersion(kubernetes)
	require.NoError(t, err)
	in := action.NewInstall(&action.Configuration{Log: func(string, ...any) {}})
	in.ReleaseName, in.Namespace = "stoker", namespace
	in.DryRun, in.ClientOnly, in.Replace = true, true, true
	in.KubeVersion = version
	return in.Run(loadChart(t), copied(v))
}

// rendered is what an installation with these values consists of, without its tests.
func rendered(t testing.TB, v values) objects {
	t.Helper()
	r, err := install(t, v)
	require.NoError(t, err)
	return parse(t, []byte(r.Manifest))
}

// objects are rendered objects by kind, namespace and name.
type objects map[string]*object

func key(o *object) string {
	if o.GetNamespace() == "" {
		return o.GetKind() + "/" + o.GetName()
	}
	return o.GetKind() + "/" + o.GetNamespace() + "/" + o.GetName()
}

func parse(t testing.TB, manifest []byte) objects {
	t.Helper()
	found := objects{}
	for reader := k8syaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifest))); ; {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return found
		}
		require.NoError(t, err)
		data, err := yaml.YAMLToJSONStrict(document)
		require.NoError(t, err)
		if string(data) == "null" {
			continue
		}
		o := &object{}
		require.NoError(t, o.UnmarshalJSON(data))
		require.NotEmpty(t, o.GetName(), "%s without a name", o.GetKind())
		require.NotContains(t, found, key(o), "rendered twice")
		found[key(o)] = o
	}
}

// at returns what stands at a path of an object, and whether its parents are there. A part of the path is a key (with ~ for
// a slash), the name of a list's element, or its number.
func at(v any, path string) (any, bool) {
	for part := range strings.SplitSeq(path, "/") {
		part = strings.ReplaceAll(part, "~", "/")
		switch in := v.(type) {
		case map[string]any:
			v = in[part]
		case []any:
			i := slices.IndexFunc(in, func(e any) bool {
				m, _ := e.(map[string]any)
				return m["name"] == part
			})
			if n, err := strconv.Atoi(part); i < 0 && err == nil {
				i = n
			}
			if i < 0 || i >= len(in) {
				return nil, false
			}
			v = in[i]
		default:
			return nil, false
		}
	}
	return v, true
}

func TestTheNotesNameTheNextTwoCommands(t *testing.T) {
	notes := func(v values) string {
		r, err := install(t, v)
		require.NoError(t, err)
		return r.Info.Notes
	}
	standard := notes(nil)
	assert.Contains(t, standard, "helm test stoker -n stoker-system\n")
	_, manifest, found := strings.Cut(standard, "kubectl apply -n NAMESPACE -f - <<'YAML'\n")
	require.True(t, found)
	manifest, _, found = strings.Cut(manifest, "     YAML\n")
	require.True(t, found)
	assert.Equal(t, "GatewaySync", parseOne(t, manifest).GetKind(), "it can be pasted")
	assert.NotContains(t, standard, "kubectl label namespace")
	assert.NotContains(t, standard, "kubectl create rolebinding")
	assert.Contains(t, notes(set("webhook.namespaceSelector.requireLabel", true)), "kubectl label namespace NAMESPACE stoker.io/injection=enabled")
	assert.Contains(t, notes(set("rbac.autoBindAgent.enabled", false)), "kubectl create rolebinding stoker-agent -n NAMESPACE --clusterrole=stoker-agent")
}
