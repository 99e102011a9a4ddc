package configsync_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// line is a StatefulSet that takes its environment from the ConfigMap env.
const line = `apiVersion: apps/v1
kind: StatefulSet
metadata: {name: line}
spec:
  serviceName: line
  replicas: 0
  selector: {matchLabels: {app: line}}
  template:
    metadata: {labels: {app: line}}
    spec: {containers: [{name: gateway, image: ignition, envFrom: [{configMapRef: {name: env}}]}]}
`

// A base and an overlay are built and applied. If data changes, so do the name of its ConfigMap and the pods, and the old one is pruned.
func TestKustomization(t *testing.T) {
	w := newWorld(t)
	w.commit("base/kustomization.yaml", "resources: [line.yaml]\nconfigMapGenerator: [{name: env, envs: [gateway.env]}]", "base/line.yaml", line, "base/gateway.env", "TZ=UTC",
		"k8s/kustomization.yaml", "resources: [../base, a.yaml]\nlabels: [{pairs: {site: north}}]", "k8s/a.yaml", configMap("a", "{{.Commit}}"), "k8s/unused.yaml", "not: [read")
	w.create("render: {template: true}")
	r := w.must()
	assert.Contains(t, r.Plan.String(), "3 to create")
	assert.Equal(t, w.git.Head(), w.data("a")["a"], "resources are templates")
	env := func() string {
		set, err := w.core.AppsV1().StatefulSets(w.namespace).Get(t.Context(), "line", metav1.GetOptions{})
		require.NoError(t, err)
		assert.Equal(t, "north", set.Labels["site"])
		return set.Spec.Template.Spec.Containers[0].EnvFrom[0].ConfigMapRef.Name
	}
	first := env()
	assert.Equal(t, map[string]string{"TZ": "UTC"}, w.data(first))
	for _, row := range w.get().Status.Targets {
		assert.Equal(t, "k8s/kustomization.yaml", row.File)
	}

	w.commit("base/gateway.env", "TZ=Europe/Berlin")
	r = w.must()
	second := env()
	assert.NotEqual(t, first, second)
	assert.Contains(t, r.Plan.String(), "prune      ConfigMap "+w.namespace+"/"+first)
	assert.Equal(t, map[string]string{"TZ": "Europe/Berlin"}, w.data(second))
	assert.Nil(t, w.data(first))
	w.tracked()

	w.commit("base/kustomization.yaml", "resources: [line.yaml, 'https://example.com/more.yaml']")
	w.fails(v1alpha1.ReasonManifestInvalid, `"base/kustomization.yaml": resources[1]`)
	assert.Equal(t, second, env(), "nothing may be changed")
	w.create("render: {kustomize: Never}")
	_, err := w.apply()
	assert.ErrorContains(t, err, "spec.render.kustomize is Never")
}

// G4: values of Secrets that a kustomization makes or copies appear in no plan, error, status or Event.
func TestKustomizedSecretsAppearNowhere(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text   string
		reason v1alpha1.Reason
	}{
		"generated": {"secretGenerator: [{name: s, literals: [password=S3CR3T-1]}]", ""},
		"copied": {"resources: [a.yaml]\nsecretGenerator: [{name: s, literals: [password=S3CR3T-1]}]\n" +
			"replacements: [{source: {kind: Secret, name: s, fieldPath: data.password}, targets: [{select: {kind: ConfigMap}, fieldPaths: [data.a]}]}]", ""},
		"broken literal": {"secretGenerator: [{name: s, literals: [S3CR3T-1]}]", v1alpha1.ReasonManifestInvalid},
		"broken patch":   {"secretGenerator: [{name: s, literals: [password=S3CR3T-1]}]\npatches: [{patch: 'S3CR3T-2', target: {kind: Secret}}]", v1alpha1.ReasonManifestInvalid},
		"refused":        {"resources: [a.yaml]\npatches: [{target: {kind: ConfigMap}, patch: '[{\"op\": \"add\", \"path\": \"/data/x\", \"value\": [\"{{.Vars.password}}\"]}]'}]\nsecretGenerator: [{name: s, type: kubernetes.io/tls, literals: [tls.crt=S3CR3T-1]}]", v1alpha1.ReasonApplyRefused},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.commit("k8s/kustomization.yaml", c.text, "k8s/a.yaml", configMap("a", "1"))
			w.create("")
			r, err := w.apply()
			assert.Equal(t, c.reason, failure.Reason(err, ""), "%v", err)
			text := w.said(r, err)
			assert.NotContains(t, text, "S3CR3T")
			assert.NotContains(t, text, "UzNDUjNU", "the secret must not appear in base64")
			if name == "copied" {
				m, err := w.core.CoreV1().ConfigMaps(w.namespace).Get(t.Context(), "a", metav1.GetOptions{})
				require.NoError(t, err)
				assert.Empty(t, m.Annotations[v1alpha1.AnnotationConfigDigest], "an object that may hold a secret must not have a digest")
			}
		})
	}
}

// The example chart is rendered and applied with the values of the same commit. If the values change, the pods are replaced. A chart that
// cannot be rendered changes nothing.
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
	w.fails(v1alpha1.ReasonManifestInvalid, "is a hook of Helm")
	assert.Equal(t, second, set().Spec.Template, "nothing may be changed")
	w.commit("kubernetes/line/templates/job.yaml", "")

	w.create("source: {git: {path: k8s}}\nrender: {valuesFiles: [kubernetes/values.yaml]}")
	w.commit("k8s/a.yaml", configMap("a", "1"))
	w.fails(v1alpha1.ReasonSourceMissing, "spec.render.valuesFiles is set, but no folder of the path has a Chart.yaml")
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
			assert.NotContains(t, w.said(r, err), "s3cr3t-value")
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
	w.fails(v1alpha1.ReasonManifestInvalid, `"k8s/a.jsonnet": jsonnet cannot build it`)
	assert.NotNil(t, w.data("a"), "nothing may be changed")
}
