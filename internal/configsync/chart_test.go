package configsync_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// The chart of the example, in the shape of the maker's, is rendered and applied with the values of the same commit. If they change, the
// pods are replaced; a chart that cannot be rendered changes nothing.
func TestChart(t *testing.T) {
	w := newWorld(t)
	example := filepath.Join("..", "..", "examples", "config", "chart")
	var files []string
	require.NoError(t, filepath.WalkDir(filepath.Join(example, "repository"), func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(p)
		name, _ := filepath.Rel(filepath.Join(example, "repository"), p)
		files = append(files, filepath.ToSlash(name), string(text))
		return err
	}))
	w.commit(files...)
	spec, err := os.ReadFile(filepath.Join(example, "configsync.yaml"))
	require.NoError(t, err)
	require.Contains(t, string(spec), "path: kubernetes/line")
	require.Contains(t, string(spec), "valuesFiles: [kubernetes/values.yaml]")
	w.create("source: {git: {path: kubernetes/line}}\napply: {wait: false}\nrender: {valuesFiles: [kubernetes/values.yaml], releaseName: line}")
	r := w.must()
	assert.Contains(t, r.Plan.String(), "3 to create")
	set := func() *appsv1.StatefulSet {
		set, err := w.core.AppsV1().StatefulSets(w.namespace).Get(t.Context(), "line-ignition-gateway", metav1.GetOptions{})
		require.NoError(t, err)
		return set
	}
	first := set().Spec.Template
	assert.Equal(t, "true", first.Annotations["stoker.io/inject"])
	assert.Equal(t, "inductiveautomation/ignition:8.3.8", first.Spec.Containers[0].Image)
	assert.Equal(t, "8", w.data("line-ignition-environment")["SHIFT_HOURS"])
	var shown []string
	for _, row := range w.get().Status.Targets {
		shown = append(shown, row.File)
	}
	assert.Contains(t, shown, "kubernetes/line/templates/gateway.yaml")
	assert.Contains(t, w.must().Plan.String(), "3 unchanged", "the same commit renders the same objects")

	w.commit("kubernetes/values.yaml", "gateway: {env: {SHIFT_HOURS: '12'}}\npodAnnotations: {stoker.io/inject: 'true'}\n")
	w.must()
	second := set().Spec.Template
	assert.NotEqual(t, first.Annotations["checksum/environment"], second.Annotations["checksum/environment"], "the pods must be recreated")
	assert.Equal(t, "12", w.data("line-ignition-environment")["SHIFT_HOURS"])
	assert.NotContains(t, w.data("line-ignition-environment"), "TZ")

	w.commit("kubernetes/line/templates/job.yaml", "apiVersion: batch/v1\nkind: Job\nmetadata: {name: a, annotations: {helm.sh/hook: pre-upgrade}}\n")
	_, err = w.apply()
	assert.True(t, failure.Is(err, v1alpha1.ReasonManifestInvalid), "%v", err)
	assert.ErrorContains(t, err, "is a hook of Helm")
	assert.Equal(t, second, set().Spec.Template, "nothing may be changed")
	w.commit("kubernetes/line/templates/job.yaml", "")

	w.create("source: {git: {path: k8s}}\nrender: {valuesFiles: [kubernetes/values.yaml]}")
	w.commit("k8s/a.yaml", configMap("a", "1"))
	_, err = w.apply()
	assert.True(t, failure.Is(err, v1alpha1.ReasonSourceMissing), "%v", err)
	assert.ErrorContains(t, err, "spec.render.valuesFiles is set, but no folder of the path has a Chart.yaml")
}

// G4: values of Secrets that reach a chart through a value file appear in no plan, error, status or Event.
func TestChartedSecretsAppearNowhere(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		template string
		reason   v1alpha1.Reason
	}{
		"Secret":    {"apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {p: {{ .Values.password }}}\n", ""},
		"ConfigMap": {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: s}\ndata: {p: {{ .Values.password }}}\n", ""},
		"message":   {"{{ fail .Values.password }}", v1alpha1.ReasonManifestInvalid},
		"name":      {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ .Values.password | lower }}}\n", v1alpha1.ReasonManifestInvalid},
		"rejected":  {"apiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {type: {{ .Values.password }}}\n", v1alpha1.ReasonApplyRefused},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.ApplyYAML(t, w.namespace, "{apiVersion: v1, kind: Secret, metadata: {name: vars}, stringData: {password: s3cr3t-value}}")
			w.commit("k8s/Chart.yaml", "{apiVersion: v2, name: line, version: 1.0.0}", "values.yaml", "password: {{.Vars.password}}", "k8s/templates/a.yaml", c.template)
			w.create("render: {template: true, valuesFiles: [values.yaml], varsFrom: [{secretRef: {name: vars}}]}")
			r, err := w.apply()
			assert.Equal(t, c.reason, failure.Reason(err, ""), "%v", err)
			said := strings.Builder{}
			if err != nil {
				said.WriteString(err.Error())
			}
			if r != nil && r.Plan != nil {
				said.WriteString(r.Plan.String())
			}
			for _, e := range w.events() {
				said.WriteString(e.Message)
			}
			for _, row := range w.get().Status.Targets {
				said.WriteString(row.Message + row.Name)
			}
			for _, condition := range w.get().Status.Conditions {
				said.WriteString(condition.Message)
			}
			assert.NotContains(t, said.String(), "s3cr3t-value")
		})
	}
}

// Jsonnet is evaluated with the variables of the spec, and imports from elsewhere in the repository.
func TestJsonnet(t *testing.T) {
	w := newWorld(t)
	w.commit("k8s/a.jsonnet", "local maps = import '../lib/maps.libsonnet'; [maps.map('a', std.extVar('site')), maps.map('b', std.extVar('CRName'))]",
		"lib/maps.libsonnet", "{map(name, value):: {apiVersion: 'v1', kind: 'ConfigMap', metadata: {name: name}, data: {a: value}}}")
	w.create("render: {vars: {site: north}}")
	w.must()
	assert.Equal(t, map[string]string{"a": "north"}, w.data("a"))
	assert.Equal(t, map[string]string{"a": "plant"}, w.data("b"))
	w.commit("k8s/a.jsonnet", "import '../lib/none.libsonnet'")
	_, err := w.apply()
	assert.True(t, failure.Is(err, v1alpha1.ReasonManifestInvalid), "%v", err)
	assert.ErrorContains(t, err, `"k8s/a.jsonnet": jsonnet cannot build it`)
	assert.NotNil(t, w.data("a"), "nothing may be changed")
}
