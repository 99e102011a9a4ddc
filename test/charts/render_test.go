// Package charts tests charts/stoker and kustomize. It checks the effect of each value, the rights, and
// that both ways to install give the same objects. A real API server must accept the objects and refuse
// what the policies forbid. The package is a module of its own because of Helm's dependencies.
package charts

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
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

// values are the values of an installation, as in a values file.
type values = map[string]any

// object is a rendered object.
type object = unstructured.Unstructured

// set returns values with v at a dotted path.
func set(path string, v any) values {
	keys := strings.Split(path, ".")
	for _, key := range slices.Backward(keys) {
		v = values{key: v}
	}
	return v.(values)
}

// with merges values. Later values override earlier ones.
func with(all ...values) values {
	merged := values{}
	for _, v := range all {
		merged = chartutil.CoalesceTables(copied(v), merged)
	}
	return merged
}

func copied(v values) values { return runtime.DeepCopyJSON(plain(v)) }

// plain converts values to the types that a YAML file gives.
func plain(v values) values {
	data, err := yaml.Marshal(v)
	if err != nil {
		panic(err) // values in tests are always valid YAML
	}
	out := values{}
	if err := yaml.Unmarshal(data, &out); err != nil {
		panic(err)
	}
	return out
}

// loadChart loads the chart once. Neither the tests nor Helm change it.
var loadChart = sync.OnceValues(func() (*chart.Chart, error) { return loader.Load(chartDir) })

func theChart(t testing.TB) *chart.Chart {
	t.Helper()
	c, err := loadChart()
	require.NoError(t, err)
	return c
}

// rendering is the result of rendering values, or the error. Tests share it and must not change it.
type rendering struct {
	*release.Release
	err error

	parsed func() (objects, error)
}

// renderings caches results by their values, because many tests use the same ones.
var renderings sync.Map

// install renders the chart like `helm install stoker`, without a cluster.
func install(t testing.TB, v values) (*release.Release, error) {
	t.Helper()
	r := once(t, v)
	return r.Release, r.err
}

func once(t testing.TB, v values) rendering {
	t.Helper()
	made, _ := renderings.LoadOrStore(mustJSON(t, plain(v)), sync.OnceValue(func() rendering {
		found, err := renderOn("v1.34.4", v)
		r := rendering{Release: found, err: err}
		r.parsed = sync.OnceValues(func() (objects, error) { return parsed([]byte(r.Manifest)) })
		return r
	}))
	return made.(func() rendering)()
}

// renderOn renders the chart for a version of Kubernetes.
func renderOn(kubernetes string, v values) (*release.Release, error) {
	c, err := loadChart()
	if err != nil {
		return nil, err
	}
	version, err := chartutil.ParseKubeVersion(kubernetes)
	if err != nil {
		return nil, err
	}
	in := action.NewInstall(&action.Configuration{Log: func(string, ...any) {}})
	in.ReleaseName, in.Namespace = "stoker", namespace
	in.DryRun, in.ClientOnly, in.Replace = true, true, true
	in.KubeVersion = version
	return in.Run(c, copied(v))
}

// rendered returns the objects of an installation without its tests.
func rendered(t testing.TB, v values) objects {
	t.Helper()
	r := once(t, v)
	require.NoError(t, r.err)
	found, err := r.parsed()
	require.NoError(t, err)
	return maps.Clone(found)
}

// notesOf is the key of the release notes among the objects.
const notesOf = "NOTES"

// all returns the rendered objects, those of helm test, and the notes.
func all(t testing.TB, v values) objects {
	t.Helper()
	found, r := rendered(t, v), once(t, v)
	for _, hook := range r.Hooks {
		maps.Copy(found, parse(t, []byte(hook.Manifest)))
	}
	found[notesOf] = &object{Object: map[string]any{"text": r.Info.Notes}}
	return found
}

// objects holds rendered objects by kind, namespace and name.
type objects map[string]*object

