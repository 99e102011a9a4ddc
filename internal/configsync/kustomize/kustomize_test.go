package kustomize_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/builder"
	"stoker.io/stoker/internal/configsync/builder/buildertest"
	"stoker.io/stoker/internal/configsync/kustomize"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/failure"
)

type tree = buildertest.Tree

const link = buildertest.Link

func TestMain(m *testing.M) {
	builder.Main(map[string]builder.Function{kustomize.Name: kustomize.Run})
	os.Exit(m.Run())
}

// plain takes resources as they are.
func plain(_ string, content []byte) ([]byte, bool, error) { return content, false, nil }

func build(ctx context.Context, files tree, dir string) ([]manifest.Object, error) {
	return buildWith(ctx, files, dir, plain)
}

func buildWith(ctx context.Context, files tree, dir string, text kustomize.Text) ([]manifest.Object, error) {
	s, err := kustomize.Read(ctx, files, dir)
	if err != nil {
		return nil, err
	}
	own, err := builder.NewBuilder(context.WithoutCancel(ctx), "")
	if err != nil {
		return nil, err
	}
	defer own.Close()
	return s.Build(ctx, own, text)
}

const (
	configMap   = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {x: \"1\"}\n"
	statefulSet = `apiVersion: apps/v1
kind: StatefulSet
metadata: {name: line, labels: {tier: "1"}}
spec:
  replicas: 1
  selector: {matchLabels: {app: line}}
  template:
    metadata: {labels: {app: line}}
    spec:
      containers:
        - name: gateway
          image: ignition:8.3.0
          envFrom: [{configMapRef: {name: env}}]
`
)

// rich uses most of the supported features.
var rich = tree{
	"base/kustomization.yaml": "resources: [set.yaml, sub/map.yaml]\nconfigurations: [refs.yaml]\nconfigMapGenerator:\n- {name: env, envs: [gateway.env], files: [theme.css, other.txt=theme.css], literals: [\"a=b\"]}\n",
	"base/set.yaml":           statefulSet,
	"base/sub/map.yaml":       "# a comment\n" + configMap + "---\n" + strings.ReplaceAll(configMap, "name: a", "name: b"),
	"base/refs.yaml":          "nameReference:\n- {kind: ConfigMap, fieldSpecs: [{kind: Line, path: spec/map}]}\n",
	"base/gateway.env":        "TZ=UTC\n# nothing\nJAVA_OPTS=-Xmx1g -Da=b\n",
	"base/theme.css":          "body { color: red }\n",
	"base/unused.yaml":        "not: [reached",
	"site/Kustomization": `kind: Kustomization
namespace: plant
namePrefix: north-
commonLabels: {site: north}
labels: [{pairs: {area: "7"}, includeTemplates: true}]
commonAnnotations: {by: stoker}
bases: [../base]
components: [../parts/debug]
images: [{name: ignition, newTag: 8.3.1}]
replicas: [{name: line, count: 2}]
patches:
- path: set.yaml
- target: {kind: ConfigMap, name: b}
  patch: |-
    - op: add
      path: /data/y
      value: &v "2"
- patch: '{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {x: null, z: "3"}}'
patchesStrategicMerge:
- |-
  apiVersion: apps/v1
  kind: StatefulSet
  metadata: {name: line}
  spec: {podManagementPolicy: Parallel}
patchesJson6902:
- target: {version: v1, kind: ConfigMap, name: b}
  path: json.yaml
replacements:
- path: replace.yaml
- source: {kind: ConfigMap, name: a, fieldPath: data.z}
  targets: [{select: {kind: StatefulSet}, fieldPaths: [metadata.annotations.z], options: {create: true}}]
secretGenerator:
- {name: licence, literals: [key=S3CR3T], type: Opaque, options: {disableNameSuffixHash: true}}
configMapGenerator:
- {name: env, behavior: merge, literals: [TZ=Europe/Berlin]}
`,
	"site/set.yaml":                  "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: line}\nspec: {template: {spec: {containers: [{name: gateway, env: [{name: A, value: b}]}]}}}\n",
	"site/json.yaml":                 "- {op: replace, path: /data/x, value: \"4\"}\n",
	"site/replace.yaml":              "source: {kind: StatefulSet, name: line}\ntargets:\n- {select: {kind: ConfigMap, name: a}, fieldPaths: [data.set], options: {create: true}}\n",
	"parts/debug/kustomization.yaml": "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\npatches:\n- {target: {kind: StatefulSet}, patch: '[{\"op\": \"add\", \"path\": \"/spec/template/spec/hostNetwork\", \"value\": false}]'}\n",
}

// Build makes the same objects as kustomize makes from the same files.
func TestBuildMatchesKustomize(t *testing.T) {
	for _, dir := range []string{"base", "site"} {
		t.Run(dir, func(t *testing.T) {
			list, err := build(t.Context(), rich, dir)
			require.NoError(t, err)
			files := filesys.MakeFsInMemory()
			for name, text := range rich {
				require.NoError(t, files.WriteFile("/"+name, []byte(text)))
			}
			want, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, "/"+dir)
			require.NoError(t, err)
			require.Len(t, list, want.Size())
			for i, r := range want.Resources() {
				expected, err := r.MarshalJSON()
				require.NoError(t, err)
				got, err := json.Marshal(list[i].Object)
				require.NoError(t, err)
				assert.JSONEq(t, string(expected), string(got))
			}
		})
	}
	list, err := build(t.Context(), rich, "site")
	require.NoError(t, err)
	assert.Equal(t, "site/Kustomization", list[0].File)
	assert.False(t, list[0].Tainted)
}

