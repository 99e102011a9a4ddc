package render

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/builder"
	"stoker.io/stoker/internal/configsync/kustomize"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/failure"
)

func configMap(name, value string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\ndata: {a: %q}\n", name, value)
}

// layer returns files, given as names and contents in turn.
func layer(files ...string) []File {
	var list []File
	for i := 0; i < len(files); i += 2 {
		list = append(list, File{Path: files[i], Content: []byte(files[i+1])})
	}
	return list
}

func ids(list []manifest.Object) (names []string) {
	for _, o := range list {
		names = append(names, o.ID().String())
	}
	return names
}

func TestOverlayReplacesObject(t *testing.T) {
	list, err := Objects(t.Context(), Input{Layers: [][]File{
		layer("base/a.yaml", configMap("a", "1"), "base/b.yaml", configMap("b", "1")),
		layer("site/a.yaml", configMap("a", "2"), "site/c.yaml", configMap("c", "2")),
	}})
	require.NoError(t, err)
	assert.Equal(t, []string{"ConfigMap a", "ConfigMap b", "ConfigMap c"}, ids(list))
	assert.Equal(t, map[string]any{"a": "2"}, list[0].Object["data"])
	assert.Equal(t, "site/a.yaml", list[0].File)
}

func TestTemplates(t *testing.T) {
	vars := map[string]string{"site": "north", "Ref": "shadowed"}
	in := Input{
		Template: true, Vars: Values(map[string]string{"Ref": "main", "CRName": "plant"}, vars),
		Layers: [][]File{layer("a.yaml", configMap("a", "{{.site}}, {{.Vars.site}} {{.Ref}} {{.CRName}}"))},
	}
	list, err := Objects(t.Context(), in)
	require.NoError(t, err)
	assert.Equal(t, map[string]any{"a": "north, north main plant"}, list[0].Object["data"])
	assert.False(t, list[0].Tainted)
	in.Template = false
	list, err = Objects(t.Context(), in)
	require.NoError(t, err)
	assert.Contains(t, list[0].Object["data"].(map[string]any)["a"], "{{", "manifests must not be templates by default")
}

func TestTargets(t *testing.T) {
	manifests := layer("a.yaml", configMap("a", "1")+"---\n"+configMap("b", "1"), "s.yaml", `{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: line, namespace: site}}`)
	for name, c := range map[string]struct {
		targets []v1alpha1.ConfigTarget
		want    []string
		reason  v1alpha1.Reason
	}{
		"none":                  {nil, []string{"ConfigMap a", "ConfigMap b", "StatefulSet.apps site/line"}, ""},
		"kind":                  {[]v1alpha1.ConfigTarget{{Type: "ConfigMap"}}, []string{"ConfigMap a", "ConfigMap b"}, ""},
		"name":                  {[]v1alpha1.ConfigTarget{{Type: "ConfigMap", Name: "b"}}, []string{"ConfigMap b"}, ""},
		"group":                 {[]v1alpha1.ConfigTarget{{Type: "StatefulSet.apps", Namespace: "site"}}, []string{"StatefulSet.apps site/line"}, ""},
		"own namespace":         {[]v1alpha1.ConfigTarget{{Type: "ConfigMap", Namespace: "own", Name: "a"}}, []string{"ConfigMap a"}, ""},
		"mistyped name":         {[]v1alpha1.ConfigTarget{{Type: "ConfigMap", Name: "x"}}, nil, v1alpha1.ReasonSourceMissing},
		"another group":         {[]v1alpha1.ConfigTarget{{Type: "StatefulSet.x"}}, nil, v1alpha1.ReasonSourceMissing},
		"another namespace":     {[]v1alpha1.ConfigTarget{{Type: "ConfigMap", Namespace: "other"}}, nil, v1alpha1.ReasonSourceMissing},
		"file and its manifest": {[]v1alpha1.ConfigTarget{{Type: "ConfigMap"}, {Type: "ConfigMap", Name: "a", Namespace: "own", FromFiles: []v1alpha1.ConfigFile{{Path: "x"}}}}, nil, v1alpha1.ReasonManifestInvalid},
		"two files of one key":  {[]v1alpha1.ConfigTarget{{Type: "ConfigMap", Name: "n", FromFiles: []v1alpha1.ConfigFile{{Path: "x"}, {Path: "d/x"}}}}, nil, v1alpha1.ReasonManifestInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			list, err := Objects(t.Context(), Input{Layers: [][]File{manifests}, Targets: c.targets, Namespace: "own"})
			assert.Equal(t, c.reason, failure.Reason(err, ""))
			assert.Equal(t, c.want, ids(list))
		})
	}
}

