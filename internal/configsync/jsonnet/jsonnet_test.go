package jsonnet_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/builder"
	"stoker.io/stoker/internal/configsync/builder/buildertest"
	"stoker.io/stoker/internal/configsync/jsonnet"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/failure"
)

func TestMain(m *testing.M) {
	builder.Main(map[string]builder.Function{jsonnet.Name: jsonnet.Run})
	os.Exit(m.Run())
}

type tree = buildertest.Tree

const link = buildertest.Link

func build(ctx context.Context, files tree, vars map[string]string, tainted bool) ([]manifest.Object, error) {
	s, err := jsonnet.Read(ctx, files, "k/a.jsonnet")
	if err != nil {
		return nil, err
	}
	b, err := builder.NewBuilder(context.WithoutCancel(ctx), "")
	if err != nil {
		return nil, err
	}
	defer b.Close()
	return s.Build(ctx, b, vars, tainted)
}

// object is an expression for a ConfigMap with one value.
func object(value string) string {
	return "{apiVersion: 'v1', kind: 'ConfigMap', metadata: {name: 'a'}, data: {x: " + value + "}}"
}

// The value is an object, a List or a list; imports are relative to their file or to vendor, and variables are external.
func TestBuild(t *testing.T) {
	lib := "{map(name, value):: {apiVersion: 'v1', kind: 'ConfigMap', metadata: {name: name}, data: {x: value}}}"
	for name, c := range map[string]struct {
		files tree
		want  []string
	}{
		"object":   {tree{"k/a.jsonnet": object("'1'")}, []string{"a=1"}},
		"List":     {tree{"k/a.jsonnet": "{apiVersion: 'v1', kind: 'List', items: [" + object("'1'") + "]}"}, []string{"a=1"}},
		"list":     {tree{"k/a.jsonnet": "[" + object("'1'") + ", null, " + object("'2'") + " + {metadata+: {name: 'b'}}]"}, []string{"a=1", "b=2"}},
		"imports":  {tree{"k/a.jsonnet": "(import '../lib/maps.libsonnet').map('a', importstr \"a.txt\")", "lib/maps.libsonnet": "import './more.libsonnet'", "lib/more.libsonnet": lib, "k/a.txt": "1"}, []string{"a=1"}},
		"vendor":   {tree{"k/a.jsonnet": "(import 'github.com/example/maps.libsonnet').map('a', '1')", "vendor/github.com/example/maps.libsonnet": lib}, []string{"a=1"}},
		"comment":  {tree{"k/a.jsonnet": "// see import 'none.libsonnet' and import '../../x'\n" + object("'1'")}, []string{"a=1"}},
		"variable": {tree{"k/a.jsonnet": object("std.extVar('site')")}, []string{"a=north"}},
	} {
		t.Run(name, func(t *testing.T) {
			list, err := build(t.Context(), c.files, map[string]string{"site": "north"}, false)
			require.NoError(t, err)
			var got []string
			for _, o := range list {
				got = append(got, fmt.Sprintf("%s=%s", o.GetName(), o.Object["data"].(map[string]any)["x"]))
				assert.Equal(t, "k/a.jsonnet", o.File)
			}
			assert.Equal(t, c.want, got)
		})
	}
	for text, want := range map[string]bool{object("std.extVar('site')"): true, object("'1'"): false} {
		t.Run("values of Secrets in "+text, func(t *testing.T) {
			list, err := build(t.Context(), tree{"k/a.jsonnet": text}, map[string]string{"site": "S3CR3T"}, true)
			require.NoError(t, err)
			assert.Equal(t, want, list[0].Tainted)
		})
	}
}

// A file that calls std.extVar without the text extVar gets no variables, because its objects are not marked as tainted.
func TestVariablesNeedTheirFunctionByName(t *testing.T) {
	list, err := build(t.Context(), tree{"k/a.jsonnet": object("std['ext' + 'Var']('site')")}, map[string]string{"site": "S3CR3T"}, true)
	require.ErrorContains(t, err, "site", "%v", list)
	assert.Equal(t, v1alpha1.ReasonManifestInvalid, failure.Reason(err, ""))
}

