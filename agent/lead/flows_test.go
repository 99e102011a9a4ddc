package lead

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/test/gitserver"
)

// slow makes the lead poll git once an hour, so that a test decides when it polls.
func slow(gs *v1alpha1.GatewaySync) { gs.Spec.Polling.Interval = "1h" }

// now returns the time as requests write it.
func now() string { return time.Now().UTC().Format(time.RFC3339Nano) }

func TestFollowBranch(t *testing.T) {
	s := newSite(t, 1)
	s.synced("gw-0")
	second := s.Commit("second")
	s.takesAll(second, "gw-0")
	s.until("the second one runs", func(gs *v1alpha1.GatewaySync) bool {
		return condition(&gs.Status, v1alpha1.ConditionReady) == "True/Synced" && gs.Status.Target.Commit == second
	})

	s.Branch("spare", second)
	s.DeleteBranch("main")
	gs := s.untilReady("False/RefNotFound")
	assert.Equal(t, "False/RefNotFound", condition(&gs.Status, v1alpha1.ConditionRefResolved))
	assert.Equal(t, "True/RefNotFound", condition(&gs.Status, v1alpha1.ConditionStalled))
	assert.Equal(t, second, s.target().Commit, "the gateways stay as they are")

	s.Branch("main", second)
	s.untilReady("True/Synced")
	s.Tag("main", s.first)
	gs = s.untilReady("False/AmbiguousRef")
	assert.Contains(t, messageOf(&gs.Status, v1alpha1.ConditionReady), "refs/heads/main or refs/tags/main")
	assert.Equal(t, second, s.target().Commit)
	require.Eventually(t, func() bool {
		e := s.events()
		return e["g:site:RefResolved"] == 2 && e["g:site:RefUpdated"] == 1 && e["g:site:RefResolutionFailed"] == 2
	}, tenfold, 50*time.Millisecond, "%v", s.events())
}

func TestRequestOverridesSpec(t *testing.T) {
	s := newSite(t, 1, slow)
	c := s.candidate("gw-0")
	s.untilTarget(s.first)
	s.Tag("v2", s.Commit("second"))
	v2 := s.Head()

	at := now()
	s.annotate(v1alpha1.AnnotationRequestedRef, "v2", v1alpha1.AnnotationRequestedOver, desiredref.RequestOver("v2", "main", at),
		v1alpha1.AnnotationRequestedAt, at, v1alpha1.AnnotationRequestedBy, "kargo")
	target := s.untilTarget(v2)
	assert.Equal(t, "v2", target.Ref)
	assert.Equal(t, "refs/tags/v2", target.RefName)
	assert.Equal(t, at, target.RequestedAt)
	s.takes("gw-0")
	gs := s.until("the request is handled", func(gs *v1alpha1.GatewaySync) bool { return gs.Status.LastHandledRequest == at })
	assert.Equal(t, &v1alpha1.TargetStatus{Ref: "v2", RefShort: "v2", Commit: v2, CommitShort: v2[:7], RequestedBy: "kargo", RequestedAt: at}, gs.Status.Target)

	// The spec names another ref: the request lapses and stays lapsed when the spec returns.
	s.Branch("release", s.first)
	s.patch(map[string]any{"spec": map[string]any{"git": map[string]any{"ref": "release"}}})
	assert.Equal(t, "release", s.untilTarget(s.first).Ref)
	s.until("the request has lapsed", func(gs *v1alpha1.GatewaySync) bool {
		return gs.Status.Request != nil && strings.HasPrefix(gs.Status.Request.Lapsed, "v2@main")
	})
	s.patch(map[string]any{"spec": map[string]any{"git": map[string]any{"ref": "main"}}})
	assert.Equal(t, "main", s.untilTarget(v2).Ref)

	t.Run("next lead", func(t *testing.T) {
		c.stop()
		s.candidate("gw-0")
		require.Eventually(t, func() bool { l := s.target().Lead; return l.Holder != "" && l.Transitions == 1 }, tenfold, 20*time.Millisecond)
		time.Sleep(time.Second)
		assert.Equal(t, "main", s.target().Ref)
	})
}

