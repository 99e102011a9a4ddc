package chart_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/builder"
	"stoker.io/stoker/internal/configsync/builder/buildertest"
	"stoker.io/stoker/internal/configsync/chart"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/failure"
)

func TestMain(m *testing.M) {
	builder.Main(map[string]builder.Function{chart.Name: chart.Run})
	os.Exit(m.Run())
}

type tree = buildertest.Tree

func build(ctx context.Context, files tree, r chart.Release) ([]manifest.Object, error) {
	s, err := chart.Read(ctx, files, "line")
	if err != nil {
		return nil, err
	}
	b, err := builder.NewBuilder(context.WithoutCancel(ctx), "")
	if err != nil {
		return nil, err
	}
	defer b.Close()
	r.Name, r.Namespace = "north", "plant"
	return s.Build(ctx, b, r)
}

const metadata = "apiVersion: v2\nname: line\nversion: 1.0.0\nappVersion: 8.3.3\n"

// with returns a chart with one template, and more files below its folder in turns of name and content.
func with(template string, more ...string) tree {
	files := tree{"line/Chart.yaml": metadata, "line/templates/a.yaml": template}
	for i := 0; i < len(more); i += 2 {
		files["line/"+more[i]] = more[i+1]
	}
	return files
}

// object is a template of a ConfigMap with one value.
func object(value string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  x: " + value + "\n"
}

// values returns a release with a value file for each text.
func values(texts ...string) chart.Release {
	var r chart.Release
	for i, text := range texts {
		r.Values = append(r.Values, builder.InputFile{Name: fmt.Sprintf("values-%d.yaml", i), Content: []byte(text)})
	}
	return r
}

// archive returns a chart as helm package writes it.
func archive(t testing.TB, name string, files tree) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, p := range slices.Sorted(maps.Keys(files)) {
		require.NoError(t, w.WriteHeader(&tar.Header{Name: name + "/" + p, Mode: 0o644, Size: int64(len(files[p]))}))
		_, err := w.Write([]byte(files[p]))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	require.NoError(t, z.Close())
	return b.String()
}

