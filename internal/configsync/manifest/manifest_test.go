package manifest_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/builder/buildertest"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/failure"
)

func TestParse(t *testing.T) {
	list, err := manifest.Parse(t.Context(), "a.yaml", []byte(`# a comment
---
apiVersion: v1
kind: ConfigMap
metadata: {name: a, creationTimestamp: null}
data: {on: "yes", list: &x "1", other: *x}
---
---
apiVersion: v1
kind: List
items:
- {apiVersion: apps/v1, kind: Deployment, metadata: {name: b, namespace: site}, spec: {replicas: 3, paused: yes}}
...
# the end
`))
	require.NoError(t, err)
	require.Len(t, list, 2)
	assert.Equal(t, manifest.ID{Kind: "ConfigMap", Name: "a"}, list[0].ID())
	assert.Equal(t, map[string]any{"name": "a"}, list[0].Object["metadata"])
	assert.Equal(t, "1", list[0].Object["data"].(map[string]any)["other"])
	assert.Equal(t, "Deployment.apps site/b", list[1].ID().String())
	assert.Equal(t, map[string]any{"replicas": int64(3), "paused": true}, list[1].Object["spec"], "yes must be read as true, as by kubectl")
}

// Templates write such fields if their blocks are empty.
func TestParseEmptyMetadata(t *testing.T) {
	for _, namespace := range []string{"null", `""`} {
		t.Run(namespace, func(t *testing.T) {
			list, err := manifest.Parse(t.Context(), "a.yaml", []byte("{apiVersion: v1, kind: A, metadata: {name: a, annotations: null, labels: null, namespace: "+namespace+"}}"))
			require.NoError(t, err)
			require.Len(t, list, 1)
			assert.Equal(t, map[string]any{"name": "a"}, list[0].Object["metadata"])
		})
	}
}

// bomb is a document that has terabytes when its aliases are expanded.
func bomb() string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n" + buildertest.Bomb()
}

// G1: what is not a bounded set of objects is refused, and no message repeats what the document says.
func TestParseRefuses(t *testing.T) {
	head := "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\n"
	long := strings.Repeat("S3CR3T", 200_000)
	for name, c := range map[string]struct {
		text   string
		reason v1alpha1.Reason
	}{
		"bomb":                 {bomb(), v1alpha1.ReasonLimitExceeded},
		"bomb of one text":     {head + "x: &x " + long[:600_000] + "\ny: [*x,*x,*x]\n", v1alpha1.ReasonLimitExceeded},
		"alias in itself":      {head + "x: &x {y: *x}\n", v1alpha1.ReasonManifestInvalid},
		"depth":                {head + "x: " + strings.Repeat("[", 100) + strings.Repeat("]", 100), v1alpha1.ReasonLimitExceeded},
		"extreme depth":        {head + "x: " + strings.Repeat("[", 20_000), v1alpha1.ReasonManifestInvalid},
		"size":                 {head + "x: " + long, v1alpha1.ReasonLimitExceeded},
		"unknown anchor":       {head + "data: {password: *S3CR3T}\n", v1alpha1.ReasonManifestInvalid},
		"repeated key":         {head + "data: {S3CR3T: a, S3CR3T: b}\n", v1alpha1.ReasonManifestInvalid},
		"open quote":           {head + "data: {password: \"S3CR3T}\n", v1alpha1.ReasonManifestInvalid},
		"tab":                  {head + "data:\n\tS3CR3T: a\n", v1alpha1.ReasonManifestInvalid},
		"binary":               {"\x00\x01S3CR3T", v1alpha1.ReasonManifestInvalid},
		"text":                 {"S3CR3T", v1alpha1.ReasonManifestInvalid},
		"list":                 {"[S3CR3T]", v1alpha1.ReasonManifestInvalid},
		"no kind":              {"apiVersion: v1\nmetadata: {name: a}\n", v1alpha1.ReasonManifestInvalid},
		"kind as number":       {"apiVersion: v1\nkind: 1\nmetadata: {name: a}\n", v1alpha1.ReasonManifestInvalid},
		"kind as path":         {"apiVersion: v1\nkind: a/b\nmetadata: {name: a}\n", v1alpha1.ReasonManifestInvalid},
		"no name":              {"apiVersion: v1\nkind: A\nmetadata: {generateName: a}\n", v1alpha1.ReasonManifestInvalid},
		"name as path":         {"apiVersion: v1\nkind: A\nmetadata: {name: ../a}\n", v1alpha1.ReasonManifestInvalid},
		"name of dots":         {"apiVersion: v1\nkind: A\nmetadata: {name: ..}\n", v1alpha1.ReasonManifestInvalid},
		"namespace as path":    {"apiVersion: v1\nkind: A\nmetadata: {name: a, namespace: a/b}\n", v1alpha1.ReasonManifestInvalid},
		"long namespace":       {"apiVersion: v1\nkind: A\nmetadata: {name: a, namespace: " + strings.Repeat("n", 64) + "}\n", v1alpha1.ReasonManifestInvalid},
		"no metadata":          {"apiVersion: v1\nkind: A\n", v1alpha1.ReasonManifestInvalid},
		"annotation as number": {"apiVersion: v1\nkind: A\nmetadata: {name: a, annotations: {x: 1}}\n", v1alpha1.ReasonManifestInvalid},
		"copied":               {"apiVersion: v1\nkind: A\nmetadata: {name: a, uid: b}\n", v1alpha1.ReasonManifestInvalid},
		"list of texts":        {"apiVersion: v1\nkind: List\nitems: [S3CR3T]\n", v1alpha1.ReasonManifestInvalid},
		"list without items":   {"apiVersion: v1\nkind: List\n", v1alpha1.ReasonManifestInvalid},
		"end of a document":    {head + "...\n" + head, v1alpha1.ReasonManifestInvalid},
		"document in a line":   {head + "--- {S3CR3T: a}\n", v1alpha1.ReasonManifestInvalid},
		"objects of JSON":      {`{"apiVersion": "v1", "kind": "A", "metadata": {"name": "a"}}` + "\n" + `{"S3CR3T": 1}`, v1alpha1.ReasonManifestInvalid},
		"objects":              {strings.Repeat("---\napiVersion: v1\nkind: A\nmetadata: {name: a}\n", 2001), v1alpha1.ReasonLimitExceeded},
		"empty documents":      {strings.Repeat("---\n#\n", 4001), v1alpha1.ReasonLimitExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := manifest.Parse(t.Context(), "secrets/a.yaml", []byte(c.text))
			require.Error(t, err)
			assert.Equal(t, c.reason, failure.Reason(err, ""), "%v", err)
			assert.ErrorContains(t, err, "secrets/a.yaml")
			assert.NotContains(t, err.Error(), "S3CR3T")
			assert.Less(t, len(err.Error()), 600)
		})
	}
}