func TestFromFiles(t *testing.T) {
	files := []v1alpha1.ConfigFile{{Path: "certs/ca.pem"}, {Path: "certs/key", Key: "tls.key"}}
	list, err := Objects(t.Context(), Input{
		Files:   map[string][]byte{"certs/ca.pem": []byte("text"), "certs/key": {0xff, 0xfe}},
		Targets: []v1alpha1.ConfigTarget{{Type: "ConfigMap", Name: "a", FromFiles: files}, {Type: "Secret", Name: "b", Namespace: "site", FromFiles: files}},
	})
	require.NoError(t, err)
	require.Len(t, list, 2)
	assert.Equal(t, map[string]any{"ca.pem": "text"}, list[0].Object["data"])
	assert.Equal(t, map[string]any{"tls.key": "//4="}, list[0].Object["binaryData"])
	assert.Equal(t, map[string]any{"ca.pem": "dGV4dA==", "tls.key": "//4="}, list[1].Object["data"])
	assert.True(t, list[1].Confidential())
	assert.Equal(t, "Secret site/b", list[1].ID().String())
}

// G1, G4: bounds, and errors that quote no value of a Secret.
func TestRenderRefuses(t *testing.T) {
	many := "---\n" + configMap("a", "")
	var wide []string
	for i := range 2001 {
		many += fmt.Sprintf("---\n{apiVersion: v1, kind: A, metadata: {name: a%d}}\n", i)
	}
	for i := range 20 {
		wide = append(wide, fmt.Sprintf("%d.yaml", i), fmt.Sprintf("{apiVersion: v1, kind: A, metadata: {name: a%d}}\n", i)+strings.Repeat("#", 1000_000))
	}
	loop := `{{range $a := split "," "1,2,3,4,5,6,7,8,9,0"}}{{range $b := split "," "1,2,3,4,5,6,7,8,9,0"}}{{range $c := split "," "1,2,3,4,5,6,7,8,9,0"}}{{range $d := split "," "1,2,3,4,5,6,7,8,9,0"}}{{range $e := split "," "1,2,3,4,5,6,7,8,9,0"}}{{range $f := split "," "1,2,3,4,5,6,7,8,9,0"}}{{end}}{{end}}{{end}}{{end}}{{end}}{{end}}`
	for name, c := range map[string]struct {
		files  []File
		reason v1alpha1.Reason
	}{
		"objects":         {layer("a.yaml", many), v1alpha1.ReasonLimitExceeded},
		"bytes":           {layer(wide...), v1alpha1.ReasonLimitExceeded},
		"twice":           {layer("a.yaml", configMap("a", ""), "b.yaml", configMap("a", "")), v1alpha1.ReasonManifestInvalid},
		"many steps":      {layer("a.yaml", loop), v1alpha1.ReasonLimitExceeded},
		"template syntax": {layer("a.yaml", "{{"), v1alpha1.ReasonTemplateFailed},
		"value in error":  {layer("a.yaml", "x: {{int .Vars.password}}"), v1alpha1.ReasonTemplateFailed},
		"value as YAML":   {layer("a.yaml", "x: {{.Vars.broken}}"), v1alpha1.ReasonManifestInvalid},
		"unknown value":   {layer("a.yaml", "x: {{.Vars.passwort}}"), v1alpha1.ReasonTemplateFailed},
		"value as name":   {layer("a.yaml", configMap("x-{{.Vars.password}}", "1")), v1alpha1.ReasonManifestInvalid},
		"value as kind":   {layer("a.yaml", "{apiVersion: v1, kind: '{{.Vars.password}}', metadata: {name: a}}"), v1alpha1.ReasonManifestInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Objects(t.Context(), Input{
				Layers: [][]File{c.files}, Template: true, Tainted: true,
				Vars: Values(nil, map[string]string{"password": "S3CR3T", "broken": "*S3CR3T"}), Secrets: []string{"S3CR3T", "*S3CR3T", "1", ""},
			})
			assert.Equal(t, c.reason, failure.Reason(err, ""), "%v", err)
			assert.NotContains(t, fmt.Sprint(err), "S3CR3T")
		})
	}
}

