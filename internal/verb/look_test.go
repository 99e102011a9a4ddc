package verb

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
)

// report returns the SyncReport of a pod.
func report(pod, of, handled string) runtime.Object {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": kube.SyncReport.Name,
		"metadata": map[string]any{"name": pod, "namespace": "line", "labels": map[string]any{v1alpha1.LabelCRName: of}},
		"status":   map[string]any{"format": int64(1), "handledRequest": handled},
	}}
}

func TestLook(t *testing.T) {
	broken := func() *v1alpha1.GatewaySync {
		gs := done()
		gs.Namespace, gs.Status.LastHandledRequest = "line", "t0"
		g := &gs.Status.DiscoveredGateways[1]
		g.SyncStatus, g.Reason, g.Message = v1alpha1.GatewayError, v1alpha1.ReasonConfigSyntaxError, "a.json: line 3"
		return gs
	}
	lock := func(holder string) runtime.Object {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": v1alpha1.GroupVersion.String(), "kind": kube.SyncTarget.Name, "metadata": map[string]any{"name": "plant", "namespace": "line"},
			"spec": map[string]any{"lead": map[string]any{"holder": holder, "durationSeconds": int64(15), "renewed": time.Now().UTC().Format(metav1.RFC3339Micro)}},
		}}
	}
	kinds := map[schema.GroupVersionResource]string{kube.SyncReport.Resource(): kube.SyncReport.Name + "List", kube.SyncTarget.Resource(): kube.SyncTarget.Name + "List"}
	client := func(list ...runtime.Object) *fake.FakeDynamicClient {
		return fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, list...)
	}
	now := func(gs *v1alpha1.GatewaySync) *v1alpha1.GatewaySync {
		gs.Namespace, gs.Status.ConfirmedAt = "line", &metav1.Time{Time: time.Now()}
		return gs
	}
	open := done()
	open.Status.LastHandledRequest = "t0"
	for name, c := range map[string]struct {
		gs    *v1alpha1.GatewaySync
		there []runtime.Object
		want  Phase
		asked int
	}{
		"all is done, and an agent leads":           {done(), []runtime.Object{lock("line-0_1")}, Succeeded, 1},
		"all is done, and no agent leads":           {done(), []runtime.Object{lock("")}, Progressing, 1},
		"all is done, and no agent ever led":        {done(), nil, Progressing, 1},
		"it has dealt with it":                      {broken(), []runtime.Object{report("pod-1", "plant", "t1")}, Failed, 1},
		"it was before":                             {broken(), []runtime.Object{report("pod-1", "plant", "t0")}, Progressing, 1},
		"another one has":                           {broken(), []runtime.Object{report("pod-0", "plant", "t1")}, Progressing, 1},
		"one of another GatewaySync has":            {broken(), []runtime.Object{report("pod-1", "other", "t1")}, Progressing, 1},
		"no agent has said anything":                {broken(), nil, Progressing, 1},
		"all run it, and one has not dealt with it": {open, []runtime.Object{report("pod-0", "plant", "t1"), report("pod-1", "plant", "t1")}, Progressing, 1},
	} {
		t.Run(name, func(t *testing.T) {
			client := client(c.there...)
			v, err := Look(t.Context(), kube.Clients{Dynamic: client}, now(c.gs), "main")
			require.NoError(t, err)
			assert.Equal(t, c.want, v.Phase, v.Message)
			assert.Len(t, client.Actions(), c.asked)
			if c.gs == open {
				assert.Contains(t, v.Message, "line-2 (pod pod-2) Pending/Progressing: has not dealt with the request yet")
			}
		})
	}
	refuse := func(verb string) kube.Clients {
		client := client()
		client.PrependReactor(verb, "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("no") })
		return kube.Clients{Dynamic: client}
	}
	t.Run("reports cannot be read", func(t *testing.T) {
		v, err := Look(t.Context(), refuse("list"), now(broken()), "main")
		assert.Equal(t, Progressing, v.Phase, "the verdict counts all the same")
		assert.ErrorContains(t, err, "SyncReports cannot be read")
	})
	t.Run("the lock cannot be read", func(t *testing.T) {
		v, err := Look(t.Context(), refuse("get"), now(done()), "main")
		assert.Equal(t, Succeeded, v.Phase, "the age of the status counts")
		assert.ErrorContains(t, err, "the SyncTarget cannot be read")
	})
}
