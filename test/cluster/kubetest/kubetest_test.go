package kubetest_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/test/cluster/kubetest"
)

func TestMain(m *testing.M) { kubetest.Main(m) }

var gatewaySyncs = schema.GroupVersionResource{Group: "stoker.io", Version: "v1alpha1", Resource: "gatewaysyncs"}

const gatewaySync = `
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: plant}
spec:
  git: {repo: https://git.example.com/plant.git, ref: main}
`

func get(t *testing.T, c *kubetest.Cluster, namespace, name string) (*unstructured.Unstructured, error) {
	return getWithin(t, time.Minute, c, namespace, name)
}

func getWithin(t *testing.T, within time.Duration, c *kubetest.Cluster, namespace, name string) (*unstructured.Unstructured, error) {
	client, err := dynamic.NewForConfig(c.RESTConfig())
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	return client.Resource(gatewaySyncs).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
}

func TestProjectKinds(t *testing.T) {
	t.Parallel()
	c := kubetest.Control(t)
	first, second := c.Namespace(t), c.Namespace(t)
	assert.NotEqual(t, first, second)
	c.ApplyYAML(t, first, gatewaySync)
	made, err := get(t, c, first, "plant")
	require.NoError(t, err)
	enabled, found, err := unstructured.NestedBool(made.Object, "spec", "polling", "enabled")
	require.NoError(t, err)
	assert.True(t, found && enabled, "the API server must apply the defaults of the schema")
	_, err = get(t, c, second, "plant")
	assert.True(t, apierrors.IsNotFound(err), "%v", err)
}

func TestPodsAreNotRun(t *testing.T) {
	t.Parallel()
	c := kubetest.Control(t)
	namespace := c.Namespace(t)
	client := c.Client(t)
	_, err := client.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "gateway-0"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "gateway", Image: "gateway"}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)

	as, err := kubernetes.NewForConfig(c.As(t, namespace, "default", "gateway-0"))
	require.NoError(t, err)
	_, err = as.CoreV1().Pods(namespace).Get(t.Context(), "gateway-0", metav1.GetOptions{})
	require.True(t, apierrors.IsForbidden(err), "a service account must have no permissions: %v", err)
	assert.ErrorContains(t, err, "system:serviceaccount:"+namespace+":default")
}