// F4: a path of the spec stays below the root, also when its template is rendered.
func TestPath(t *testing.T) {
	values := Values(nil, map[string]string{"site": "north", "up": "../..", "root": "/etc"})
	for text, want := range map[string]string{
		".": ".", "a/": "a", "sites/{{.Vars.site}}": "sites/north", "a/{{.Vars.up}}/b": "", "{{.Vars.root}}": "", "{{.Vars.up}}": "", "": "", "a\x00b": "", `a\b`: "",
		"{{.Vars.missing}}": "",
	} {
		t.Run(text, func(t *testing.T) {
			got, err := Path("spec.source.git.path", text, values)
			assert.Equal(t, want, got)
			assert.Equal(t, want == "", err != nil)
		})
	}
}

// G1: rendering never panics, each error has a reason, and no object is returned twice.
func FuzzObjects(f *testing.F) {
	f.Add(configMap("a", "{{.Vars.site}}"), configMap("a", "2"), "ConfigMap", "a")
	f.Add("{{range $x := split \",\" .Vars.site}}---\n{{end}}", "", "", "")
	f.Fuzz(func(t *testing.T, base, overlay, kind, name string) {
		in := Input{
			Layers: [][]File{layer("a.yaml", base), layer("o.yaml", overlay)}, Template: true, Vars: Values(nil, map[string]string{"site": "north"}),
		}
		if kind != "" {
			in.Targets = []v1alpha1.ConfigTarget{{Type: kind, Name: name}}
		}
		list, err := Objects(t.Context(), in)
		if err != nil {
			require.NotEmpty(t, failure.Reason(err, ""))
			return
		}
		seen := map[manifest.ID]bool{}
		for _, o := range list {
			require.False(t, seen[o.ID()])
			seen[o.ID()] = true
		}
	})
}

func TestMain(m *testing.M) {
	builder.Main(Functions())
	os.Exit(m.Run())
}

// folder is a commit with one file.
type folder struct{ name, text string }

func (f folder) Stat(path string) (builder.Kind, error) {
	if path == f.name {
		return builder.File, nil
	}
	return builder.Nothing, nil
}

func (f folder) Fetch(context.Context, []string) (map[string][]byte, error) {
	return map[string][]byte{f.name: []byte(f.text)}, nil
}

// G5: a slow kustomization of one ConfigSync does not use up the time of others.
func TestTimeWithoutOtherKustomizations(t *testing.T) {
	other, err := builder.NewBuilder(t.Context(), "")
	require.NoError(t, err)
	defer other.Close()
	t.Run("with a kustomization", func(t *testing.T) {
		sources, err := kustomize.Read(t.Context(), folder{"kustomization.yaml", "namePrefix: x"}, ".")
		require.NoError(t, err)
		ctx, stop := context.WithCancelCause(t.Context())
		defer stop(nil)
		stopped := errors.New("the run was stopped")
		time.AfterFunc(50*time.Millisecond, func() { stop(stopped) })
		_, err = objects(ctx, Input{Layers: [][]File{{{Path: ".", Kustomization: sources}}}}, time.Nanosecond)
		require.ErrorIs(t, err, stopped, "the time has not begun")
	})
	t.Run("without one", func(t *testing.T) {
		list, err := Objects(t.Context(), Input{Layers: [][]File{{{Path: "a.yaml", Content: []byte("{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}")}}}})
		require.NoError(t, err)
		require.Len(t, list, 1)
	})
}
