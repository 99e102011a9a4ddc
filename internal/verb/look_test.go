package verb

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
)

// report is the SyncReport of a pod.
func report(pod, of, handled string) runtime.Object {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": kube.SyncReport.Name,
		"metadata": map[string]any{"name": pod, "namespace": "line", "labels": map[string]any{v1alpha1.LabelCRName: of}},
		"status":   map[string]any{"format": int64(1), "handledRequest": handled},
	}}
}

func TestWhetherAFailureIsAboutTheRequestIsReadFromTheReports(t *testing.T) {
	broken := func() *v1alpha1.GatewaySync {
		gs := done()
		gs.Namespace, gs.Status.LastHandledRequest = "line", "t0"
		g := &gs.Status.DiscoveredGateways[1]
		g.SyncStatus, g.Reason, g.Message = v1alpha1.GatewayError, v1alpha1.ReasonConfigSyntaxError, "a.json: line 3"
		return gs
	}
	for name, c := range map[string]struct {
		gs      *v1alpha1.GatewaySync
		reports []runtime.Object
		want    Phase
		asked   int
	}{
		"nothing has failed":             {done(), nil, Succeeded, 0},
		"it has dealt with it":           {broken(), []runtime.Object{report("pod-1", "plant", "t1")}, Failed, 1},
		"it was before":                  {broken(), []runtime.Object{report("pod-1", "plant", "t0")}, Progressing, 1},
		"another one has":                {broken(), []runtime.Object{report("pod-0", "plant", "t1")}, Progressing, 1},
		"one of another GatewaySync has": {broken(), []runtime.Object{report("pod-1", "other", "t1")}, Progressing, 1},
		"nobody has said anything":       {broken(), nil, Progressing, 1},
	} {
		client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
			map[schema.GroupVersionResource]string{kube.SyncReport.Resource(): kube.SyncReport.Name + "List"}, c.reports...)
		v, err := Look(t.Context(), client, c.gs, "main")
		require.NoError(t, err, name)
		assert.Equal(t, c.want, v.Phase, name)
		assert.Len(t, client.Actions(), c.asked, name)
	}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{kube.SyncReport.Resource(): kube.SyncReport.Name + "List"})
	client.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("no") })
	v, err := Look(t.Context(), client, broken(), "main")
	assert.Equal(t, Progressing, v.Phase, "the verdict counts all the same")
	assert.ErrorContains(t, err, "SyncReports cannot be read")
}