func TestGarbageCollection(t *testing.T) {
	t.Parallel()
	c := kubetest.Control(t, kubetest.Controllers())
	namespace := c.Namespace(t)
	client := c.Client(t)
	c.ApplyYAML(t, namespace, gatewaySync)
	owner, err := get(t, c, namespace, "plant")
	require.NoError(t, err)
	_, err = client.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name:            "child",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "stoker.io/v1alpha1", Kind: "GatewaySync", Name: owner.GetName(), UID: owner.GetUID()}},
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	owners, err := dynamic.NewForConfig(c.RESTConfig())
	require.NoError(t, err)
	require.NoError(t, owners.Resource(gatewaySyncs).Namespace(namespace).Delete(t.Context(), "plant", metav1.DeleteOptions{}))
	began := time.Now()
	require.Eventually(t, func() bool {
		_, err := client.CoreV1().ConfigMaps(namespace).Get(t.Context(), "child", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, time.Minute, 50*time.Millisecond)
	assert.Less(t, time.Since(began), 35*time.Second, "the kinds must be installed before the controllers, which may otherwise see them 40 s late")
}

func TestControlPlaneRestart(t *testing.T) {
	t.Parallel()
	c := kubetest.Control(t, kubetest.Private())
	namespace := c.Namespace(t)
	c.ApplyYAML(t, namespace, gatewaySync)
	// sequence: each step stops a program of the same control plane
	for _, name := range []string{kubetest.APIServer, kubetest.Etcd} {
		c.Kill(t, name)
		assert.Zero(t, c.PID(t, name))
		// Without etcd, the API server blocks a request for a minute.
		_, err := getWithin(t, 2*time.Second, c, namespace, "plant")
		require.Error(t, err, "%s must be stopped", name)
		c.Start(t, name)
		require.Eventually(t, func() bool {
			_, err := getWithin(t, 2*time.Second, c, namespace, "plant")
			return err == nil
		}, time.Minute, 50*time.Millisecond, "%s must work again", name)
	}
	c.Stop(t, kubetest.APIServer)
	c.Start(t, kubetest.APIServer)
	_, err := get(t, c, namespace, "plant")
	require.NoError(t, err)
}

func TestPausedAPIServer(t *testing.T) {
	t.Parallel()
	c := kubetest.Control(t, kubetest.Private(), kubetest.WithoutKinds())
	client := c.Client(t)
	c.Pause(t, kubetest.APIServer)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := client.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	c.Resume(t, kubetest.APIServer)
	_, err = client.CoreV1().Namespaces().Get(t.Context(), "kube-system", metav1.GetOptions{})
	require.NoError(t, err)
	c.Apply(t, filepath.Join("..", "..", "..", "charts", "stoker", "files", "crds"))
	_, err = get(t, c, "kube-system", "plant")
	assert.True(t, apierrors.IsNotFound(err), "the kinds must be served: %v", err)
}

func TestControlPlanesAreIsolated(t *testing.T) {
	t.Parallel()
	shared, private := kubetest.Control(t), kubetest.Control(t, kubetest.Private())
	assert.NotEqual(t, shared.RESTConfig().Host, private.RESTConfig().Host)
	namespace := private.Namespace(t)
	private.ApplyYAML(t, namespace, gatewaySync)
	_, err := get(t, shared, namespace, "plant")
	assert.True(t, apierrors.IsNotFound(err), "%v", err)
	_, err = private.Client(t).CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	foreign := private.RESTConfig()
	foreign.Host = shared.RESTConfig().Host
	client, err := kubernetes.NewForConfig(foreign)
	require.NoError(t, err)
	_, err = client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	assert.Error(t, err, "each control plane must have its own authority")
}

func TestCleanUpAfterTest(t *testing.T) {
	kubetest.NotShort(t)
	t.Parallel()
	var pids []int
	var dir string
	t.Run("with a control plane", func(t *testing.T) {
		c := kubetest.Control(t, kubetest.Private(), kubetest.Controllers(), kubetest.Scheduler())
		pids = programs(t, c)
		dir = filepath.Dir(c.Kubeconfig())
	})
	require.Len(t, pids, 4)
	for _, pid := range pids {
		assert.False(t, lives(t, pid))
	}
	assert.NoDirExists(t, dir)
}

func programs(t *testing.T, c *kubetest.Cluster) []int {
	var pids []int
	for _, name := range []string{kubetest.Etcd, kubetest.APIServer, kubetest.ControllerManager, kubetest.KubeScheduler} {
		pid := c.PID(t, name)
		assert.True(t, lives(t, pid), "%s, process %d", name, pid)
		pids = append(pids, pid)
	}
	return pids
}

// lives reports whether a process exists and is not a zombie.
func lives(t *testing.T, pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return false
	}
	require.NoError(t, err)
	_, state, _ := strings.Cut(string(stat), ") ")
	return state[0] != 'Z' && state[0] != 'X'
}

// holdVariable selects the role of the killed process in the test below. It starts a control plane, prints
// its processes and waits.
const holdVariable = "STOKER_TEST_HOLD"

func TestCleanUpAfterKilledTest(t *testing.T) {
	if os.Getenv(holdVariable) != "" {
		c := kubetest.Control(t, kubetest.Controllers(), kubetest.Scheduler())
		fmt.Println("held", filepath.Dir(c.Kubeconfig()), programs(t, c))
		<-t.Context().Done()
	}
	kubetest.NotShort(t)
	t.Parallel()
	holder := exec.Command(os.Args[0], "-test.run=^TestCleanUpAfterKilledTest$", "-test.timeout=5m")
	holder.Env = append(os.Environ(), holdVariable+"=1")
	holder.Stderr = os.Stderr
	out, err := holder.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, holder.Start())
	t.Cleanup(func() { _ = holder.Process.Kill() }) // it has usually ended by then
	var said []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "held "); ok {
			said = strings.Fields(strings.NewReplacer("[", "", "]", "").Replace(rest))
			break
		}
	}
	require.Len(t, said, 5)
	require.DirExists(t, said[0])
	require.NoError(t, holder.Process.Kill())
	assert.Error(t, holder.Wait())
	for _, field := range said[1:] {
		pid, err := strconv.Atoi(field)
		require.NoError(t, err)
		assert.Eventually(t, func() bool { return !lives(t, pid) }, time.Minute, 10*time.Millisecond, "process %d outlived the test", pid)
	}
	kubetest.Control(t, kubetest.Private(), kubetest.WithoutKinds())
	assert.NoDirExists(t, said[0], "the next control plane must clean up")
}

