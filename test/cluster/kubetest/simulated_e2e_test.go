//go:build e2e && linux

package kubetest_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/test/cluster/kubetest"
)

func TestManyPodsBecomeReadyOnSimulatedNodes(t *testing.T) {
	t.Parallel()
	c := kubetest.Control(t, kubetest.SimulatedNodes(2))
	namespace := c.Namespace(t)
	const replicas = 100
	c.ApplyYAML(t, namespace, fmt.Sprintf(`
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: gateway}
spec:
  serviceName: gateway
  podManagementPolicy: Parallel
  replicas: %d
  selector: {matchLabels: {app: gateway}}
  template:
    metadata: {labels: {app: gateway}}
    spec: {containers: [{name: gateway, image: gateway}]}
`, replicas))
	client := c.Client(t)
	require.Eventually(t, func() bool {
		s, err := client.AppsV1().StatefulSets(namespace).Get(t.Context(), "gateway", metav1.GetOptions{})
		return err == nil && s.Status.ReadyReplicas == replicas
	}, 2*time.Minute, 100*time.Millisecond)
	pods, err := client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	on := map[string]int{}
	for _, p := range pods.Items {
		on[p.Spec.NodeName]++
		assert.NotEmpty(t, p.Status.PodIP)
	}
	assert.Len(t, on, 2)
}