// repository starts a server, and counts the requests of the test's process. A build must send none.
func repository(t *testing.T) (url string, requests *atomic.Int64) {
	requests = &atomic.Int64{}
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	t.Cleanup(server.Close)
	before := http.DefaultTransport
	http.DefaultTransport = refusing{requests}
	t.Cleanup(func() { http.DefaultTransport = before })
	t.Setenv("PATH", "") // no git either
	return server.URL, requests
}

type refusing struct{ requests *atomic.Int64 }

func (r refusing) RoundTrip(*http.Request) (*http.Response, error) {
	r.requests.Add(1)
	return nil, errors.New("the build must not send requests")
}

// G1: what leads out of the commit or starts a program is refused by file and field, and no request is sent.
func TestReadRefuses(t *testing.T) {
	url, requests := repository(t)
	const invalid, unsafe, limit, missing = v1alpha1.ReasonManifestInvalid, v1alpha1.ReasonUnsafePath, v1alpha1.ReasonLimitExceeded, v1alpha1.ReasonSourceMissing
	for name, c := range map[string]struct {
		text   string
		reason v1alpha1.Reason
		says   string
	}{
		"HTTP resource":                {"resources: [" + url + "/a.yaml]", invalid, "resources[0]"},
		"HTTPS resource":               {"resources: [a.yaml, https://example.com/a.yaml]", invalid, "resources[1]"},
		"remote base":                  {"resources: ['github.com/stoker-io/stoker//base?ref=main']", invalid, "resources[0]"},
		"base that is also local":      {"resources: [github.com/org/repo]", invalid, "resources[0]"},
		"base in capitals":             {"resources: [GitHub.com/org/repo]", invalid, "resources[0]"},
		"scp":                          {"bases: ['git@github.com:org/repo.git']", invalid, "resources[0]"},
		"ssh":                          {"resources: ['ssh://git@example.com/repo']", invalid, "resources[0]"},
		"git prefix":                   {"resources: ['git::https://example.com/repo']", invalid, "resources[0]"},
		"file scheme":                  {"resources: ['file:///etc']", invalid, "resources[0]"},
		"two slashes":                  {"resources: ['example.com/org/repo//base']", invalid, "resources[0]"},
		"ref":                          {"resources: ['org/repo?ref=v1']", invalid, "resources[0]"},
		"remote component":             {"components: ['https://example.com/repo']", invalid, "components[0]"},
		"remote patch":                 {"patches: [{path: 'https://example.com/p.yaml', target: {kind: A}}]", invalid, "patches[0].path"},
		"remote merge patch":           {"patchesStrategicMerge: ['https://example.com/p.yaml']", invalid, "patchesStrategicMerge[0]"},
		"remote JSON patch":            {"patchesJson6902: [{path: 'https://example.com/p.yaml', target: {kind: A, name: a}}]", invalid, "patchesJson6902[0].path"},
		"remote replacement":           {"replacements: [{path: 'https://example.com/p.yaml'}]", invalid, "replacements[0].path"},
		"remote configuration":         {"configurations: ['https://example.com/p.yaml']", invalid, "configurations[0]"},
		"remote file":                  {"configMapGenerator: [{name: a, files: ['x=https://example.com/p']}]", invalid, "configMapGenerator[0].files[0]"},
		"remote env":                   {"secretGenerator: [{name: a, env: 'https://example.com/p'}]", invalid, "secretGenerator[0].envs[0]"},
		"absolute base":                {"resources: [/etc]", unsafe, "resources[0]"},
		"absolute file":                {"configMapGenerator: [{name: a, files: [/etc/passwd]}]", unsafe, "configMapGenerator[0].files[0]"},
		"base out of the tree":         {"resources: [../../x]", unsafe, "resources[0]"},
		"file out of the tree":         {"configMapGenerator: [{name: a, files: [../../../etc/passwd]}]", unsafe, "configMapGenerator[0].files[0]"},
		"file beside the folder":       {"configMapGenerator: [{name: a, files: [../other/a.txt]}]", unsafe, "configMapGenerator[0].files[0]"},
		"env beside the folder":        {"configMapGenerator: [{name: a, envs: [../other/a.txt]}]", unsafe, "configMapGenerator[0].envs[0]"},
		"resource beside":              {"resources: [../other/a.txt]", unsafe, "resources[0]"},
		"patch beside":                 {"patches: [{path: ../other/a.txt}]", unsafe, "patches[0].path"},
		"configuration beside":         {"configurations: [../other/a.txt]", unsafe, "configurations[0]"},
		"replacement beside":           {"replacements: [{path: ../other/a.txt}]", unsafe, "replacements[0].path"},
		"backslash":                    {`resources: ['..\other']`, unsafe, "resources[0]"},
		"control character":            {`resources: ["a\x00b"]`, unsafe, "resources[0]"},
		"link":                         {"resources: [link.yaml]", unsafe, "resources[0]"},
		"linked folder":                {"resources: [linked/a.yaml]", unsafe, "resources[0]"},
		"linked file of generator":     {"configMapGenerator: [{name: a, files: [link.yaml]}]", unsafe, "configMapGenerator[0].files[0]"},
		"exec generator":               {"generators: [exec.yaml]", invalid, "generators"},
		"inline generator":             {"generators: ['{apiVersion: v1, kind: A, metadata: {name: a, annotations: {config.kubernetes.io/function: \"exec: {path: /bin/sh}\"}}}']", invalid, "generators"},
		"function":                     {"transformers: [fn.yaml]", invalid, "transformers"},
		"validator":                    {"validators: [fn.yaml]", invalid, "validators"},
		"chart":                        {"helmCharts: [{name: a, repo: 'https://example.com'}]", invalid, "helmCharts"},
		"older chart":                  {"helmChartInflationGenerator: [{chartName: a}]", invalid, "helmCharts"},
		"chart home":                   {"helmGlobals: {chartHome: /x}", invalid, "helmGlobals"},
		"schema":                       {"openapi: {path: 'https://example.com/s.json'}", invalid, "openapi"},
		"crds":                         {"crds: ['https://example.com/s.json']", invalid, "crds"},
		"vars":                         {"vars: [{name: A, objref: {kind: A, name: a}}]", invalid, "vars"},
		"metadata of the build":        {"buildMetadata: [originAnnotations]", invalid, "buildMetadata"},
		"misspelled field":             {"resource: [a.yaml]", invalid, `unknown field "resource"`},
		"field in capitals":            {"Resources: ['https://example.com/a']", invalid, `unknown field "Resources"`},
		"field of a generator":         {"configMapGenerator: [{name: a, file: [x]}]", invalid, `configMapGenerator[0].file`},
		"repeated field":               {"resources: [a.yaml]\nresources: ['https://example.com/a']", invalid, "repeated keys"},
		"wrong type":                   {"resources: a.yaml", invalid, "resources"},
		"two documents":                {"resources: [a.yaml]\n---\nresources: [a.yaml]", invalid, "2 documents"},
		"nothing":                      {"# nothing", invalid, "0 documents"},
		"another kind":                 {"kind: Deployment", invalid, "kind should be"},
		"bomb":                         {"commonLabels: &a {x: " + strings.Repeat("x", 10_000) + "}\n" + buildertest.Bomb(), limit, "aliases"},
		"size":                         {"namePrefix: " + strings.Repeat("x", 300_000), limit, "bytes"},
		"bomb in a patch":              {"patches: [{patch: \"x0: &x0 [" + strings.Repeat("x,", 1000) + "x]\\nx: [" + strings.Repeat("*x0,", 2000) + "x]\"}]", limit, "patches[0]"},
		"patch that multiplies":        {"patches: [{target: {kind: A}, patch: '[{op: copy, from: \"\", path: /a}]'}]", invalid, "patches[0]"},
		"patch that hides a copy":      {"patches: [{target: {kind: ConfigMap}, patch: '[{op: copy, from: /data, path: /data/x}, {op: 1}]'}]", invalid, "operation copy"},
		"empty patch":                  {"patches: [{target: {kind: A}, patch: '# nothing'}]", invalid, "patches[0]"},
		"patch without patch and path": {"patches: [{target: {kind: A}}]", invalid, "patches[0]"},
		"change of kind":               {"patches: [{patch: '{}', options: {allowKindChange: true}}]", invalid, "patches[0].options.allowKindChange"},
		"replacement without targets":  {"replacements: [{source: {kind: A}}]", invalid, "replacements[0]"},
		"target of nothing":            {"replacements: [{source: {kind: A}, targets: [{fieldPaths: [a]}]}]", invalid, "replacements[0].targets"},
		"base is not a base":           {"resources: [../other]", missing, "other"},
		"missing file":                 {"resources: [b.yaml]", missing, "resources[0]"},
		"missing path":                 {"resources: ['']", invalid, "resources[0]"},
		"base of itself":               {"resources: [.]", invalid, "resources[0]"},
		"cycle of bases":               {"resources: [../circle]", invalid, "circle"},
		"component as base of all":     {"kind: Component", invalid, "Component"},
		"component as file":            {"components: [a.yaml]", invalid, "components[0]"},
		"kustomization as file":        {"resources: [sub/kustomization.yaml]", invalid, "resources[0]"},
		"folder as file":               {"configMapGenerator: [{name: a, files: [sub]}]", invalid, "configMapGenerator[0].files[0]"},
	} {
		t.Run(name, func(t *testing.T) {
			files := tree{
				"k/kustomization.yaml": c.text, "k/a.yaml": configMap, "k/link.yaml": link, "k/linked": link, "k/exec.yaml": "x", "k/fn.yaml": "x", "k/github.com/org/repo/kustomization.yaml": "x",
				"k/https:/example.com/a.yaml": configMap, "k/sub/kustomization.yaml": "resources: []", "other/a.txt": "x", "circle/kustomization.yaml": "resources: [../k]", "x": "x",
			}
			_, err := build(t.Context(), files, "k")
			require.Error(t, err)
			assert.Equal(t, c.reason, failure.Reason(err, ""), "%v", err)
			assert.ErrorContains(t, err, c.says)
			if name != "base is not a base" && name != "cycle of bases" {
				assert.ErrorContains(t, err, "k/kustomization.yaml")
			}
		})
	}
	assert.Zero(t, requests.Load())
}