func TestAllowedRefsOfRequests(t *testing.T) {
	s := newSite(t, 1, slow, func(gs *v1alpha1.GatewaySync) { gs.Spec.Git.AllowedRefs = []string{"main", "refs/tags/v*"} })
	s.candidate("gw-0")
	s.untilTarget(s.first)
	second := s.Commit("second")
	s.Tag("v1", second)
	s.Checkout("fork")
	foreign := s.Orphan("foreign", gitserver.Write("a", "b"))
	s.Git("update-ref", "refs/pull/1/head", foreign)
	s.Checkout("main")
	for i, c := range []struct {
		name, ref, want string
	}{
		{"allowed tag", "v1", second},
		{"other branch", "fork", ""},
		{"commit of the branch", s.first, s.first},
		{"commit of a pull request", foreign, ""},
		{"full name of an allowed tag", "refs/tags/v1", second},
		{"ref of a pull request", "refs/pull/1/head", ""},
		{"unknown commit", "1234567890123456789012345678901234567890", ""},
		{"commit of an allowed tag", second, second},
		{"allowed branch", "main", second},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := s.target().Commit
			at := fmt.Sprint(now(), i)
			s.annotate(v1alpha1.AnnotationRequestedRef, c.ref, v1alpha1.AnnotationRequestedOver, desiredref.RequestOver(c.ref, "main", at), v1alpha1.AnnotationRequestedAt, at)
			if c.want != "" {
				s.until("the request for "+c.ref+" is handled", func(gs *v1alpha1.GatewaySync) bool {
					return gs.Status.Target.RequestedAt == at && gs.Status.Target.Commit == c.want
				})
				assert.Equal(t, c.want, s.target().Commit, c.ref)
				return
			}
			gs := s.until("the request for "+c.ref+" is refused", func(gs *v1alpha1.GatewaySync) bool {
				return gs.Status.Target.RequestedAt == at && condition(&gs.Status, v1alpha1.ConditionReady) == "False/RefNotAllowed"
			})
			assert.Contains(t, messageOf(&gs.Status, v1alpha1.ConditionReady), "allowedRefs", c.ref)
			assert.Equal(t, before, s.target().Commit, c.ref)
		})
	}
}

// The admission policy accepts only branches and tags as spec.refName, so the target of another ref has none.
func TestTargetRefName(t *testing.T) {
	s := newSite(t, 1)
	s.Git("update-ref", "refs/changes/1/head", s.first)
	s.patch(map[string]any{"spec": map[string]any{"git": map[string]any{"ref": "refs/changes/1/head"}}})
	s.candidate("gw-0")
	target := s.untilTarget(s.first)
	assert.Equal(t, "refs/changes/1/head", target.Ref)
	assert.Empty(t, target.RefName)
}

func TestCommitRefNeedsNoGit(t *testing.T) {
	s := newSite(t, 1)
	s.patch(map[string]any{"spec": map[string]any{"git": map[string]any{"ref": s.first}}})
	s.candidate("gw-0")
	target := s.untilTarget(s.first)
	assert.Empty(t, target.RefName)
	at := now()
	s.annotate(v1alpha1.AnnotationRequestedAt, at)
	require.Eventually(t, func() bool { return s.target().RequestedAt == at }, tenfold, 20*time.Millisecond)
	time.Sleep(3 * time.Second)
	assert.Empty(t, s.git.Requests())
}

func TestRevisionAfterTargetDeletion(t *testing.T) {
	s := newSite(t, 1, slow)
	c := s.candidate("gw-0")
	s.untilTarget(s.first)
	second := s.Commit("second")
	s.annotate(v1alpha1.AnnotationRequestedAt, now())
	s.runs(second, "gw-0")
	before := s.target().Revision
	c.stop()
	s.deleteTarget()
	s.candidate("gw-0")
	assert.Greater(t, s.untilTarget(second).Revision, before)
	s.untilReady("False/Progressing")
	s.takes("gw-0")
	s.untilReady("True/Synced")
}

