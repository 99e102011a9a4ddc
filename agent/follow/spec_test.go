package follow

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
)

// A gate that reads the GatewaySync again sees new approvals. A new request waits until the lead has published it with the target.
func TestRequestsWaitForTheirTarget(t *testing.T) {
	live := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": v1alpha1.Kind,
		"metadata": map[string]any{"name": "plant", "namespace": "line", "uid": "u", "annotations": map[string]any{
			v1alpha1.AnnotationForceSync: "now", v1alpha1.AnnotationApproved: "line@" + commit + " ann"}},
		"spec": map[string]any{"git": map[string]any{"repo": "https://git.example.com/plant.git", "ref": "main"}},
	}}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{kube.GatewaySync.Resource(): kube.GatewaySync.Name + "List"}, live)
	gs := &v1alpha1.GatewaySync{}
	gs.Name, gs.UID = "plant", "u"
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	s := &specReader{objects: kube.GatewaySyncs(client, "line"), name: "plant", log: slog.New(slog.DiscardHandler), now: func() time.Time { return now }, gs: gs, asked: gs, newest: gs}
	target, err := plan.ParseID(commit)
	require.NoError(t, err)

	require.True(t, s.refresh(t.Context(), "line@"+commit))
	assert.Equal(t, "line by ann", s.approvedBy(target))
	assert.Equal(t, "line@"+commit+" ann", s.current(gs).Annotations[v1alpha1.AnnotationApproved])
	assert.Zero(t, s.requestsFor("line-0", target))
	assert.False(t, s.refresh(t.Context(), "line@"+commit), "the next try has a pause")
	now = now.Add(time.Minute)
	assert.True(t, s.refresh(t.Context(), "line@"+commit))
}