// G1: bases of bases, patches of many objects and replacements cannot make more than the bounds allow.
func TestBuildIsBounded(t *testing.T) {
	fan := tree{"l0/kustomization.yaml": "resources: [a.yaml]", "l0/a.yaml": configMap}
	for i := range 7 {
		for _, side := range []string{"t", "u", "v"} {
			fan[fmt.Sprintf("%s%d/kustomization.yaml", side, i+1)] = fmt.Sprintf("namePrefix: %s\nresources: [../l%d]", side, i)
		}
		fan[fmt.Sprintf("l%d/kustomization.yaml", i+1)] = fmt.Sprintf("resources: [../t%d, ../u%d, ../v%d]", i+1, i+1, i+1)
	}
	deep := tree{"d0/kustomization.yaml": "resources: [a.yaml]", "d0/a.yaml": configMap}
	for i := range 20 {
		deep[fmt.Sprintf("d%d/kustomization.yaml", i+1)] = fmt.Sprintf("resources: [../d%d]", i)
	}
	lattice := tree{} // 12 to the power of 14 paths lead through it
	for i := range 14 {
		next := ""
		for n := range 12 {
			next += fmt.Sprintf("- ../s%d-%d\n", i+1, n)
		}
		for n := range 12 {
			lattice[fmt.Sprintf("s%d-%d/kustomization.yaml", i, n)] = "resources:\n" + next
			lattice[fmt.Sprintf("s14-%d/kustomization.yaml", n)] = "namePrefix: x"
		}
	}
	wide := tree{"w/kustomization.yaml": "commonAnnotations: {x: " + strings.Repeat("x", 200_000) + "}\nresources: [a.yaml]"}
	many := ""
	for i := range 1500 {
		many += fmt.Sprintf("---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: a%d}}\n", i)
	}
	wide["w/a.yaml"] = many
	crowd := tree{"w/kustomization.yaml": "resources: [a.yaml, b]", "w/a.yaml": many, "w/b/kustomization.yaml": "namePrefix: b\nresources: [a.yaml]", "w/b/a.yaml": many}
	loop := "resources: [a.yaml]\nreplacements:\n"
	for range 40 {
		loop += "- source: {kind: ConfigMap, name: a, fieldPath: data}\n  targets: [{select: {kind: ConfigMap, name: a}, fieldPaths: [data.x], options: {create: true}}]\n"
	}
	folders := tree{}
	list := ""
	for i := range 250 {
		folders[fmt.Sprintf("r/b%d/kustomization.yaml", i)] = "namePrefix: x"
		list += fmt.Sprintf("- b%d\n", i)
	}
	folders["r/kustomization.yaml"] = "resources:\n" + list
	for name, c := range map[string]struct {
		files tree
		dir   string
		says  string
	}{
		"builds":         {fan, "l7", "built more than"},
		"paths":          {lattice, "s0-0", "built more than"},
		"names":          {tree{"k/kustomization.yaml": "resources: [" + strings.Repeat("a.yaml,", 25_000) + "]", "k/a.yaml": configMap}, "k", "more than 20000 paths"},
		"depth":          {deep, "d20", "nested deeper"},
		"annotations":    {wide, "w", "could add"},
		"objects":        {crowd, "w", "more than 2000 objects"},
		"replacements":   {tree{"k/kustomization.yaml": loop, "k/a.yaml": configMap}, "k", "replacements[8]"},
		"any kind":       {tree{"k/kustomization.yaml": strings.ReplaceAll(loop, "select: {kind: ConfigMap,", "select: {"), "k/a.yaml": configMap}, "k", "replacements[8]"},
		"pattern":        {tree{"k/kustomization.yaml": strings.ReplaceAll(loop, "select: {kind: ConfigMap,", "select: {kind: Config.*,"), "k/a.yaml": configMap}, "k", "replacements[8]"},
		"kustomizations": {folders, "r", "more than 200 kustomizations"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := build(t.Context(), c.files, c.dir)
			assert.True(t, failure.Is(err, v1alpha1.ReasonLimitExceeded) || failure.Is(err, v1alpha1.ReasonManifestInvalid), "%v", err)
			assert.ErrorContains(t, err, c.says)
		})
	}
	t.Run("time", func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Nanosecond, failure.New(v1alpha1.ReasonLimitExceeded, "too long"))
		defer cancel()
		_, err := build(ctx, tree{"k/kustomization.yaml": "configMapGenerator: [{name: a, literals: [a=b]}]"}, "k")
		assert.True(t, failure.Is(err, v1alpha1.ReasonProgressing), "no CPU time was spent, so the kustomization is not to blame: %v", err)
		_, err = build(t.Context(), rich, "site")
		require.NoError(t, err)
	})
}

