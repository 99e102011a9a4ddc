package prometheus

import (
	"bytes"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// sample is one value of a scrape.
type sample struct {
	labels labels.Labels
	value  float64
}

// scrape is what Prometheus would store of all targets at one moment.
type scrape []sample

// target is an address with the labels that a monitor of the chart gives it.
type target struct {
	monitor string
	address string
	labels  map[string]string
}

// honorsLabels reports whether, by the monitor of a target, the labels of a metric win over those of the target.
func honorsLabels(t testing.TB, name string) bool {
	t.Helper()
	type endpoints []struct{ HonorLabels bool }
	found, err := filepath.Glob("../../kustomize/components/*monitoring/objects.yaml")
	require.NoError(t, err)
	for _, file := range found {
		for text := range bytes.SplitSeq(readFile(t, file), []byte("\n---\n")) {
			var monitor struct {
				Metadata struct{ Name string }
				Spec     struct{ Endpoints, PodMetricsEndpoints endpoints }
			}
			require.NoError(t, yaml.Unmarshal(text, &monitor))
			if all := append(monitor.Spec.Endpoints, monitor.Spec.PodMetricsEndpoints...); monitor.Metadata.Name == name && len(all) == 1 {
				return all[0].HonorLabels
			}
		}
	}
	t.Fatalf("no monitor %s with one endpoint", name)
	return false
}

// scraped reads the metrics of a target.
func (s target) scraped(t testing.TB) scrape {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.address+"/metrics", http.NoBody)
	require.NoError(t, err)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return s.parsed(t, string(body))
}

func (s target) parsed(t testing.TB, text string) scrape {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewBufferString(text))
	require.NoError(t, err)
	honor := honorsLabels(t, s.monitor)
	var all scrape
	for name, family := range families {
		if !strings.HasPrefix(name, "stoker_") && !strings.HasPrefix(name, "process_") {
			continue
		}
		list, err := expfmt.ExtractSamples(&expfmt.DecodeOptions{Timestamp: model.Now()}, family)
		require.NoError(t, err)
		for _, one := range list {
			set := maps.Clone(s.labels)
			set["instance"] = s.address
			for k, v := range one.Metric {
				name := string(k)
				if _, conflicts := set[name]; conflicts && !honor {
					name = model.ExportedLabelPrefix + name
				}
				set[name] = string(v)
			}
			all = append(all, sample{labels.FromMap(set), float64(one.Value)})
		}
	}
	require.NotEmpty(t, all)
	return all
}

// with returns a copy in which change was applied to the samples of a metric, of which there must be some.
func (s scrape) with(t testing.TB, metric string, change func(*sample)) scrape {
	t.Helper()
	var all scrape
	found := false
	for _, one := range s {
		if one.labels.Get(labels.MetricName) == metric {
			found = true
			change(&one)
		}
		all = append(all, one)
	}
	require.True(t, found, "the scrape has no %s", metric)
	return all
}

// values returns the samples of a metric as text.
func (s scrape) values(metric string) (found []string) {
	for _, one := range s {
		if one.labels.Get(labels.MetricName) == metric {
			found = append(found, one.labels.String()+" "+model.SampleValue(one.value).String())
		}
	}
	return found
}

// sum returns the sum of the samples of a metric.
func (s scrape) sum(metric string) (sum float64) {
	for _, one := range s {
		if one.labels.Get(labels.MetricName) == metric {
			sum += one.value
		}
	}
	return sum
}

// stage is a time during which every scrape is the same.
type stage struct {
	scrape scrape
	lasts  time.Duration
	// every is the interval of scrapes and evaluations; 30 s by default.
	every time.Duration
	// again is the interval after which counters grow once more by the difference between scrape and was; 0 for never.
	again time.Duration
	was   scrape
}

// at returns the scrape some time after the stage began.
func (s stage) at(d time.Duration) scrape {
	if s.again == 0 {
		return s.scrape
	}
	before := map[uint64]float64{}
	for _, one := range s.was {
		before[one.labels.Hash()] = one.value
	}
	var now scrape
	for _, one := range s.scrape {
		name := one.labels.Get(labels.MetricName)
		if was, ok := before[one.labels.Hash()]; ok && (strings.HasSuffix(name, "_total") || strings.HasSuffix(name, "_count")) {
			one.value += max(0, one.value-was) * float64(d/s.again)
		}
		now = append(now, one)
	}
	return now
}

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
