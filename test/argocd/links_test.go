package argocd

import (
	"os"
	"strings"
	"testing"

	"github.com/argoproj/argo-cd/v2/server/deeplinks"
	"github.com/argoproj/argo-cd/v2/util/settings"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// The documented link leads from a GatewaySync to its page, and no other object has it.
func TestLinkToPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/how-to/argocd.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(page), "```yaml\ndata:\n  resource.links:")
	require.True(t, found)
	block, _, _ := strings.Cut(rest, "```")
	var config struct{ Data map[string]string }
	require.NoError(t, yaml.Unmarshal([]byte("data:\n  resource.links:"+block), &config))
	var links []settings.DeepLink
	require.NoError(t, yaml.Unmarshal([]byte(config.Data["resource.links"]), &links))
	require.Len(t, links, 1)
	of := func(kind string) []string {
		object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "stoker.io/v1alpha1", "kind": kind, "metadata": map[string]any{"namespace": "plant", "name": "line"}}}
		found, failed := deeplinks.EvaluateDeepLinksResponse(deeplinks.CreateDeepLinksObject(object, nil, nil, nil), "line", links)
		require.Empty(t, failed)
		var urls []string
		for _, l := range found.Items {
			urls = append(urls, l.GetUrl())
		}
		return urls
	}
	assert.Equal(t, []string{"http://127.0.0.1:8090/fleets/plant/line"}, of("GatewaySync"))
	assert.Empty(t, of("ConfigMap"))
}