// A file that takes long to parse does not outlast the time of its run.
func TestParseEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	late := errors.New("late")
	cancel(late)
	_, err := manifest.Parse(ctx, "a.yaml", []byte("{apiVersion: v1, kind: A, metadata: {name: a}}"))
	require.ErrorIs(t, err, late)
}

func TestParseErrorQuotesFileName(t *testing.T) {
	_, err := manifest.Parse(t.Context(), "100%s.yaml", []byte("apiVersion: v1\nkind: A\nmetadata: {name: a, uid: b}\n"))
	require.ErrorContains(t, err, `"100%s.yaml", document 1: metadata.uid was copied from a cluster`)
}

func TestInventoryEntry(t *testing.T) {
	for name, e := range map[string]manifest.Entry{
		"core":            {ID: manifest.ID{Kind: "ConfigMap", Namespace: "site", Name: "a"}, UID: "1-2"},
		"group":           {ID: manifest.ID{Group: "apps", Kind: "StatefulSet", Namespace: "site", Name: "a.b"}, UID: "1-2"},
		"name with _":     {ID: manifest.ID{Group: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "a_b:c_d"}, UID: "1-2"},
		"not yet created": {ID: manifest.ID{Kind: "Namespace", Name: "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := manifest.ParseEntry(e.String())
			assert.True(t, ok)
			assert.Equal(t, e, got)
		})
	}
	for _, line := range []string{"", "_", "a_b_c", "_Kind_ns__uid", "a__b_c_d"} {
		t.Run(line, func(t *testing.T) {
			_, ok := manifest.ParseEntry(line)
			assert.False(t, ok)
		})
	}
}

func TestOrderOfKinds(t *testing.T) {
	rank := func(kind string) int { return manifest.ID{Kind: kind}.Rank() }
	assert.Less(t, rank("Namespace"), rank("ServiceAccount"))
	assert.Less(t, rank("ConfigMap"), rank("StatefulSet"))
	assert.Less(t, rank("Service"), rank("GatewaySync"))
	assert.Less(t, rank("GatewaySync"), rank("StatefulSet"))
	assert.Less(t, rank("StatefulSet"), rank("ValidatingWebhookConfiguration"))
}

// G1: the parser never panics, loses no document, keeps its bounds, and its errors carry a reason.
func FuzzParse(f *testing.F) {
	f.Add([]byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {a: &x b, c: *x}\n---\n{}"))
	f.Add([]byte(bomb()))
	f.Add([]byte("apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: A, metadata: {name: a}}]"))
	f.Add([]byte("{apiVersion: v1, kind: A, metadata: {name: a}}\n...\n{apiVersion: v1, kind: A, metadata: {name: b}}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := manifest.Parse(t.Context(), "a.yaml", text)
		if err != nil {
			require.NotEmpty(t, failure.Reason(err, ""))
			return
		}
		if documents := yaml.NewDecoder(bytes.NewReader(text)); !bytes.Contains(text, []byte("---#")) { // a separator for kubectl, but not for YAML
			all, err := manifest.Documents("a.yaml", text)
			require.NoError(t, err)
			for n := 0; ; {
				var object map[string]any
				if documents.Decode(&object) != nil {
					break
				}
				if object != nil {
					n++
				}
				require.LessOrEqual(t, n, len(all), "a document is lost")
			}
		}
		for _, o := range list {
			id := o.ID()
			require.NotEmpty(t, id.Kind)
			require.NotEmpty(t, id.Name)
			got, ok := manifest.ParseEntry(manifest.Entry{ID: id, UID: "u"}.String())
			require.True(t, ok, id)
			require.Equal(t, id, got.ID)
		}
	})
}

func TestSOPSIsNamed(t *testing.T) {
	_, err := manifest.Parse(t.Context(), "s.yaml", []byte("apiVersion: v1\nkind: Secret\nmetadata: {name: a}\ndata: {password: 'ENC[AES256_GCM,data:x]'}\nsops: {mac: 'ENC[x]', version: 3.9.0}\n"))
	require.True(t, failure.Is(err, v1alpha1.ReasonManifestInvalid), "%v", err)
	assert.ErrorContains(t, err, "encrypted with SOPS")
	_, err = manifest.Parse(t.Context(), "a.yaml", []byte("{apiVersion: example.com/v1, kind: Tool, metadata: {name: a}, sops: {enabled: true}}"))
	require.NoError(t, err)
}