// G1, G4, G8: what leads out of the commit, does not end or is not an object is refused, without values of Secrets.
func TestRefuses(t *testing.T) {
	wide := tree{}
	list := ""
	for i := range 1100 {
		wide[fmt.Sprintf("k/%d", i)] = "1"
		list += fmt.Sprintf("import '%d',", i)
	}
	wide["k/a.jsonnet"] = "[" + list + "]"
	var names strings.Builder
	for i := range 15_000 {
		fmt.Fprintf(&names, "import 'x%d'\n", i)
	}
	for name, c := range map[string]struct {
		files  tree
		reason v1alpha1.Reason
		says   string
	}{
		"file of the machine":   {tree{"k/a.jsonnet": "importstr '/etc/hostname'"}, v1alpha1.ReasonManifestInvalid, "the commit has no"},
		"out of the repository": {tree{"k/a.jsonnet": "importstr '../../../../etc/hostname'"}, v1alpha1.ReasonManifestInvalid, "the commit has no"},
		"missing":               {tree{"k/a.jsonnet": "import 'b.libsonnet'"}, v1alpha1.ReasonManifestInvalid, `the commit has no "b.libsonnet" beside the file or in vendor`},
		"link":                  {tree{"k/a.jsonnet": "import 'b.libsonnet'", "k/b.libsonnet": link}, v1alpha1.ReasonUnsafePath, `"k/b.libsonnet" is a symbolic link`},
		"cycle":                 {tree{"k/a.jsonnet": "import 'a.jsonnet'"}, v1alpha1.ReasonManifestInvalid, "jsonnet cannot build it"},
		"many imports":          {wide, v1alpha1.ReasonLimitExceeded, "more than 1000 files"},
		"many names":            {tree{"k/a.jsonnet": names.String()}, v1alpha1.ReasonLimitExceeded, "the imports name more than 20000 possible files"},
		"loop":                  {tree{"k/a.jsonnet": "local f(n) = if n == 0 then 0 else f(n - 1) + f(n - 1); f(60)"}, v1alpha1.ReasonLimitExceeded, "CPU time"},
		"recursion":             {tree{"k/a.jsonnet": "local f(n) = f(n + 1) + 1; f(0)"}, v1alpha1.ReasonManifestInvalid, "max stack frames exceeded"},
		"memory":                {tree{"k/a.jsonnet": "std.repeat('x', 1000000000)"}, v1alpha1.ReasonLimitExceeded, "memory"},
		"nesting":               {tree{"k/a.jsonnet": strings.Repeat("[", 2_000_000)}, v1alpha1.ReasonLimitExceeded, ""},
		"objects":               {tree{"k/a.jsonnet": "[" + object("'1'") + " + {metadata+: {name: 'a%d' % i}} for i in std.range(1, 3000)]"}, v1alpha1.ReasonLimitExceeded, "more than 2000 objects"},
		"syntax":                {tree{"k/a.jsonnet": "{a: }"}, v1alpha1.ReasonManifestInvalid, "k/a.jsonnet:1:5"},
		"error":                 {tree{"k/a.jsonnet": "error 'set the site'"}, v1alpha1.ReasonManifestInvalid, "set the site"},
		"variable":              {tree{"k/a.jsonnet": "std.extVar('none')"}, v1alpha1.ReasonManifestInvalid, "none"},
		"Secret":                {tree{"k/a.jsonnet": "{kind: 'Secret', x: std.parseInt('S3CR3T')}"}, v1alpha1.ReasonManifestInvalid, "the message is not shown"},
		"text":                  {tree{"k/a.jsonnet": "'S3CR3T'"}, v1alpha1.ReasonManifestInvalid, "is not an object"},
		"map":                   {tree{"k/a.jsonnet": "{a: " + object("'1'") + "}"}, v1alpha1.ReasonManifestInvalid, "apiVersion and kind"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := build(t.Context(), c.files, nil, false)
			require.ErrorContains(t, err, c.says)
			assert.Equal(t, c.reason, failure.Reason(err, ""), "%v", err)
			assert.NotContains(t, err.Error(), "S3CR3T")
		})
	}
}

// G1: no file makes a panic or an unbounded result, and each error has a reason.
func FuzzJsonnet(f *testing.F) {
	f.Add(object("import 'b'"), "'1'")
	f.Add("[x for x in (import 'b')]", "[1, 2]")
	f.Add("importstr '../../b'", "")
	f.Fuzz(func(t *testing.T, text, other string) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Second, failure.New(v1alpha1.ReasonLimitExceeded, "too long"))
		defer cancel()
		list, err := build(ctx, tree{"k/a.jsonnet": text, "k/b": other}, nil, false)
		if err != nil {
			require.NotEmpty(t, failure.Reason(err, ""), "%v", err)
			require.NotContains(t, err.Error(), "too long")
			return
		}
		require.LessOrEqual(t, len(list), manifest.MaxObjects)
	})
}
