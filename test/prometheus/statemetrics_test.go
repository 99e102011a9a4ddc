package prometheus

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// stateMetrics has the fields of kube-state-metrics' configuration that the example uses. Another field is a mistake.
type stateMetrics struct {
	Kind string `json:"kind"`
	Spec struct {
		Resources []struct {
			GroupVersionKind struct{ Group, Version, Kind string } `json:"groupVersionKind"`
			MetricNamePrefix string                                `json:"metricNamePrefix"`
			LabelsFromPath   map[string][]string                   `json:"labelsFromPath"`
			Metrics          []struct {
				Name string `json:"name"`
				Help string `json:"help"`
				Each struct {
					Type  string   `json:"type"`
					Gauge *eachOne `json:"gauge"`
					Info  *eachOne `json:"info"`
				} `json:"each"`
			} `json:"metrics"`
		} `json:"resources"`
	} `json:"spec"`
}

type eachOne struct {
	Path           []string            `json:"path"`
	LabelsFromPath map[string][]string `json:"labelsFromPath"`
	ValueFrom      []string            `json:"valueFrom"`
	NilIsZero      bool                `json:"nilIsZero"`
}

// The paths of the example for kube-state-metrics are fields of the CRD. Its program is not a module that could be run here.
func TestStateMetricsExample(t *testing.T) {
	var config stateMetrics
	require.NoError(t, yaml.UnmarshalStrict(readFile(t, "../../examples/monitoring/kube-state-metrics.yaml"), &config))
	assert.Equal(t, "CustomResourceStateMetrics", config.Kind)
	var crd apiextensionsv1.CustomResourceDefinition
	require.NoError(t, yaml.Unmarshal(readFile(t, files+"crds/stoker.io_gatewaysyncs.yaml"), &crd))
	require.Len(t, config.Spec.Resources, 1)
	r := config.Spec.Resources[0]
	assert.Equal(t, []string{crd.Spec.Group, crd.Spec.Versions[0].Name, crd.Spec.Names.Kind}, []string{r.GroupVersionKind.Group, r.GroupVersionKind.Version, r.GroupVersionKind.Kind})
	root := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	for _, path := range r.LabelsFromPath {
		assert.Len(t, path, 2)
		assert.Equal(t, "metadata", path[0])
	}
	for _, m := range r.Metrics {
		t.Run(m.Name, func(t *testing.T) {
			each := m.Each.Gauge
			if m.Each.Type == "Info" {
				each = m.Each.Info
				require.Nil(t, m.Each.Gauge)
			} else {
				assert.Equal(t, "Gauge", m.Each.Type)
				require.Nil(t, m.Each.Info)
			}
			require.NotNil(t, each)
			at := schemaAt(t, root, each.Path)
			if at.Type == "array" {
				at = at.Items.Schema
			}
			for label, path := range each.LabelsFromPath {
				assert.Equal(t, "string", schemaAt(t, at, path).Type, label)
			}
			if m.Each.Type == "Gauge" {
				assert.NotEmpty(t, schemaAt(t, at, each.ValueFrom).Type)
			}
		})
	}
}

// schemaAt returns the schema at a path. An item such as [type=Ready] selects an element of a list.
func schemaAt(t *testing.T, s *apiextensionsv1.JSONSchemaProps, path []string) *apiextensionsv1.JSONSchemaProps {
	t.Helper()
	for _, name := range path {
		if strings.HasPrefix(name, "[") {
			require.Equal(t, "array", s.Type, path)
			key, _, _ := strings.Cut(strings.Trim(name, "[]"), "=")
			s = s.Items.Schema
			require.Contains(t, s.Properties, key, path)
			continue
		}
		require.Contains(t, s.Properties, name, "%v", path)
		next := s.Properties[name]
		s = &next
	}
	return s
}
