package kubetest_test

import (
	"bufio"
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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
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

func programs(t *testing.T, c *kubetest.Cluster) []int {
	var pids []int
	for _, name := range []string{kubetest.Etcd, kubetest.APIServer, kubetest.ControllerManager} {
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

// holdVariable makes the test below the process that is killed: it starts a control plane, prints its
// processes and waits.
const holdVariable = "STOKER_TEST_HOLD"

func TestCleanUpAfterKilledTest(t *testing.T) {
	if os.Getenv(holdVariable) != "" {
		c := kubetest.Control(t, kubetest.Controllers())
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
	require.Len(t, said, 4)
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
