package decode_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1/decode"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/test/verdicts"
)

const small = `apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: plant}
spec:
  git: {repo: "file:///srv/plant", ref: "1.10"}
`

func TestDecodeGatewaySync(t *testing.T) {
	for name, file := range map[string]string{
		"alone":                   small,
		"as JSON":                 `{"apiVersion":"stoker.io/v1alpha1","kind":"GatewaySync","metadata":{"name":"plant"},"spec":{"git":{"repo":"file:///srv/plant","ref":"1.10"}}}`,
		"among other objects":     "# plant\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: a}\n---\n" + small + "---\n",
		"Windows line endings":    strings.ReplaceAll(small, "\n", "\r\n"),
		"after a document marker": "---\n" + small,
	} {
		t.Run(name, func(t *testing.T) {
			gs, err := decode.GatewaySync([]byte(file))
			require.NoError(t, err)
			assert.Equal(t, "plant", gs.Name)
			assert.Equal(t, "1.10", gs.Spec.Git.Ref)
		})
	}
}

func TestDecodeErrors(t *testing.T) {
	for name, c := range map[string]struct{ file, says string }{
		"an empty file":                    {"", "kind GatewaySync"},
		"a file of another kind":           {"kind: Secret\n", "kind GatewaySync"},
		"two GatewaySyncs":                 {small + "---\n" + small, "more than one"},
		"another version":                  {strings.Replace(small, "v1alpha1", "v9", 1), "stoker.io/v1alpha1"},
		"ref that YAML reads as a number":  {strings.Replace(small, `"1.10"`, "1.10", 1), "spec.git.ref must be text, not a number: put it in quotes"},
		"ref that YAML reads as a boolean": {strings.Replace(small, `"1.10"`, "yes", 1), "spec.git.ref must be text, not true or false: put it in quotes"},
		"paused as text":                   {small + "  paused: \"true\"\n", "spec.paused must be true or false, not text"},
		"profiles as a list":               {small + "  sync: {profiles: [a]}\n", "spec.sync.profiles must be fields, not a list"},
		"mappings as an object":            {small + "  sync: {profiles: {a: {mappings: {source: b}}}}\n", "mappings must be a list, not fields"},
		"syncPeriod beyond 32 bits":        {small + "  sync: {defaults: {syncPeriod: 99999999999}}\n", "spec.sync.defaults.syncPeriod must be a whole number"},
		"an unknown field":                 {small + "  sync: {defaults: {conflictpolicy: hold}}\n", `unknown field "spec.sync.defaults.conflictpolicy"`},
		"an unknown field of a list":       {small + "  sync: {profiles: {a: {mappings: [{sorce: b}]}}}\n", `unknown field "spec.sync.profiles.a.mappings[0].sorce"`},
		"two unknown fields":               {small + "  syncs: {}\n  polling: {Interval: 5s}\n", `unknown field "spec.syncs"`},
		"many unknown fields":              {small + "  a: 1\n  b: 1\n  c: 1\n  d: 1\n  e: 1\n  f: 1\n  g: 1\n", "2 more"},
		"duplicate field":                  {small + "  paused: true\n  paused: false\n", `not valid YAML: line 7: key "paused" is there twice`},
		"not YAML":                         {"\tkind: x", "document 1: not valid YAML: "},
		"not an object":                    {"- a\n", "document 1: it is a list or a single value"},
		"kind as a list":                   {"kind: [a]\n", "kind must be text, not a list"},
		"unclosed bracket":                 {small + "  sync: {\n", "document 1"},
		"too large":                        {small + strings.Repeat("#", 2<<20), "at most"},
		"very many documents":              {strings.Repeat("a: b\n---\n", 200), "file of its own"},
	} {
		t.Run(name, func(t *testing.T) {
			gs, err := decode.GatewaySync([]byte(c.file))
			require.ErrorContains(t, err, c.says)
			assert.NotContains(t, err.Error(), "Go struct")
			assert.Nil(t, gs)
		})
	}
}

// C2: a field of the wrong type is an error that names it. Validation finds a wrong value in a text, not decoding.
func TestUnstructuredWithWrongValue(t *testing.T) {
	bad := map[string]any{"metadata": map[string]any{"name": "bad"}, "spec": map[string]any{"sync": map[string]any{"defaults": map[string]any{"syncPeriod": int64(1) << 40}}}}
	_, err := decode.Unstructured(bad)
	require.ErrorContains(t, err, "spec.sync.defaults.syncPeriod must be a whole number")
	banana := map[string]any{"metadata": map[string]any{"name": "banana"}, "spec": map[string]any{"polling": map[string]any{"interval": "banana"}}}
	gs, err := decode.Unstructured(banana)
	require.NoError(t, err, "durations are not parsed while decoding")
	assert.Equal(t, "banana", gs.Spec.Polling.Interval)
}

// C2: a file is decoded or refused, without a panic. A decoded file survives a round trip unchanged.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(small))
	f.Add([]byte("---\n- a\n---\nkind: GatewaySync\n"))
	f.Add([]byte("a: &a [*a]\n"))
	for i, c := range verdicts.Table() {
		if i%10 == 0 {
			data, err := json.Marshal(c.Object())
			require.NoError(f, err)
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		gs, err := decode.GatewaySync(data)
		if err != nil {
			assert.Nil(t, gs)
			return
		}
		errs := validation.GatewaySync(gs)
		validation.Warnings(gs)
		for name := range gs.Spec.Sync.Profiles {
			_, err := effective.Of(gs, name, nil)
			assert.True(t, err == nil || len(errs) > 0, "a valid object must have valid profiles: %v", err)
		}
		written, err := json.Marshal(gs)
		require.NoError(t, err)
		again, err := decode.GatewaySync(written)
		if strings.ContainsFunc(string(written), func(r rune) bool { return r == 0x7f || r == '\uFFFD' || r >= 0x80 && r < 0xa0 }) {
			return // the YAML decoder, which also reads JSON, refuses these characters
		}
		require.NoError(t, err)
		rewritten, err := json.Marshal(again)
		require.NoError(t, err)
		assert.JSONEq(t, string(written), string(rewritten))
	})
}
