package v1alpha1_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
)

const small = `apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: plant}
spec:
  git: {repo: "file:///srv/plant", ref: "1.10"}
`

func TestDecodeFindsTheOneGatewaySync(t *testing.T) {
	for name, file := range map[string]string{
		"alone":                    small,
		"as JSON":                  `{"apiVersion":"stoker.io/v1alpha1","kind":"GatewaySync","metadata":{"name":"plant"},"spec":{"git":{"repo":"file:///srv/plant","ref":"1.10"}}}`,
		"among others":             "# plant\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: a}\n---\n" + small + "---\n",
		"with Windows line ends":   strings.ReplaceAll(small, "\n", "\r\n"),
		"behind a document marker": "---\n" + small,
	} {
		t.Run(name, func(t *testing.T) {
			gs, warnings, err := v1alpha1.Decode([]byte(file))
			require.NoError(t, err)
			assert.Empty(t, warnings)
			assert.Equal(t, "plant", gs.Name)
			assert.Equal(t, "1.10", gs.Spec.Git.Ref)
		})
	}
}

func TestDecodeWarnsOfUnknownFields(t *testing.T) {
	gs, warnings, err := v1alpha1.Decode([]byte(small + "  syncs: {}\n  sync: {defaults: {SyncPeriod: 5}}\n"))
	require.NoError(t, err)
	assert.Equal(t, "plant", gs.Name)
	require.Len(t, warnings, 2)
	assert.Contains(t, strings.Join(warnings, "\n"), `"spec.syncs"`)
	assert.Contains(t, strings.Join(warnings, "\n"), `"spec.sync.defaults.SyncPeriod"`)
	assert.Nil(t, gs.Spec.Sync.Defaults.SyncPeriod, "names are compared with their case")
}

func TestDecodeErrorsSayWhatToDo(t *testing.T) {
	for name, c := range map[string]struct{ file, says string }{
		"an empty file":                {"", "kind GatewaySync"},
		"a file of another kind":       {"kind: Secret\n", "kind GatewaySync"},
		"two of them":                  {small + "---\n" + small, "more than one"},
		"another version":              {strings.Replace(small, "v1alpha1", "v9", 1), "stoker.io/v1alpha1"},
		"a ref that is a number":       {strings.Replace(small, `"1.10"`, "1.10", 1), "spec.git.ref"},
		"a period beyond 32 bits":      {small + "  sync: {defaults: {syncPeriod: 99999999999}}\n", "syncPeriod"},
		"a field that is given twice":  {small + "  paused: true\n  paused: false\n", "paused"},
		"a file that is no YAML":       {"\tkind: x", "document 1"},
		"a file that is no object":     {"- a\n", "document 1"},
		"an object with a bad bracket": {small + "  sync: {\n", "document 1"},
		"a file that is too large":     {small + strings.Repeat("#", 2<<20), "at most"},
		"very many documents":          {strings.Repeat("a: b\n---\n", 200), "file of its own"},
	} {
		t.Run(name, func(t *testing.T) {
			gs, _, err := v1alpha1.Decode([]byte(c.file))
			require.ErrorContains(t, err, c.says)
			assert.Nil(t, gs)
		})
	}
}

// C2: objects are decoded one by one, so a bad one is its own problem.
func TestABadObjectDoesNotStopTheNextOne(t *testing.T) {
	bad := map[string]any{"metadata": map[string]any{"name": "bad"}, "spec": map[string]any{"sync": map[string]any{"defaults": map[string]any{"syncPeriod": int64(1) << 40}}}}
	_, err := v1alpha1.FromUnstructured(bad)
	require.ErrorContains(t, err, "syncPeriod")
	banana := map[string]any{"metadata": map[string]any{"name": "banana"}, "spec": map[string]any{"polling": map[string]any{"interval": "banana"}}}
	gs, err := v1alpha1.FromUnstructured(banana)
	require.NoError(t, err, "a duration is text until it is used")
	assert.Equal(t, "banana", gs.Spec.Polling.Interval)
}
