package lead

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
)

// This test uses real pods, one of which terminates slowly because of a finalizer.
func TestSoleGatewayRestart(t *testing.T) {
	t.Parallel()
	s := newSite(t, 0, slow)
	s.gateway("gw-0", func(p *corev1.Pod) { p.Finalizers = []string{"example.com/ends-slowly"} })
	// The API server rejects the token of a deleted pod, so the lead runs in a pod that is not a gateway.
	s.gateway("lead", func(p *corev1.Pod) { p.Labels, p.Annotations = map[string]string{"app": "lead"}, nil })
	s.candidate("lead")
	s.untilTarget(s.first)
	s.takes("gw-0")
	s.untilReady("True/Synced")
	pods := s.admin.Core.CoreV1().Pods(s.ns)
	require.NoError(t, pods.Delete(t.Context(), "gw-0", metav1.DeleteOptions{}))
	gs := s.untilReady("Unknown/AgentsAway")
	at := now()
	s.annotate(v1alpha1.AnnotationRequestedAt, at)
	require.Eventually(t, func() bool { return s.target().RequestedAt == at }, tenfold, 20*time.Millisecond)
	_, err := pods.Patch(t.Context(), "gw-0", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	was := meta.FindStatusCondition(gs.Status.Conditions, v1alpha1.ConditionReconciling)
	gs = s.until("the pod is gone", func(gs *v1alpha1.GatewaySync) bool {
		return len(gs.Status.DiscoveredGateways) == 1 && gs.Status.DiscoveredGateways[0].Message == "its pod is gone"
	})
	assert.Equal(t, "Unknown/AgentsAway", condition(&gs.Status, v1alpha1.ConditionReady))
	assert.Equal(t, was.LastTransitionTime, meta.FindStatusCondition(gs.Status.Conditions, v1alpha1.ConditionReconciling).LastTransitionTime)
	assert.Empty(t, gs.Status.LastHandledRequest)
	assert.Equal(t, "0/1", gs.Status.GatewaysReady)
	require.NoError(t, s.reports().Delete(t.Context(), "gw-0", metav1.DeleteOptions{})) // its owner is gone
	s.gateway("gw-0")
	s.takes("gw-0")
	gs = s.untilReady("True/Synced")
	assert.Equal(t, at, gs.Status.LastHandledRequest)
}

func TestStatusUsesServerTime(t *testing.T) {
	t.Parallel()
	s := newSite(t, 1)
	s.ahead = 20 * time.Minute
	s.candidate("gw-0")
	s.takesAll(s.first, "gw-0")
	gs := s.untilReady("True/Synced")
	is := time.Now().Add(s.ahead)
	assert.WithinDuration(t, is, gs.Status.LastGood.At.Time, tenfold)
	assert.WithinDuration(t, is, meta.FindStatusCondition(gs.Status.Conditions, v1alpha1.ConditionReady).LastTransitionTime.Time, tenfold)
	assert.WithinDuration(t, is, s.target().ResolvedAt.Time, tenfold)
}
