package status

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
)

// An earlier pod of the same name may have used another volume. Its report says nothing about the current pod.
func TestReportBelongsToPod(t *testing.T) {
	for name, c := range map[string]struct {
		owners []metav1.OwnerReference
		ready  string
	}{
		"own pod":         {[]metav1.OwnerReference{{Kind: "Pod", UID: "uid-gw-0"}}, "True/Synced"},
		"two owners":      {[]metav1.OwnerReference{{Kind: "Fleet", UID: "f"}, {Kind: "Pod", UID: "uid-gw-0"}}, "True/Synced"},
		"an earlier pod":  {[]metav1.OwnerReference{{Kind: "Pod", UID: "uid-earlier"}}, "False/Progressing"},
		"no owner":        {nil, "False/Progressing"},
		"another kind":    {[]metav1.OwnerReference{{Kind: "Fleet", UID: "uid-gw-0"}}, "False/Progressing"},
		"pod without UID": {[]metav1.OwnerReference{{Kind: "Pod"}}, "False/Progressing"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, 1)
			s.Reports[0].OwnerReferences = c.owners
			st := s.write()
			assert.Equal(t, c.ready, condition(st, v1alpha1.ConditionReady))
			if c.ready != "True/Synced" {
				assert.Equal(t, "its agent has not reported yet", st.DiscoveredGateways[0].Message)
				assert.Empty(t, st.DiscoveredGateways[0].SyncedCommit)
			}
		})
	}
}

// The agent has its gateway name from its environment, and delivered files contain that name.
func TestRenamedPodKeepsGateway(t *testing.T) {
	s := newScene(t, 2)
	s.write()
	s.Pods[0].Annotations[v1alpha1.AnnotationGatewayName] = "gw-1"
	st := s.write()
	assert.Equal(t, "True/Synced", condition(st, v1alpha1.ConditionReady))
	require.Len(t, st.DiscoveredGateways, 2)
	assert.Equal(t, "gw-0", st.DiscoveredGateways[0].Name)
	assert.Equal(t, "gw-0-0", st.DiscoveredGateways[0].PodName)
	assert.Equal(t, "its pod asks for the name gw-1, which takes effect when it is recreated", st.DiscoveredGateways[0].Message)
	assert.Empty(t, st.DiscoveredGateways[1].Message)
	assert.Empty(t, s.told())

	s.report(0).Gateway = "gw-1" // the pod was recreated
	assert.Equal(t, "False/DuplicateGateway", condition(s.write(), v1alpha1.ConditionReady))
}

func TestHandWrittenAgentIdentity(t *testing.T) {
	s := newScene(t, 1)
	s.Pods[0].Labels, s.report(0).Gateway = nil, "press"
	st := s.write()
	require.Len(t, st.DiscoveredGateways, 1)
	assert.Equal(t, "press", st.DiscoveredGateways[0].Name)
	assert.Empty(t, st.DiscoveredGateways[0].Message)
}

// The ref moves to B and back to A, while the agent's report of B is delayed: the disk still holds B.
func TestStaleReportOfSameCommit(t *testing.T) {
	s := newScene(t, 1)
	assert.Equal(t, "True/Synced", condition(s.write(), v1alpha1.ConditionReady))
	s.moves(commitB)
	assert.Equal(t, "False/Progressing", condition(s.write(), v1alpha1.ConditionReady))
	s.moves(commitA)
	st := s.write()
	assert.Equal(t, "False/Progressing", condition(st, v1alpha1.ConditionReady))
	assert.Equal(t, "0/1", st.GatewaysReady)
	assert.Equal(t, v1alpha1.GatewayPending, st.DiscoveredGateways[0].SyncStatus)
	s.takes(0)
	assert.Equal(t, "True/Synced", condition(s.write(), v1alpha1.ConditionReady))
}