// G4: an error of kustomize is not shown if the files contain a Secret or generate one. Otherwise it is, with the folders of the repository
// instead of those of the build.
func TestBuildErrors(t *testing.T) {
	patch := "patches: [{patch: '{apiVersion: v1, kind: %s, metadata: {name: S3CR3T}}'}]\nresources: [a.yaml]"
	for name, c := range map[string]struct {
		files tree
		says  string
	}{
		"target of a patch":   {tree{"k/kustomization.yaml": fmt.Sprintf(patch, "ConfigMap"), "k/a.yaml": configMap}, "no resource matches strategic merge patch"},
		"Secret":              {tree{"k/kustomization.yaml": fmt.Sprintf(patch, "Secret"), "k/a.yaml": configMap}, "the message is not shown"},
		"twice":               {tree{"k/kustomization.yaml": "resources: [b, a.yaml]", "k/a.yaml": configMap, "k/b/kustomization.yaml": "resources: [a.yaml]", "k/b/a.yaml": configMap}, "may not add resource with an already registered id"},
		"panic":               {tree{"k/kustomization.yaml": "resources: [a.yaml]\nnamePrefix: x", "k/a.yaml": "{apiVersion: v1, kind: ConfigMap, metadata: {name: 'a,b', annotations: {internal.config.kubernetes.io/previousNames: 'a,b'}}}"}, "kustomize"},
		"literal without key": {tree{"k/kustomization.yaml": "secretGenerator: [{name: a, literals: [S3CR3T]}]"}, "the message is not shown"},
		"not YAML":            {tree{"k/kustomization.yaml": "resources: [a.yaml]", "k/a.yaml": "data: {x: \"S3CR3T}"}, `"k/a.yaml", document 1 is not valid YAML`},
		"not an object":       {tree{"k/kustomization.yaml": "resources: [a.yaml]", "k/a.yaml": "S3CR3T"}, `"k/a.yaml", document 1 is not an object`},
		"name":                {tree{"k/kustomization.yaml": "resources: [a.yaml]\nnamePrefix: a/", "k/a.yaml": configMap}, `"k/kustomization.yaml", document 1: metadata.name`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := build(t.Context(), c.files, "k")
			require.ErrorContains(t, err, c.says)
			assert.True(t, failure.Is(err, v1alpha1.ReasonManifestInvalid), "%v", err)
			if name != "target of a patch" {
				assert.NotContains(t, err.Error(), "S3CR3T")
			}
			assert.NotContains(t, err.Error(), "folder-")
		})
	}
}

