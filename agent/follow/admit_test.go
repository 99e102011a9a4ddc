package follow

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"stoker.io/stoker/api/v1alpha1"
)

// stranger creates a commit that only a pull request contains, and returns its id.
func (w *world) stranger(title string) string {
	w.t.Helper()
	head := w.repo.Head()
	commit := w.commit(title)
	w.repo.Git("update-ref", "refs/pull/1/head", commit)
	w.repo.Git("update-ref", "refs/heads/main", head)
	return commit
}

// C14: any token of the namespace can write the SyncTarget. The agent runs only what the spec, requests and git confirm.
func TestFollowerRefusesTarget(t *testing.T) {
	for name, c := range map[string]struct {
		request string                                           // requested-ref
		target  func(s *v1alpha1.SyncTargetSpec, strange string) // changes beside the commit
		reason  v1alpha1.Reason                                  // reported reason; "" if the agent only logs
		says    string
	}{
		"a commit that the ref does not have": {reason: v1alpha1.ReasonRefNotAllowed, says: "is not in the history of refs/heads/main",
			target: func(s *v1alpha1.SyncTargetSpec, _ string) { s.RefName = "refs/pull/1/head" }},
		"a ref that is not requested": {says: "neither spec.git.ref nor a request",
			target: func(s *v1alpha1.SyncTargetSpec, _ string) { s.Ref = "refs/pull/1/head" }},
		"a commit that is not requested": {says: "neither spec.git.ref nor a request",
			target: func(s *v1alpha1.SyncTargetSpec, strange string) { s.Ref, s.RefName = strange, "" }},
		"a requested ref that is not allowed": {request: "refs/pull/1/head", reason: v1alpha1.ReasonRefNotAllowed, says: "allowedRefs of the spec admits v*",
			target: func(s *v1alpha1.SyncTargetSpec, _ string) { s.Ref = "refs/pull/1/head" }},
		"a requested commit that is not allowed": {request: "commit", reason: v1alpha1.ReasonRefNotAllowed, says: "allowedRefs of the spec admits v*",
			target: func(s *v1alpha1.SyncTargetSpec, strange string) { s.Ref, s.RefName = strange, "" }},
		"a commit other than the requested one": {request: "first", reason: v1alpha1.ReasonRefNotAllowed, says: "the SyncTarget says commit",
			target: func(s *v1alpha1.SyncTargetSpec, _ string) { s.RefName = "" }},
		"other requests than those of the annotations": {says: "made from other requests",
			target: func(s *v1alpha1.SyncTargetSpec, _ string) { s.Requests = strings.Repeat("0", 64) }},
		"no requests": {says: "made from other requests",
			target: func(s *v1alpha1.SyncTargetSpec, _ string) { s.Requests = "" }},
	} {
		t.Run(name, func(t *testing.T) {
			w := onSharedCluster(t)
			p := w.pod("line-0")
			first := w.commit("one")
			w.repo.Git("tag", "v1", first)
			w.gatewaySync(p, func(gs *v1alpha1.GatewaySync) { gs.Spec.Git.AllowedRefs = []string{"v*"} })
			w.lead(targetCommit(first))
			p.start()
			p.awaitSynced(first, "one")
			strange := w.stranger("stranger")
			request := map[string]string{"commit": strange, "first": first}[c.request]
			if request == "" {
				request = c.request
			}
			w.annotate(v1alpha1.AnnotationRequestedRef, request)
			w.lead(targetCommit(strange), func(s *v1alpha1.SyncTargetSpec) {
				if c.request == "first" {
					s.Ref = first
				}
				c.target(s, strange)
			})
			if c.reason != "" {
				s := p.await("refused", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == c.reason })
				assert.Contains(t, s.Message, c.says)
			}
			eventually(t, "the agent logs the rejection", func() bool { return strings.Contains(p.agent.log.String(), c.says) })
			assert.Equal(t, "one", p.title())
			assert.Equal(t, first, p.report().Status.Commit)
			second := w.commit("two")
			w.annotate(v1alpha1.AnnotationRequestedRef, "")
			w.lead(targetCommit(second), func(s *v1alpha1.SyncTargetSpec) {
				s.Ref, s.RefName = "main", "refs/heads/main"
			})
			p.awaitSynced(second, "two")
		})
	}
}

// C14: the agent runs a target that the spec or a request confirms, also a commit that its branch has passed.
// It does not read a confirmed spec again.
func TestFollowerAdmitsTarget(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	first := w.commit("one")
	w.gatewaySync(p, func(gs *v1alpha1.GatewaySync) { gs.Spec.Git.AllowedRefs = []string{"v*"} })
	second := w.commit("two")
	third := w.commit("three")
	w.repo.Git("tag", "v3", third)
	w.lead(targetCommit(second))
	p.start()
	p.awaitSynced(second, "two")

	w.annotate(v1alpha1.AnnotationRequestedRef, "v3")
	w.lead(targetCommit(third), func(s *v1alpha1.SyncTargetSpec) { s.Ref, s.RefName = "v3", "refs/tags/v3" })
	p.awaitSynced(third, "three")

	w.annotate(v1alpha1.AnnotationRequestedRef, first)
	w.lead(targetCommit(first), func(s *v1alpha1.SyncTargetSpec) { s.Ref, s.RefName = first, "" })
	p.awaitSynced(first, "one")

	read := p.agent.traffic.count("GET gatewaysyncs")
	asked := w.git.Stats().Requests
	w.lead(func(s *v1alpha1.SyncTargetSpec) { s.RequestedAt = "again" })
	p.await("the echo", func(s v1alpha1.SyncReportStatus) bool { return s.HandledRequest == "again" })
	assert.Equal(t, read, p.agent.traffic.count("GET gatewaysyncs"), "the agent does not read the spec again")
	assert.Equal(t, asked, w.git.Stats().Requests)
}

