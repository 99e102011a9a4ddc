package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/preflight"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/clientset"
)

// The pods of a large fleet come in pages.
func TestGatewaysOfAllPages(t *testing.T) {
	gs := &v1alpha1.GatewaySync{ObjectMeta: metav1.ObjectMeta{Name: "line"}}
	gs.Status.DiscoveredGateways = []v1alpha1.DiscoveredGateway{{Name: "a", PodName: "a-0"}, {Name: "b", PodName: "b-0"}}
	core := clientset.New()
	labels := map[string]string{v1alpha1.LabelCRName: "line"}
	pages := []string{"a-0", "b-0"}
	core.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		page := &corev1.PodList{Items: []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: pages[0], Labels: labels}}}}
		if pages = pages[1:]; len(pages) > 0 {
			page.Continue = "more"
		}
		return true, page, nil
	})
	in := &preflight.Input{GatewaySync: gs}
	addGateways(t.Context(), target{Clients: kube.Clients{Core: core}}, in)
	assert.Equal(t, []preflight.Gateway{{Name: "a", Pod: "a-0", Labels: labels}, {Name: "b", Pod: "b-0", Labels: labels}}, in.Gateways)
}