// A chart gets its values, value files in their order, dependencies in charts/ as folders and archives, CustomResourceDefinitions, and the
// release; its tests and notes are left out.
func TestBuild(t *testing.T) {
	const common = "apiVersion: v2\nname: common\nversion: 1.0.0\ntype: library\n"
	files := with(`apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ include "common.fullname" . }}-gateway
  namespace: {{ .Release.Namespace }}
  annotations: {helm.sh/resource-policy: keep, version: "{{ .Chart.AppVersion }} {{ .Capabilities.KubeVersion.Minor }} {{ .Release.IsInstall }}"}
spec:
  replicas: {{ .Values.replicas }}
  template:
    spec:
      containers: [{name: gateway, image: "{{ .Values.image.name }}:{{ .Values.image.tag }}", args: {{ toJson .Values.args }}}]
`,
		"values.yaml", "replicas: 1\nimage: {name: ignition, tag: 8.3.1}\nargs: [-n, a]\nportal: {enabled: true}\n",
		"values.schema.json", `{"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"replicas": {"type": "integer"}}}`,
		".helmignore", "ci/\n*.md\n",
		"README.md", "{{ not a template",
		"ci/values.yaml", "x",
		"templates/ci/skipped.yaml", "{{ fail \"ignored files must not be rendered\" }}",
		"templates/NOTES.txt", "Thank you for {{ .Release.Name }}: and more",
		"templates/_helpers.tpl", `{{ define "line.data" }}{{ .Files.Get "files/theme.css" }}{{ end }}`,
		"templates/theme.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: theme}\ndata: {theme: {{ include \"line.data\" . | quote }}}\n",
		"templates/tests/connect.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: t, annotations: {helm.sh/hook: test}}\nspec: {}\n",
		"files/theme.css", "red",
		"crds/lines.yaml", "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: lines.example.com}\n",
		"charts/common/Chart.yaml", common,
		"charts/common/templates/_names.tpl", `{{ define "common.fullname" }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end }}`,
		"charts/portal-1.0.0.tgz", archive(t, "portal", tree{
			"Chart.yaml": "apiVersion: v2\nname: portal\nversion: 1.0.0\n", "values.yaml": "title: none",
			"templates/b.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: portal}\ndata: {title: {{ .Values.title }}}\n",
		}))
	files["line/Chart.yaml"] += "kubeVersion: '>=1.29.0-0'\ndependencies:\n- {name: common, version: 1.0.0, repository: 'https://example.com'}\n- {name: portal, version: 1.0.0, repository: 'https://example.com', condition: portal.enabled}\n"
	list, err := build(t.Context(), files, values("image: {tag: 8.3.2}\nportal: {title: north}", "replicas: 2\nargs: null"))
	require.NoError(t, err)
	shown := map[string]string{}
	for _, o := range list {
		shown[o.File] = o.GetKind() + " " + o.GetName()
	}
	assert.Equal(t, map[string]string{
		"line/crds/lines.yaml":                "CustomResourceDefinition lines.example.com",
		"line/templates/a.yaml":               "StatefulSet north-line-gateway",
		"line/templates/theme.yaml":           "ConfigMap theme",
		"line/charts/portal/templates/b.yaml": "ConfigMap portal",
	}, shown)
	i := slices.IndexFunc(list, func(o manifest.Object) bool { return o.GetKind() == "StatefulSet" })
	set := list[i]
	assert.Equal(t, "plant", set.GetNamespace())
	assert.Equal(t, "8.3.3 37 true", set.GetAnnotations()["version"])
	assert.Equal(t, "disabled", set.GetAnnotations()[v1alpha1.AnnotationConfigPrune], "Helm would keep the object")
	spec := set.Object["spec"].(map[string]any)
	assert.EqualValues(t, 2, spec["replicas"])
	assert.Contains(t, fmt.Sprint(spec), "image:ignition:8.3.2")
	assert.Contains(t, fmt.Sprint(spec), "args:<nil>", "null removes a default")
	for _, o := range list {
		assert.False(t, o.Tainted)
		if o.GetName() == "portal" {
			assert.Contains(t, fmt.Sprint(o.Object["data"]), "title:north")
		}
		if o.GetName() == "theme" {
			assert.Contains(t, fmt.Sprint(o.Object["data"]), "theme:red")
		}
	}
	t.Run("condition", func(t *testing.T) {
		list, err := build(t.Context(), files, values("portal: {enabled: false}"))
		require.NoError(t, err)
		assert.Len(t, list, 3)
	})
	t.Run("values of Secrets", func(t *testing.T) {
		r := values("replicas: 1")
		r.Tainted = true
		list, err := build(t.Context(), files, r)
		require.NoError(t, err)
		for _, o := range list {
			assert.True(t, o.Tainted)
		}
	})
}

// The chart of this project renders, without hooks.
func TestOwnChart(t *testing.T) {
	files := tree{}
	root := filepath.Join("..", "..", "..", "charts", "stoker")
	require.NoError(t, filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(root, p)
		require.NoError(t, err)
		text, err := os.ReadFile(p)
		files["line/"+filepath.ToSlash(name)] = string(text)
		return err
	}))
	list, err := build(t.Context(), files, chart.Release{})
	require.NoError(t, err)
	assert.True(t, slices.ContainsFunc(list, func(o manifest.Object) bool { return o.GetKind() == "Deployment" && o.GetNamespace() == "plant" }))
	assert.False(t, slices.ContainsFunc(list, func(o manifest.Object) bool { return o.GetAnnotations()["helm.sh/hook"] != "" }))
}