// G4: objects with values of Secrets, or that may have copied some, are tainted.
func TestBuildTaints(t *testing.T) {
	copied := "resources: [a.yaml]\nreplacements: [{source: {kind: Secret, name: s, fieldPath: data.k}, targets: [{select: {kind: ConfigMap}, fieldPaths: [data.x]}]}]"
	for name, c := range map[string]struct {
		text     string
		template bool
		want     bool
	}{
		"plain":             {"resources: [a.yaml]", false, false},
		"template":          {"resources: [a.yaml]", true, true},
		"copy of a Secret":  {copied, false, true},
		"copy of any kind":  {strings.ReplaceAll(copied, "kind: Secret, ", ""), false, true},
		"copy of ConfigMap": {strings.ReplaceAll(copied, "kind: Secret, name: s, fieldPath: data.k", "kind: ConfigMap, name: a, fieldPath: data.x"), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			files := tree{"k/kustomization.yaml": c.text, "k/a.yaml": configMap + "---\n{apiVersion: v1, kind: Secret, metadata: {name: s}, data: {k: eA==}}"}
			list, err := buildWith(t.Context(), files, "k", func(_ string, content []byte) ([]byte, bool, error) { return content, c.template, nil })
			require.NoError(t, err)
			assert.Equal(t, c.want, list[0].Tainted)
		})
	}
}

