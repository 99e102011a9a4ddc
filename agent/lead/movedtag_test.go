package lead

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/test/gitserver"
)

// requests asks for a ref at a commit, as the receiver and the command line do.
func (s *site) requests(ref, commit string) {
	s.t.Helper()
	at := now()
	s.annotate(v1alpha1.AnnotationRequestedRef, ref, v1alpha1.AnnotationRequestedCommit, commit,
		v1alpha1.AnnotationRequestedOver, desiredref.RequestOver(ref, s.sync().Spec.Git.Ref, at), v1alpha1.AnnotationRequestedAt, at)
}

func (s *site) hints() string {
	s.t.Helper()
	at := now()
	s.annotate(v1alpha1.AnnotationRequestedAt, at)
	return at
}

// answered waits until the lead has polled git for a hint, whatever the result.
func (s *site) answered(at string) *v1alpha1.GatewaySync {
	s.t.Helper()
	return s.until("the hint is answered", func(gs *v1alpha1.GatewaySync) bool {
		return gs.Status.Target != nil && gs.Status.Target.RequestedAt == at
	})
}

// aside commits to a branch that no GatewaySync names, so a lead that polls main does not see the commit.
func (s *site) aside(message string, edits ...gitserver.Edit) string {
	s.t.Helper()
	s.Checkout("aside")
	defer s.Checkout("main")
	return s.Commit(message, edits...)
}

// F16: gateways run only the commit that was chosen. A tag that moved since is refused until another request.
func TestRequestForMovedTagIsRefused(t *testing.T) {
	t.Parallel()
	for name, spec := range map[string]func(*v1alpha1.GatewaySync){
		"spec names a branch":   slow,
		"spec names the tag":    func(gs *v1alpha1.GatewaySync) { slow(gs); gs.Spec.Git.Ref = "v1" },
		"polled":                func(*v1alpha1.GatewaySync) {},
		"only tags are allowed": func(gs *v1alpha1.GatewaySync) { slow(gs); gs.Spec.Git.AllowedRefs = []string{"v*"} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, 1, spec)
			s.Tag("v1", s.first)
			c := s.candidate("gw-0")
			s.untilTarget(s.first)
			s.takes("gw-0")
			s.untilReady("True/Synced")
			chosen := s.aside("chosen", gitserver.Write("projects/a/project.json", `{"title": "chosen"}`))
			moved := s.aside("moved", gitserver.Write("projects/a/project.json", `{"title": "moved"}`))
			s.Tag("v2", moved)

			s.requests("v2", chosen)
			gs := s.untilReady("False/RefMoved")
			assert.Equal(t, "True/RefMoved", condition(&gs.Status, v1alpha1.ConditionStalled))
			assert.Contains(t, messageOf(&gs.Status, v1alpha1.ConditionReady), "v2 is at "+moved[:7]+", but was requested at "+chosen[:7])
			assert.Equal(t, s.first, s.target().Commit, "the gateways stay as they are")
			assert.Empty(t, gs.Status.Target.Commit)

			// The tag is back at the requested commit, but neither a poll nor the next lead accepts it.
			s.Tag("v2", chosen)
			s.answered(s.hints())
			c.stop()
			s.candidate("gw-0")
			require.Eventually(t, func() bool { l := s.target().Lead; return l.Holder != "" && l.Transitions == 1 }, tenfold, 20*time.Millisecond)
			gs = s.answered(s.hints())
			assert.Equal(t, "False/RefMoved", condition(&gs.Status, v1alpha1.ConditionReady))
			assert.Equal(t, s.first, s.target().Commit)

			s.requests("v2", chosen)
			s.untilTarget(chosen)
			s.takes("gw-0")
			s.untilReady("True/Synced")
		})
	}
}

// F16: the target keeps the commit while the request is in force.
func TestMovedTagIsNotFollowed(t *testing.T) {
	t.Parallel()
	s := newSite(t, 1)
	s.candidate("gw-0")
	s.untilTarget(s.first)
	chosen := s.aside("chosen", gitserver.Write("projects/a/project.json", `{"title": "chosen"}`))
	s.Tag("v2", chosen)
	s.requests("v2", chosen)
	s.untilTarget(chosen)
	s.takes("gw-0")
	s.untilReady("True/Synced")

	s.Tag("v2", s.first)
	gs := s.until("RefResolved False/RefMoved", func(gs *v1alpha1.GatewaySync) bool {
		return condition(&gs.Status, v1alpha1.ConditionRefResolved) == "False/RefMoved"
	})
	assert.Equal(t, "True/Synced", condition(&gs.Status, v1alpha1.ConditionReady), "the fleet runs what was requested")
	assert.Equal(t, chosen, s.target().Commit)
	assert.Equal(t, chosen, gs.Status.Target.Commit)
	assert.Equal(t, "1/1", gs.Status.GatewaysReady, "the gateways run what was requested")
	s.Tag("v2", chosen)
	s.untilReady("True/Synced")

	// A deleted tag is reported as RefNotFound.
	s.DeleteTag("v2")
	s.untilReady("False/RefNotFound")
	assert.Equal(t, chosen, s.target().Commit)
}

func TestRequestWithShortCommit(t *testing.T) {
	t.Parallel()
	s := newSite(t, 1, slow)
	s.Tag("v2", s.aside("second"))
	s.candidate("gw-0")
	s.untilTarget(s.first)
	s.requests("v2", "8a9ef4f")
	gs := s.untilReady("False/RefNotFound")
	assert.Contains(t, messageOf(&gs.Status, v1alpha1.ConditionReady), v1alpha1.AnnotationRequestedCommit)
	assert.Equal(t, s.first, s.target().Commit)
}

// The ref already runs, but at another commit than the requested one. Starting agents must get the requested commit.
func TestRequestedCommitOfRunningRef(t *testing.T) {
	t.Parallel()
	s := newSite(t, 1, slow)
	s.candidate("gw-0")
	s.untilTarget(s.first)
	chosen := s.Commit("chosen")
	s.Tag("v2", chosen)
	s.annotate(v1alpha1.AnnotationRequestedRef, "v2", v1alpha1.AnnotationRequestedAt, now())
	s.untilTarget(chosen)
	s.takes("gw-0")
	s.untilReady("True/Synced")

	s.requests("v2", s.first)
	gs := s.untilReady("False/RefMoved")
	assert.Equal(t, "0/1", gs.Status.GatewaysReady)
	target := s.target()
	assert.Equal(t, chosen, target.Commit)
	require.NotNil(t, target.Problem)
	assert.Equal(t, v1alpha1.ReasonRefMoved, target.Problem.Reason)
}
