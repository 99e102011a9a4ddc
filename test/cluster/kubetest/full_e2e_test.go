//go:build e2e && linux

package kubetest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/test/cluster/kubetest"
)

// Tests with nodes share one cluster and some stop its programs, so none of them runs in parallel.

func eventually(t *testing.T, c *kubetest.Cluster, namespace string, condition func() bool) {
	t.Helper()
	if !assert.Eventually(t, condition, 2*time.Minute, 100*time.Millisecond) {
		pods, err := c.Client(t).CoreV1().Pods(namespace).List(context.Background(), metav1.ListOptions{})
		require.NoError(t, err)
		for _, p := range pods.Items {
			t.Logf("%s: %+v", p.Name, p.Status)
		}
		t.FailNow()
	}
}

// run repeats a shell command in a pod until it succeeds, and returns its output.
func run(t *testing.T, c *kubetest.Cluster, namespace, name, command string) string {
	t.Helper()
	c.ApplyYAML(t, namespace, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  restartPolicy: OnFailure
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: "registry.local/busybox:dev", imagePullPolicy: Never, command: [sh, -c, %q]}]
`, name, command))
	pods := c.Client(t).CoreV1().Pods(namespace)
	eventually(t, c, namespace, func() bool {
		p, err := pods.Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && p.Status.Phase == corev1.PodSucceeded
	})
	said, err := pods.GetLogs(name, &corev1.PodLogOptions{}).DoRaw(t.Context())
	require.NoError(t, err)
	return strings.TrimSpace(string(said))
}

func TestPodsSurviveNodeRestart(t *testing.T) {
	c := kubetest.Full(t, 2)
	if !c.HasPrograms() {
		t.Skip("the test must not kill programs of a given cluster")
	}
	namespace := c.Namespace(t)
	c.ApplyYAML(t, namespace, `
apiVersion: v1
kind: Pod
metadata: {name: steady}
spec:
  terminationGracePeriodSeconds: 0
  nodeName: node2
  containers: [{name: c, image: "registry.local/busybox:dev", imagePullPolicy: Never, command: [sleep, "1000"]}]
`)
	pods := c.Client(t).CoreV1().Pods(namespace)
	running := func() bool {
		p, err := pods.Get(t.Context(), "steady", metav1.GetOptions{})
		return err == nil && p.Status.Phase == corev1.PodRunning
	}
	eventually(t, c, namespace, running)
	killed := []string{"kubelet-n2", "containerd-n2", kubetest.APIServer, kubetest.Etcd}
	for _, name := range killed {
		t.Run(name, func(t *testing.T) {
			c.Kill(t, name)
			assert.Zero(t, c.PID(t, name))
			c.Start(t, name)
		})
	}
	eventually(t, c, namespace, running)
	for _, name := range killed {
		t.Run(name, func(t *testing.T) {
			require.NotZero(t, c.PID(t, name), "%s ended by itself: %s", name, c.Log(t, name))
		})
	}
	assert.Equal(t, "again", run(t, c, namespace, "later", "echo again"))
	p, err := pods.Get(t.Context(), "steady", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Zero(t, p.Status.ContainerStatuses[0].RestartCount)
}