// G1: a chart that needs a download, reads what is outside its folder, renders differently each time or has hooks is refused, and so is an
// invalid one. The functions that ask a cluster or DNS find nothing. The server gets no request.
func TestRefuses(t *testing.T) {
	requests := &atomic.Int64{}
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	defer server.Close()
	schema := func(ref string) tree {
		return with(object("1"), "values.schema.json", `{"properties": {"a": {"$ref": "`+ref+`"}}}`)
	}
	depends := with(object("1"))
	depends["line/Chart.yaml"] += "dependencies: [{name: common, version: 1.0.0, repository: '" + server.URL + "'}]"
	library, newer, misnamed := with(object("1")), with(object("1")), with(object("1"))
	library["line/Chart.yaml"] += "type: library"
	newer["line/Chart.yaml"] += "kubeVersion: '<1.30'"
	misnamed["line/Chart.yaml"] = "apiVersion: v2\nname: ../line\nversion: 1.0.0"
	clock := func(template string) string {
		return archive(t, "x", tree{"Chart.yaml": "apiVersion: v2\nname: x\nversion: 1.0.0", "templates/a.yaml": object(template)})
	}
	const invalid = v1alpha1.ReasonManifestInvalid
	for name, c := range map[string]struct {
		files tree
		says  string
	}{
		"hook":               {with(strings.Replace(object("1"), "{name: a}", "{name: a, annotations: {helm.sh/hook: pre-install}}", 1)), `"line/templates/a.yaml": ConfigMap a is a hook of Helm ("pre-install"), which no run starts: turn it off`},
		"hook and test":      {with(strings.Replace(object("1"), "{name: a}", "{name: a, annotations: {helm.sh/hook: 'test,post-install'}}", 1)), "is a hook of Helm"},
		"random text":        {with(object("{{ randAlphaNum 16 }}")), `"templates/a.yaml": it renders differently each time`},
		"private key":        {with(object(`{{ genPrivateKey "ecdsa" | b64enc }}`)), "it renders differently each time"},
		"time":               {with(object("{{ now | unixEpoch | quote }}")), "it renders differently each time"},
		"date":               {with(object(`{{ now | date "2006-01-02" | quote }}`)), "it renders differently each time"},
		"day":                {with(object(`{{ now | date "02" | quote }}`)), "it renders differently each time"},
		"weekday":            {with(object("{{ now.Weekday }}")), "it renders differently each time"},
		"month in UTC":       {with(object(`{{ dateInZone "01" now "UTC" | quote }}`)), "it renders differently each time"},
		"year":               {with(object("{{ now.Year | quote }}")), "it renders differently each time"},
		"time in an archive": {with(object("1"), "charts/x-1.tgz", clock("{{ now | unixEpoch | quote }}")), `"charts/x/templates/a.yaml": it renders differently each time`},
		"missing dependency": {depends, `the dependency "common" is not in charts/, and nothing is fetched: run 'helm dependency build'`},
		"schema over HTTP":   {schema(server.URL + "/s.json"), "no other schema is read"},
		"schema of a file":   {schema("file:///etc/hostname"), "no other schema is read"},
		"schema beside":      {schema("other.json"), "no other schema is read"},
		"values and schema":  {with(object("1"), "values.yaml", "a: {password: S3CR3T}", "values.schema.json", `{"properties": {"a": {"properties": {"password": {"pattern": "^x"}}}}}`), "the values do not fit values.schema.json of the chart line: .a.password: pattern"},
		"library":            {library, "type library"},
		"other Kubernetes":   {newer, `the chart is for Kubernetes "<1.30"`},
		"path as its name":   {misnamed, "line/Chart.yaml"},
		"fail":               {with(`{{ fail "set gateway.size" }}`), "helm cannot build it: execution error at (line/templates/a.yaml:1:3): set gateway.size"},
		"required":           {with(object(`{{ required "set gateway.size" .Values.size }}`)), "set gateway.size"},
		"value in an error":  {with(object(`{{ mustToDate "2006" .Values.password }}`), "values.yaml", "password: S3CR3T"), "error calling mustToDate"},
		"text of tpl":        {with(object(`{{ tpl .Values.password . }}`), "values.yaml", "password: 'S3CR3T{{'"), "error calling tpl"},
		"unknown function":   {with(`{{ env "HOME" }}`), `function "env" not defined`},
		"not YAML":           {with("a: \"S3CR3T"), `"line/templates/a.yaml", document 1 is not valid YAML`},
		"generated name":     {with("apiVersion: v1\nkind: ConfigMap\nmetadata: {generateName: a}"), "metadata.name"},
		"file elsewhere":     {with(object(`{{ required "no such file" (.Files.Get "../../etc/hostname") }}`)), "no such file"},
		"archive of nothing": {with(object("1"), "charts/x.tgz", "not an archive"), "error unpacking subchart"},
		"list of values":     {with(object("1"), "values.yaml", "[a]"), "values.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := build(t.Context(), c.files, chart.Release{})
			require.ErrorContains(t, err, c.says)
			assert.Equal(t, invalid, failure.Reason(err, ""), "%v", err)
			assert.NotContains(t, err.Error(), "S3CR3T")
		})
	}
	for name, text := range map[string]string{"list": "[a]", "two documents": "a: 1\n---\nb: 2"} {
		t.Run("value file with "+name, func(t *testing.T) {
			_, err := build(t.Context(), with(object("1")), values("a: 1", text))
			assert.ErrorContains(t, err, `"values-1.yaml" is not a file of values`)
		})
	}
	t.Run("text of an error with values of Secrets", func(t *testing.T) {
		r := values("password: S3CR3T")
		r.Tainted = true
		_, err := build(t.Context(), with(`{{ fail .Values.password }}`), r)
		require.ErrorContains(t, err, `the message is not shown because it may hold a value of a Secret: run 'helm template' in a clone`)
		assert.NotContains(t, err.Error(), "S3CR3T")
	})
	t.Run("time in a value", func(t *testing.T) {
		_, err := build(t.Context(), with(object(`{{ tpl .Values.at . | quote }}`)), values("at: '{{ now | unixEpoch }}'"))
		assert.ErrorContains(t, err, "it renders differently each time")
	})
	t.Run("lookup and DNS", func(t *testing.T) {
		list, err := build(t.Context(), with(object(`"{{ lookup "v1" "Secret" "plant" "x" | len }}{{ getHostByName "example.com" }}"`)), chart.Release{})
		require.NoError(t, err)
		assert.Contains(t, fmt.Sprint(list[0].Object["data"]), "x:0")
	})
	assert.Zero(t, requests.Load())
}