// In go test -short, the test shows that the API server in memory does what tests need, and otherwise that a real one does the same.
func TestObjects(t *testing.T) {
	t.Parallel()
	c := kubetest.Objects(t)
	namespace := c.Namespace(t)
	client, err := dynamic.NewForConfig(c.RESTConfig())
	require.NoError(t, err)
	syncs, reports := client.Resource(gatewaySyncs).Namespace(namespace), client.Resource(gatewaySyncs.GroupVersion().WithResource("syncreports")).Namespace(namespace)
	w, err := syncs.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=plant"})
	require.NoError(t, err)
	defer w.Stop()
	seen := func(want watch.EventType) *unstructured.Unstructured {
		t.Helper()
		select {
		case e := <-w.ResultChan():
			assert.Equal(t, want, e.Type)
			o, _ := e.Object.(*unstructured.Unstructured)
			return o
		case <-time.After(time.Minute):
			require.Fail(t, "no event")
			return nil
		}
	}
	patch := func(kind types.PatchType, text string, sub ...string) (*unstructured.Unstructured, error) {
		return syncs.Patch(t.Context(), "plant", kind, []byte(text), metav1.PatchOptions{}, sub...)
	}

	c.ApplyYAML(t, namespace, gatewaySync)
	first := seen(watch.Added)
	assert.EqualValues(t, 1, first.GetGeneration())
	interval, _, _ := unstructured.NestedString(first.Object, "spec", "polling", "interval")
	ref, _, _ := unstructured.NestedString(first.Object, "spec", "git", "ref")
	assert.Equal(t, []string{"60s", "main"}, []string{interval, ref})
	_, err = syncs.Create(t.Context(), first, metav1.CreateOptions{})
	assert.Error(t, err)

	again, err := patch(types.MergePatchType, `{"metadata":{"annotations":{"a":"b"}}}`)
	require.NoError(t, err)
	assert.EqualValues(t, 1, again.GetGeneration(), "metadata do not count")
	seen(watch.Modified)
	same, err := patch(types.MergePatchType, `{"metadata":{"annotations":{"a":"b"}}}`)
	require.NoError(t, err)
	assert.Equal(t, again.GetResourceVersion(), same.GetResourceVersion(), "nothing has changed")
	changed, err := patch(types.MergePatchType, `{"spec":{"git":{"ref":"v1"}},"status":{"observedGeneration":7}}`)
	require.NoError(t, err)
	assert.EqualValues(t, 2, changed.GetGeneration())
	_, written, _ := unstructured.NestedFieldNoCopy(changed.Object, "status", "observedGeneration")
	assert.False(t, written, "the status is a subresource")
	seen(watch.Modified)

	_, err = syncs.Update(t.Context(), again, metav1.UpdateOptions{})
	assert.True(t, apierrors.IsConflict(err), "%v", err)
	_, err = patch(types.MergePatchType, `{"metadata":{"uid":"00000000-0000-0000-0000-000000000000"}}`)
	assert.True(t, apierrors.IsInvalid(err), "%v", err)
	_, err = patch(types.MergePatchType, `{"metadata":{"resourceVersion":"1"},"status":{"observedGeneration":2}}`, "status")
	assert.True(t, apierrors.IsConflict(err), "%v", err)
	_, err = patch(types.JSONPatchType, `[{"op":"test","path":"/spec/git/ref","value":"other"},{"op":"remove","path":"/spec/polling"}]`)
	assert.True(t, apierrors.IsInvalid(err), "%v", err)
	status, err := patch(types.MergePatchType, `{"spec":{"git":{"ref":"other"}},"status":{"observedGeneration":2}}`, "status")
	require.NoError(t, err)
	assert.EqualValues(t, 2, status.GetGeneration(), "the status is not the spec")
	seen(watch.Modified)

	var report unstructured.Unstructured
	require.NoError(t, yaml.Unmarshal([]byte("{apiVersion: stoker.io/v1alpha1, kind: SyncReport, metadata: {name: gw}, status: {format: 1, gateway: gw, phase: Pending}}"), &report.Object))
	made, err := reports.Create(t.Context(), &report, metav1.CreateOptions{})
	require.NoError(t, err)
	phase, _, _ := unstructured.NestedString(made.Object, "status", "phase")
	assert.Equal(t, "Pending", phase, "this kind has no subresource")

	wrong := types.UID("00000000-0000-0000-0000-000000000000")
	assert.True(t, apierrors.IsConflict(syncs.Delete(t.Context(), "plant", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &wrong}})))
	require.NoError(t, syncs.Delete(t.Context(), "plant", metav1.DeleteOptions{}))
	seen(watch.Deleted)
	_, err = syncs.Get(t.Context(), "plant", metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err), "%v", err)
	later, err := syncs.Watch(t.Context(), metav1.ListOptions{ResourceVersion: status.GetResourceVersion()})
	require.NoError(t, err)
	defer later.Stop()
	assert.Equal(t, watch.Deleted, (<-later.ResultChan()).Type, "a watch resumes after a version")
}