func key(o *object) string {
	if o.GetNamespace() == "" {
		return o.GetKind() + "/" + o.GetName()
	}
	return o.GetKind() + "/" + o.GetNamespace() + "/" + o.GetName()
}

func parse(t testing.TB, manifest []byte) objects {
	t.Helper()
	found, err := parsed(manifest)
	require.NoError(t, err)
	return found
}

// documents caches objects by their text. Most documents are the same with most values, and the CRDs are
// long.
var documents sync.Map

func parsed(manifest []byte) (objects, error) {
	found := objects{}
	for reader := k8syaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifest))); ; {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return nil, err
		}
		known, ok := documents.Load(string(document))
		if !ok {
			o, err := parsedOne(document)
			if err != nil {
				return nil, err
			}
			known, _ = documents.LoadOrStore(string(document), o)
		}
		o := known.(*object)
		switch {
		case o == nil:
			continue
		case o.GetName() == "":
			return nil, fmt.Errorf("%s without a name", o.GetKind())
		case found[key(o)] != nil:
			return nil, fmt.Errorf("%s is rendered twice", key(o))
		}
		found[key(o)] = o
	}
}

// parsedOne returns nil for a document that contains only comments.
func parsedOne(document []byte) (*object, error) {
	data, err := yaml.YAMLToJSONStrict(document)
	if err != nil || string(data) == "null" {
		return nil, err
	}
	o := &object{}
	return o, o.UnmarshalJSON(data)
}

// at returns the value at a path in an object, and whether the path exists. An element of the path is a
// key (with ~ for a slash), the name of a list's element, or its index.
func at(v any, path string) (any, bool) {
	for part := range strings.SplitSeq(path, "/") {
		part = strings.ReplaceAll(part, "~", "/")
		switch in := v.(type) {
		case map[string]any:
			next, ok := in[part]
			if !ok {
				return nil, false
			}
			v = next
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

func TestNotesNameNextSteps(t *testing.T) {
	t.Parallel()
	notes := func(v values) string {
		r, err := install(t, v)
		require.NoError(t, err)
		return r.Info.Notes
	}
	standard := notes(nil)
	assert.Contains(t, standard, "helm test stoker -n stoker-system\n")
	assert.Contains(t, standard, "kubectl create secret generic git-credentials -n NAMESPACE --from-literal=token=")
	assert.NotContains(t, standard, "kubectl label namespace")
	assert.NotContains(t, standard, "receiver")
	asking := notes(with(on, set("hooks.namespaces", []any{"line"}), set("argocd.config.enabled", true)))
	assert.Contains(t, asking, "kubectl create rolebinding stoker-receiver-secrets-stoker-webhook -n NAMESPACE --role=stoker-receiver-secrets-stoker-webhook --serviceaccount=stoker-system:stoker-receiver\n")
	assert.Contains(t, asking, "kubectl get configmap stoker-argocd -n stoker-system -o jsonpath='{.data.argocd-notifications-cm\\.yaml}' > argocd-notifications-cm.yaml\n")
	assert.Contains(t, asking, "serviceAccountName: stoker-hooks")
	assert.NotContains(t, standard, "kubectl create rolebinding")
	assert.Contains(t, notes(set("webhook.namespaceSelector.requireLabel", true)), "kubectl label namespace NAMESPACE stoker.io/injection=enabled")
	assert.Contains(t, notes(set("rbac.autoBindAgent.enabled", false)), "kubectl create rolebinding stoker-agent -n NAMESPACE --clusterrole=stoker-agent")
}

func TestSeverityOfUnknownAlertIsRefused(t *testing.T) {
	t.Parallel()
	_, err := install(t, with(set("metrics.rules.enabled", true), set("metrics.rules.severities", values{"StokerMadeUp": "page"})))
	require.ErrorContains(t, err, "there is no alert StokerMadeUp")
}