// G8: a small chart that takes minutes, or much memory, ends at a bound.
func TestIsBounded(t *testing.T) {
	for name, files := range map[string]tree{
		"loop":      with(`{{ range until 100000 }}{{ range until 100000 }}{{ end }}{{ end }}`),
		"recursion": with(`{{ define "a" }}{{ include "a" . }}{{ include "a" . }}{{ end }}{{ include "a" . }}`),
		"text":      with(`{{ range until 3000 }}{{ repeat 100000 "x" }}{{ end }}`),
		"archive":   with(object("1"), "charts/x-1.tgz", archive(t, "x", tree{"Chart.yaml": "apiVersion: v2\nname: x\nversion: 1.0.0", "a": strings.Repeat("x", 6<<20)})),
		"aliases":   with(object("1"), "values.yaml", buildertest.Bomb()),
		"result":    with(`{{ range $i := until 30 }}{{ printf "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a%d}\ndata: {x: %s}\n" $i (repeat 500000 "x") }}{{ end }}`),
		"objects":   with(`{{ range $i := until 3000 }}{{ printf "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a%d}\n" $i }}{{ end }}`),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := build(t.Context(), files, chart.Release{})
			require.Error(t, err)
			assert.NotEmpty(t, failure.Reason(err, ""), "%v", err)
		})
	}
}

// What templates see as the version of Kubernetes is that of the libraries.
func TestKubeVersion(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "go.mod"))
	require.NoError(t, err)
	_, after, found := strings.Cut(string(text), "k8s.io/client-go v0.")
	require.True(t, found)
	version, _, _ := strings.Cut(after, "\n")
	list, err := build(t.Context(), with(object("{{ .Capabilities.KubeVersion.Version }}")), chart.Release{})
	require.NoError(t, err)
	assert.Equal(t, "v1."+version, list[0].Object["data"].(map[string]any)["x"])
}

// G1: no chart makes a panic or an unbounded result, and each error has a reason.
func FuzzChart(f *testing.F) {
	f.Add(metadata, object("{{ .Values.a }}"), "a: 1", "b: 2")
	f.Add(metadata+"dependencies: [{name: x, version: 1.0.0, condition: a.b, alias: y, import-values: [a]}]", object("{{ tpl .Values.a . }}"), "a: '{{ .b }}'", "{}")
	f.Add("name: line", "{{ range $k, $v := .Values }}{{ toYaml $v }}{{ end }}", "a: &a [b]\nc: *a", "a: null")
	f.Fuzz(func(t *testing.T, meta, template, defaults, file string) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Second, failure.New(v1alpha1.ReasonLimitExceeded, "too long"))
		defer cancel()
		files := with(template, "values.yaml", defaults, "charts/x/Chart.yaml", "apiVersion: v2\nname: x\nversion: 1.0.0", "charts/x/templates/b.yaml", object("1"))
		files["line/Chart.yaml"] = meta
		list, err := build(ctx, files, values(file))
		if err != nil {
			require.NotEmpty(t, failure.Reason(err, ""), "%v", err)
			require.NotContains(t, err.Error(), "too long")
			return
		}
		require.LessOrEqual(t, len(list), 2*manifest.MaxObjects) // from two templates
	})
}
