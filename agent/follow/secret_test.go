package follow

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
)

// The kubelet brings no key into a pod that the pod was not made with: its agent says so, and another one leads.
func TestAnAgentWithoutTheKeyThatTheSpecNamesNowReportsItAndLetsAnotherLead(t *testing.T) {
	w := shared(t)
	old := w.pod("line-0")
	first := w.commit("one")
	w.gatewaySync(old, func(gs *v1alpha1.GatewaySync) { gs.Spec.Polling.Interval = "5s" })
	a := old.run(w.cluster.Kubeconfig())
	old.synced(first, "one")
	holder := func() string {
		target, err := kube.SyncTargets(w.clients.Dynamic, w.ns).Get(t.Context(), crName)
		require.NoError(t, err)
		return target.Spec.Lead.Holder
	}
	require.True(t, strings.HasPrefix(holder(), "line-0_"), holder())

	gs := w.edit(func(gs *v1alpha1.GatewaySync) { gs.Spec.Git.Auth.Token.SecretRef.Key = "token-2" })
	old.secret("git", "token-2", "S3CR3T-git") // in a real pod it would not even come
	young := w.pod("line-1")
	young.secret("git", "token-2", "S3CR3T-git")
	young.run(w.cluster.Kubeconfig())
	s := old.await("it is reported", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonPodRestartNeeded })
	assert.Contains(t, s.Message, "spec.git.auth.token names key token-2 of Secret git")
	eventually(t, "another agent leads", func() bool { return strings.HasPrefix(holder(), "line-1_") }, holder)
	second := w.commit("two")
	young.await("it goes on with the key", func(s v1alpha1.SyncReportStatus) bool { return s.Target == second && s.Generation == gs.Generation })
	assert.Equal(t, "one", old.title(), "a gateway whose agent lacks the key stays as it is")
	assert.Less(t, a.stop(), grace)
}
