//go:build e2e && linux

package kubetest_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/test/cluster/image"
	"stoker.io/stoker/test/cluster/kubetest"
)

// Tests with nodes share one cluster and some stop its programs, so none of them runs in parallel.

const statefulSet = `
apiVersion: v1
kind: Service
metadata: {name: gateway}
spec: {clusterIP: None, selector: {app: gateway}, ports: [{port: 8088}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: gateway}
spec:
  serviceName: gateway
  replicas: 2
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: gateway}}
  template:
    metadata: {labels: {app: gateway}}
    spec:
      terminationGracePeriodSeconds: 1
      securityContext: {runAsUser: 2003, runAsGroup: 2003, runAsNonRoot: true, fsGroup: 2003, seccompProfile: {type: RuntimeDefault}}
      initContainers:
        - name: seed
          image: registry.local/busybox:dev
          imagePullPolicy: Never
          command: [sh, -c, "echo start >> /data/starts; id -u > /data/uid"]
          volumeMounts: [{name: data, mountPath: /data}]
      containers:
        - name: gateway
          image: registry.local/kubetest-gateway:dev
          imagePullPolicy: Never
          args: [-data=/data/gateway, -seed, "-listen=:8088"]
          readinessProbe: {tcpSocket: {port: 8088}, periodSeconds: 1}
          securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
          volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
    - metadata: {name: data}
      spec: {accessModes: [ReadWriteOnce], storageClassName: CLASS, resources: {requests: {storage: 1Gi}}}
`

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

func TestStatefulSetKeepsVolumes(t *testing.T) {
	c := kubetest.Full(t, 2)
	c.ProgramImage(t, "./test/gateway", image.Image{Ref: "registry.local/kubetest-gateway:dev", User: "2003"})
	namespace := c.Namespace(t)
	c.ApplyYAML(t, namespace, strings.ReplaceAll(statefulSet, "CLASS", c.Volumes(t, 2)))
	client := c.Client(t)
	ready := func() bool {
		s, err := client.AppsV1().StatefulSets(namespace).Get(t.Context(), "gateway", metav1.GetOptions{})
		return err == nil && s.Status.ReadyReplicas == 2
	}
	eventually(t, c, namespace, ready)

	pods := client.CoreV1().Pods(namespace)
	first, err := pods.Get(t.Context(), "gateway-0", metav1.GetOptions{})
	require.NoError(t, err)
	second, err := pods.Get(t.Context(), "gateway-1", metav1.GetOptions{})
	require.NoError(t, err)
	assert.NotEqual(t, first.Spec.NodeName, second.Spec.NodeName, "the pods must run on different nodes")

	// Reaches both nodes by name from the pod network.
	run(t, c, namespace, "visitor", "for i in 0 1; do timeout 5 wget -q -O /dev/null http://gateway-$i.gateway:8088/StatusPing || exit 1; done")

	require.NoError(t, pods.Delete(t.Context(), "gateway-0", metav1.DeleteOptions{}))
	eventually(t, c, namespace, func() bool {
		p, err := pods.Get(t.Context(), "gateway-0", metav1.GetOptions{})
		return err == nil && p.UID != first.UID
	})
	eventually(t, c, namespace, ready)
	c.ApplyYAML(t, namespace, `
apiVersion: v1
kind: Pod
metadata: {name: reader}
spec:
  restartPolicy: Never
  securityContext: {runAsUser: 2003, runAsGroup: 2003}
  containers:
    - name: c
      image: registry.local/busybox:dev
      imagePullPolicy: Never
      command: [sh, -c, "cat /data/starts /data/uid"]
      volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data-gateway-0}}]
`)
	eventually(t, c, namespace, func() bool {
		p, err := pods.Get(t.Context(), "reader", metav1.GetOptions{})
		return err == nil && p.Status.Phase == corev1.PodSucceeded
	})
	said, err := pods.GetLogs("reader", &corev1.PodLogOptions{}).DoRaw(t.Context())
	require.NoError(t, err)
	assert.Equal(t, strings.Repeat("start\n", 2)+"2003\n", string(said), "the second start must find the data of the first")
}

func TestPodsReachTestServers(t *testing.T) {
	c := kubetest.Full(t, 2)
	listener, err := net.Listen("tcp", net.JoinHostPort(c.HostAddress(t), "0"))
	require.NoError(t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "from the test") })}
	go func() { _ = server.Serve(listener) }()
	defer func() { assert.NoError(t, server.Close()) }()
	namespace := c.Namespace(t)
	assert.Equal(t, "from the test", run(t, c, namespace, "inward", "timeout 5 wget -q -O - http://"+listener.Addr().String()+"/"))
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
