package charts

import (
	"testing"

	certmanager "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// others maps kinds of other projects to their Go types, because the test cluster does not serve them.
var others = map[string]func() any{
	"cert-manager.io/v1 Issuer":               func() any { return new(certmanager.Issuer) },
	"cert-manager.io/v1 Certificate":          func() any { return new(certmanager.Certificate) },
	"monitoring.coreos.com/v1 ServiceMonitor": func() any { return new(monitoring.ServiceMonitor) },
	"monitoring.coreos.com/v1 PodMonitor":     func() any { return new(monitoring.PodMonitor) },
	"monitoring.coreos.com/v1 PrometheusRule": func() any { return new(monitoring.PrometheusRule) },

	"kargo.akuity.io/v1alpha1 ClusterPromotionTask": func() any { return new(promotionTask) },
	"argoproj.io/v1alpha1 ClusterAnalysisTemplate":  func() any { return new(analysisTemplate) },
}

// promotionTask has the fields that Kargo 1.11 reads. analysisTemplate has the fields that Argo Rollouts
// 1.8 reads of our templates. Package hooks/kargo tests their behavior.
type (
	promotionTask struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`

		Spec struct {
			Vars []struct {
				Name  string `json:"name"`
				Value string `json:"value"`
			} `json:"vars"`
			Steps []struct {
				Uses            string `json:"uses"`
				As              string `json:"as"`
				If              string `json:"if"`
				ContinueOnError bool   `json:"continueOnError"`
				Retry           struct {
					Timeout        string `json:"timeout"`
					ErrorThreshold uint32 `json:"errorThreshold"`
				} `json:"retry"`
				Vars   []any          `json:"vars"`
				Config map[string]any `json:"config"`
			} `json:"steps"`
		} `json:"spec"`
	}
	analysisTemplate struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`

		Spec struct {
			Args []struct {
				Name      string `json:"name"`
				Value     string `json:"value"`
				ValueFrom struct {
					SecretKeyRef struct {
						Name string `json:"name"`
						Key  string `json:"key"`
					} `json:"secretKeyRef"`
				} `json:"valueFrom"`
			} `json:"args"`
			Metrics []struct {
				Name                  string `json:"name"`
				Interval              string `json:"interval"`
				Count                 int    `json:"count"`
				SuccessCondition      string `json:"successCondition"`
				FailureCondition      string `json:"failureCondition"`
				FailureLimit          int    `json:"failureLimit"`
				InconclusiveLimit     int    `json:"inconclusiveLimit"`
				ConsecutiveErrorLimit int    `json:"consecutiveErrorLimit"`
				Provider              struct {
					Web struct {
						URL     string `json:"url"`
						Headers []struct {
							Key   string `json:"key"`
							Value string `json:"value"`
						} `json:"headers"`
						TimeoutSeconds int    `json:"timeoutSeconds"`
						JSONPath       string `json:"jsonPath"`
					} `json:"web"`
					Job struct {
						Spec batchv1.JobSpec `json:"spec"`
					} `json:"job"`
				} `json:"provider"`
			} `json:"metrics"`
		} `json:"spec"`
	}
)

func other(o *object) (func() any, bool) {
	made, ok := others[o.GetAPIVersion()+" "+o.GetKind()]
	return made, ok
}

func TestThirdPartyObjectsAreValid(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, c := range valueCases {
		for name, o := range rendered(t, c.values()) {
			made, ok := other(o)
			if !ok {
				continue
			}
			seen[o.GetKind()] = true
			data, err := yaml.Marshal(o.Object)
			require.NoError(t, err)
			assert.NoError(t, yaml.UnmarshalStrict(data, made()), "%s with %s", name, c.path)
		}
	}
	assert.Len(t, seen, len(others))
}
