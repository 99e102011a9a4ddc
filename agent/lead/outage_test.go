package lead

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/test/gitserver"
)

func TestWrongSecretThenFixed(t *testing.T) {
	t.Parallel()
	s := newSite(t, 1)
	s.git.SetAuth(gitserver.Token("S3CR3T-right"))
	url := s.git.URL("site.git")
	token.Store(url, "S3CR3T-wrong")
	s.candidate("gw-0")
	gs := s.untilReady("False/AuthFailed")
	assert.Equal(t, "True/AuthFailed", condition(&gs.Status, v1alpha1.ConditionStalled))
	require.Eventually(t, func() bool { return s.events()["g:site:RefResolutionFailed"] == 1 }, tenfold, 50*time.Millisecond)
	for _, e := range s.eventList() {
		if e.Reason == v1alpha1.EventRefResolutionFailed {
			assert.Contains(t, e.Note, "AuthFailed")
			assert.Equal(t, corev1.EventTypeWarning, e.Type)
			assert.NotContains(t, e.Note, "S3CR3T")
		}
	}
	told := s.target()
	require.NotNil(t, told.Problem, "the target tells agents that a user must act")
	assert.Equal(t, v1alpha1.ReasonAuthFailed, told.Problem.Reason)
	assert.EqualValues(t, 1, told.Problem.Generation)
	assert.NotContains(t, told.Problem.Message, "S3CR3T")
	assert.EqualValues(t, 1, told.Generation, "the target names the generation of the spec")
	assert.Equal(t, "main", told.Ref)
	assert.Empty(t, told.Commit)

	token.Store(url, "S3CR3T-right")
	s.annotate(v1alpha1.AnnotationRequestedAt, now())
	after := s.untilTarget(s.first)
	assert.Nil(t, after.Problem)
	assert.Equal(t, told.Revision+1, after.Revision)
	s.takes("gw-0")
	s.untilReady("True/Synced")
}

func TestSpecDuringGitOutage(t *testing.T) {
	t.Parallel()
	s := newSite(t, 1, slow)
	s.git.Inject(gitserver.Status(503))
	s.candidate("gw-0")
	s.untilReady("False/GitUnreachable")
	told := s.untilTarget("")
	assert.Equal(t, "main", told.Ref)
	assert.EqualValues(t, 1, told.Generation)
	assert.Nil(t, told.Problem, "a transient error is not a problem of the target")
	at := now()
	s.annotate(v1alpha1.AnnotationRequestedAt, at) // before healing, so that an automatic retry sees the request
	s.git.Heal()
	s.untilTarget(s.first)
	require.Eventually(t, func() bool { return s.target().RequestedAt == at }, tenfold, 20*time.Millisecond)
	first := s.target()
	s.takes("gw-0")
	s.untilReady("True/Synced")

	s.patch(map[string]any{"spec": map[string]any{"git": map[string]any{"ref": "release"}}})
	s.untilReady("False/RefNotFound")
	require.Eventually(t, func() bool { return s.target().Problem != nil }, tenfold, 20*time.Millisecond)
	told = s.target()
	assert.EqualValues(t, 2, told.Problem.Generation)
	told.Problem, told.Lead, first.Lead = nil, v1alpha1.LeadRecord{}, v1alpha1.LeadRecord{}
	assert.Equal(t, first, told, "gateways keep the commit that they run")
}

func TestPauseReachesAgents(t *testing.T) {
	t.Parallel()
	s := newSite(t, 1, slow)
	s.candidate("gw-0")
	s.untilTarget(s.first)
	s.git.Inject(gitserver.Status(503))
	s.annotate(v1alpha1.AnnotationPaused, "true", v1alpha1.AnnotationForceSync, "now", v1alpha1.AnnotationRequestedAt, now())
	require.Eventually(t, func() bool { t := s.target(); return t.Paused && t.Requests == annotation.Hash(s.sync()) }, tenfold, 20*time.Millisecond, "a pause does not need git")
	s.until("Ready reports the pause", func(gs *v1alpha1.GatewaySync) bool {
		return condition(&gs.Status, v1alpha1.ConditionReady) == "False/Paused" && condition(&gs.Status, v1alpha1.ConditionRefResolved) == "False/GitUnreachable"
	})
}

func TestNewSpecDuringGitOutage(t *testing.T) {
	t.Parallel()
	s := newSite(t, 1)
	s.candidate("gw-0")
	s.untilTarget(s.first)
	s.takes("gw-0")
	s.git.Inject(gitserver.Status(503))
	s.patch(map[string]any{"spec": map[string]any{"sync": map[string]any{"defaults": map[string]any{"syncPeriod": 60}}}})
	assert.EqualValues(t, 2, s.untilTarget(s.first).Generation)
	s.until("RefResolved is GitUnreachable", func(gs *v1alpha1.GatewaySync) bool {
		return condition(&gs.Status, v1alpha1.ConditionRefResolved) == "False/GitUnreachable"
	})
	s.takes("gw-0")
	s.untilReady("True/Synced")
	s.patch(map[string]any{"spec": map[string]any{"git": map[string]any{"ref": "release"}}})
	s.until("Ready is GitUnreachable at generation 3", func(gs *v1alpha1.GatewaySync) bool {
		return condition(&gs.Status, v1alpha1.ConditionReady) == "False/GitUnreachable" && gs.Status.ObservedGeneration == 3
	})
	assert.EqualValues(t, 2, s.target().Generation, "the target gets the generation with its commit")
}