func TestPodsWithoutAgent(t *testing.T) {
	s := newSite(t, 1, slow)
	s.candidate("gw-0")
	s.gateway("bare", func(p *corev1.Pod) { p.Labels, p.Spec.InitContainers = nil, nil })
	s.gateway("stranger", func(p *corev1.Pod) { p.Labels, p.Annotations = map[string]string{"app": "x"}, nil })
	gs := s.until("the pod without an agent is seen", func(gs *v1alpha1.GatewaySync) bool {
		return condition(&gs.Status, v1alpha1.ConditionSidecarInjected) == "False/MissingSidecar"
	})
	assert.Equal(t, "0/2", gs.Status.GatewaysReady)
	require.NoError(t, s.admin.Core.CoreV1().Pods(s.ns).Delete(t.Context(), "bare", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	s.until("the pod without an agent is gone", func(gs *v1alpha1.GatewaySync) bool {
		return gs.Status.GatewaysReady == "0/1" && condition(&gs.Status, v1alpha1.ConditionSidecarInjected) == "True/SidecarInjected"
	})
}

func TestPodStuck(t *testing.T) {
	waits := func(reason string) []corev1.ContainerStatus {
		return []corev1.ContainerStatus{{Name: "gateway", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}}
	}
	for _, c := range []struct {
		about  string
		status corev1.PodStatus
		want   string
	}{
		{"running", corev1.PodStatus{Phase: corev1.PodRunning}, ""},
		{"starting", corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: waits("PodInitializing")}, ""},
		{"no image", corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: waits("ImagePullBackOff")}, "the image of container gateway cannot be pulled"},
	} {
		t.Run(c.about, func(t *testing.T) {
			kept, err := stripped(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "gw-0", Labels: map[string]string{v1alpha1.LabelCRName: "site"}}, Status: c.status})
			require.NoError(t, err)
			assert.Equal(t, c.want, podOf(kept.(*corev1.Pod)).Stuck)
		})
	}
}

// requests asks for a ref at a commit, as the receiver and the command line do.
func (s *site) requests(ref, commit string) {
	s.t.Helper()
	at := now()
	s.annotate(v1alpha1.AnnotationRequestedRef, ref, v1alpha1.AnnotationRequestedCommit, commit,
		v1alpha1.AnnotationRequestedOver, desiredref.RequestOver(ref, s.sync().Spec.Git.Ref, at), v1alpha1.AnnotationRequestedAt, at)
}

// hints asks for a poll of git, without a ref, and returns the time of the request.
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
			s := newSite(t, 1, spec)
			s.Tag("v1", s.first)
			c := s.synced("gw-0")
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
			s.takesAll(chosen, "gw-0")
			s.untilReady("True/Synced")
		})
	}
}

// F16: the target keeps the commit while the request is in force.
func TestMovedTagIsNotFollowed(t *testing.T) {
	s := newSite(t, 1)
	s.candidate("gw-0")
	s.untilTarget(s.first)
	chosen := s.aside("chosen", gitserver.Write("projects/a/project.json", `{"title": "chosen"}`))
	s.Tag("v2", chosen)
	s.requests("v2", chosen)
	s.takesAll(chosen, "gw-0")
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
	s := newSite(t, 1, slow)
	s.Tag("v2", s.aside("second"))
	s.candidate("gw-0")
	s.untilTarget(s.first)
	s.requests("v2", "8a9ef4f")
	gs := s.untilReady("False/RefNotFound")
	assert.Contains(t, messageOf(&gs.Status, v1alpha1.ConditionReady), v1alpha1.AnnotationRequestedCommit)
	assert.Equal(t, s.first, s.target().Commit)
}

// The ref already runs, but at another commit than the requested one. The target keeps that commit, and has the problem RefMoved.
func TestRequestedCommitOfRunningRef(t *testing.T) {
	s := newSite(t, 1, slow)
	s.candidate("gw-0")
	s.untilTarget(s.first)
	chosen := s.Commit("chosen")
	s.Tag("v2", chosen)
	s.annotate(v1alpha1.AnnotationRequestedRef, "v2", v1alpha1.AnnotationRequestedAt, now())
	s.takesAll(chosen, "gw-0")
	s.untilReady("True/Synced")

	s.requests("v2", s.first)
	gs := s.untilReady("False/RefMoved")
	assert.Equal(t, "0/1", gs.Status.GatewaysReady)
	target := s.target()
	assert.Equal(t, chosen, target.Commit)
	require.NotNil(t, target.Problem)
	assert.Equal(t, v1alpha1.ReasonRefMoved, target.Problem.Reason)
}