// G1: no kustomization makes a panic, a request or an unbounded result, and each error has a reason.
func FuzzKustomization(f *testing.F) {
	for _, name := range []string{"base/kustomization.yaml", "site/Kustomization", "parts/debug/kustomization.yaml"} {
		f.Add(rich[name], configMap, "a=b")
	}
	f.Add("resources: [a.yaml, ../b, 'https://example.com']\nreplacements: [{source: {kind: A, name: a}, targets: [{select: {kind: B}}]}]", statefulSet, "x")
	f.Add("patches: [{path: a.yaml}, {patch: '[{op: move, from: /data, path: /x}]', target: {kind: ConfigMap}}]", configMap, "x")
	requests := &atomic.Int64{}
	http.DefaultTransport = refusing{requests}
	f.Fuzz(func(t *testing.T, text, resource, data string) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Second, failure.New(v1alpha1.ReasonLimitExceeded, "too long"))
		defer cancel()
		list, err := build(ctx, tree{
			"k/kustomization.yaml": text, "k/a.yaml": resource, "k/set.yaml": statefulSet, "k/gateway.env": data, "k/theme.css": data,
			"b/kustomization.yaml": "namePrefix: b\nresources: [a.yaml]", "b/a.yaml": configMap, "base/kustomization.yaml": "resources: [a.yaml]", "base/a.yaml": statefulSet,
		}, "k")
		require.Zero(t, requests.Load())
		if err != nil {
			require.NotEmpty(t, failure.Reason(err, ""), "%v", err)
			require.NotContains(t, err.Error(), "too long")
			return
		}
		require.LessOrEqual(t, len(list), manifest.MaxObjects)
	})
}
