package charts

import (
	"testing"

	certmanager "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// others are kinds of other projects, by their own types: a test cluster does not serve them.
var others = map[string]func() any{
	"cert-manager.io/v1 Issuer":               func() any { return new(certmanager.Issuer) },
	"cert-manager.io/v1 Certificate":          func() any { return new(certmanager.Certificate) },
	"monitoring.coreos.com/v1 ServiceMonitor": func() any { return new(monitoring.ServiceMonitor) },
	"monitoring.coreos.com/v1 PodMonitor":     func() any { return new(monitoring.PodMonitor) },
}

func other(o *object) (func() any, bool) {
	made, ok := others[o.GetAPIVersion()+" "+o.GetKind()]
	return made, ok
}

func TestObjectsOfOtherProjectsAreAsTheirTypesSay(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range valueCases {
		for name, o := range rendered(t, with(c.given, set(c.path, c.value))) {
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