// C14: templates can use the ref, so the agent follows no other ref to the commit on the disk either.
func TestForgedRefOfCommitOnDisk(t *testing.T) {
	w := onSharedCluster(t)
	p, first := w.syncedPod("one")
	w.lead(func(s *v1alpha1.SyncTargetSpec) { s.Ref = "refs/pull/1/head" })
	eventually(t, "the agent logs the rejection", func() bool { return strings.Contains(p.agent.log.String(), "neither spec.git.ref nor a request") })
	w.lead(func(s *v1alpha1.SyncTargetSpec) { s.Ref = "" })
	s := p.await("an invalid target", func(s v1alpha1.SyncReportStatus) bool {
		return strings.Contains(s.Message, "spec.ref: the commit has none")
	})
	assert.Equal(t, "main", s.Ref)
	w.lead(func(s *v1alpha1.SyncTargetSpec) { s.Ref = "main" })
	p.awaitSynced(first, "one")
}

// C14, F16: the agent does not run a tag that moved since it was chosen, whatever the target says.
func TestRequestedCommit(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	first := w.commit("one")
	chosen := w.commit("chosen")
	w.gatewaySync(p)
	w.lead(targetCommit(first))
	p.start()
	p.awaitSynced(first, "one")
	moved := w.commit("moved")
	w.repo.Git("tag", "v2", moved)
	w.annotate(v1alpha1.AnnotationRequestedRef, "v2")
	w.annotate(v1alpha1.AnnotationRequestedCommit, chosen)
	w.lead(targetCommit(moved), func(s *v1alpha1.SyncTargetSpec) { s.Ref, s.RefName = "v2", "refs/tags/v2" })
	eventually(t, "the agent logs the rejection", func() bool { return strings.Contains(p.agent.log.String(), "which is requested at "+chosen) })
	assert.Equal(t, "one", p.title())

	w.repo.Git("tag", "--force", "v2", chosen)
	w.lead(targetCommit(chosen))
	p.awaitSynced(chosen, "chosen")
	w.lead(targetCommit(moved))
	eventually(t, "the agent logs the second rejection", func() bool { return strings.Count(p.agent.log.String(), "SyncTarget not followed") == 2 })
	assert.Equal(t, "chosen", p.title())
}

// A rejected request leaves the gateways at their commit, even if their agents restart.
func TestRefusedRequestKeepsEarlierOne(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	w.commit("one")
	second := w.commit("two")
	w.repo.Git("tag", "v2", second)
	w.commit("three")
	gs := w.gatewaySync(p)
	w.annotate(v1alpha1.AnnotationRequestedRef, "v2")
	w.lead(targetCommit(second), func(s *v1alpha1.SyncTargetSpec) { s.Ref, s.RefName = "v2", "refs/tags/v2" })
	a := p.start()
	p.awaitSynced(second, "two")

	w.annotate(v1alpha1.AnnotationRequestedRef, "v3")
	w.lead(problemOf(gs.Generation, v1alpha1.ReasonRefMoved, "v3 has moved"))
	a.end()
	p.start()
	w.lead(func(s *v1alpha1.SyncTargetSpec) { s.RequestedAt = "again" })
	s := p.await("the echo", func(s v1alpha1.SyncReportStatus) bool { return s.HandledRequest == "again" })
	assert.Equal(t, v1alpha1.GatewaySynced, s.Phase, s.Message)

	// A pod that never ran v2 may not run it now, and reports what an operator must do.
	fresh := w.pod("line-1")
	fresh.start()
	s = fresh.await("the agent waits for an operator", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonRefMoved })
	assert.Equal(t, "v3 has moved", s.Message)
}

// The git server that a follower reaches may lag behind the one that the lead polled. This is not a failure.
func TestLaggingGitServer(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	first := w.commit("one")
	w.gatewaySync(p)
	w.lead(targetCommit(first))
	p.start()
	p.awaitSynced(first, "one")
	second := w.commit("two")
	w.annotate(v1alpha1.AnnotationRequestedRef, "v2")
	w.lead(targetCommit(second), func(s *v1alpha1.SyncTargetSpec) { s.Ref, s.RefName = "v2", "refs/tags/v2" })
	s := p.await("the agent waits for the lead", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonWaitingForLead })
	assert.Equal(t, v1alpha1.GatewayPending, s.Phase)
	assert.Contains(t, s.Message, "retrying")
	w.repo.Git("tag", "v2", second)
	p.awaitSynced(second, "two")
	assert.NotContains(t, p.agent.log.String(), "reason=RefNotFound")
}
