package charts

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/internal/kube"
)

// docs/reference/gatewaysync.md says what happens to a misspelled field.
func TestUnknownFieldOfGatewaySync(t *testing.T) {
	t.Parallel()
	s := installed(t)
	s.namespaces(t, "unknown-fields")
	syncs := s.dynamic.Resource(kube.GatewaySync.Resource()).Namespace("unknown-fields")
	object := func(name string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{}
		require.NoError(t, yaml.Unmarshal([]byte(`
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: `+name+`}
spec:
  git: {repo: https://git.example.com/plant.git, ref: main}
  sync:
    defaults: {conflictpolicy: hold}
    profiles: {default: {mappings: [{source: projects, destination: projects}]}}
`), u))
		return u
	}
	t.Run("no validation drops the field", func(t *testing.T) {
		got, err := syncs.Create(t.Context(), object("lenient"), metav1.CreateOptions{})
		require.NoError(t, err)
		defaults, _, err := unstructured.NestedMap(got.Object, "spec", "sync", "defaults")
		require.NoError(t, err)
		assert.NotContains(t, defaults, "conflictpolicy")
		assert.NotEqual(t, "hold", defaults["conflictPolicy"])
	})
	t.Run("strict validation rejects the field", func(t *testing.T) {
		_, err := syncs.Create(t.Context(), object("strict"), metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
		require.True(t, apierrors.IsBadRequest(err), "%v", err)
		assert.ErrorContains(t, err, `unknown field "spec.sync.defaults.conflictpolicy"`)
	})
	t.Run("server-side apply rejects the field", func(t *testing.T) {
		_, err := syncs.Apply(t.Context(), "applied", object("applied"), metav1.ApplyOptions{FieldManager: "test"})
		assert.ErrorContains(t, err, ".spec.sync.defaults.conflictpolicy: field not declared in schema")
	})
}
