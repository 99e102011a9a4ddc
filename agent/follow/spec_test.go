package follow

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/internal/kube"
)

// specServer is an API server with a GatewaySync of generation 1.
func specServer() (*fake.FakeDynamicClient, *unstructured.Unstructured) {
	live := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": v1alpha1.Kind,
		"metadata": map[string]any{"name": "plant", "namespace": "line", "uid": "u", "generation": int64(1), "annotations": map[string]any{
			v1alpha1.AnnotationForceSync: "now", v1alpha1.AnnotationApproved: "line@" + commit + " ann"}},
		"spec": map[string]any{"git": map[string]any{"repo": "https://git.example.com/plant.git", "ref": "main"}},
	}}
	return fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{kube.GatewaySync.Resource(): kube.GatewaySync.Name + "List"}, live), live
}

// An API server that was restored from a backup counts a generation again, for another spec.
func TestGenerationCountedAgain(t *testing.T) {
	client, live := specServer()
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	s := &specReader{objects: kube.GatewaySyncs(client, "line"), name: "plant", log: slog.New(slog.DiscardHandler), now: func() time.Time { return now }}
	read, err := s.objects.Get(t.Context(), s.name)
	require.NoError(t, err)
	target := instruction{hash: annotation.Hash(read)}
	target.Generation, target.Ref = 1, "main"
	fetch := func(after time.Duration) *v1alpha1.GatewaySync {
		t.Helper()
		now = now.Add(after)
		gs, err := s.fetch(t.Context(), target, false)
		require.NoError(t, err)
		return gs
	}
	const later = checkEvery + checkEvery/10
	first := fetch(0)
	assert.Same(t, first, fetch(later), "an unchanged spec keeps its connections")

	require.NoError(t, unstructured.SetNestedField(live.Object, "https://git.example.com/other.git", "spec", "git", "repo"))
	require.NoError(t, client.Tracker().Update(kube.GatewaySync.Resource(), live, "line"))
	assert.Same(t, first, fetch(time.Minute))
	other := fetch(later)
	assert.Equal(t, "https://git.example.com/other.git", other.Spec.Git.Repo)

	client.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("connection refused")
	})
	assert.Same(t, other, fetch(later), "the agent follows the target while it cannot read the spec again")
}

// A gate that reads the GatewaySync again sees new approvals. A new request waits until the lead has published it with the target.
func TestRequestsWaitForTheirTarget(t *testing.T) {
	client, _ := specServer()
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
