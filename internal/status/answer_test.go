package status

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
)

// A request is answered although git never resolved a ref, so that callers learn why.
func TestRequestBeforeFirstCommit(t *testing.T) {
	s := newScene(t, 1)
	s.Target = v1alpha1.SyncTargetSpec{Format: v1alpha1.TargetFormat}
	s.Ref = Ref{Polled: true, Desired: desiredref.Desired{Ref: "main"}, Err: v1alpha1.NewError(v1alpha1.ReasonGitUnreachable, "no route to host")}
	s.GatewaySync.Annotations = map[string]string{v1alpha1.AnnotationRequestedAt: "t1", v1alpha1.AnnotationForceSync: "now"}
	st := s.write()
	assert.Equal(t, desiredref.Key(s.GatewaySync), st.ObservedRequest)
	require.NotNil(t, st.Outcome)
	assert.Contains(t, st.Outcome.Message, "no route to host")
}
