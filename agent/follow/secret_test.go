package follow

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/gitserver"
)

// The kubelet adds no key to a running pod that was created without it. The agent reports this, and another agent leads.
func TestMissingSecretKeyYieldsLead(t *testing.T) {
	w := onSharedCluster(t)
	old := w.pod("line-0")
	first := w.commit("one")
	w.gatewaySync(old, func(gs *v1alpha1.GatewaySync) { gs.Spec.Polling.Interval = "5s" })
	a := old.run(w.cluster.Kubeconfig())
	old.awaitSynced(first, "one")
	holder := func() string {
		target, err := kube.SyncTargets(w.clients.Dynamic, w.ns).Get(t.Context(), crName)
		require.NoError(t, err)
		return target.Spec.Lead.Holder
	}
	require.True(t, strings.HasPrefix(holder(), "line-0_"), holder())

	gs := w.edit(func(gs *v1alpha1.GatewaySync) { gs.Spec.Git.Auth.Token.SecretRef.Key = "token-2" })
	old.writeSecretFile("git", "token-2", "S3CR3T-git") // a real pod would not even get the file
	// The lead first reports the missing key, then yields to pods that were created later.
	eventually(t, "the lead reports the missing key", func() bool {
		gs, err := kube.GatewaySyncs(w.clients.Dynamic, w.ns).Get(t.Context(), crName)
		if err != nil {
			return false
		}
		c := meta.FindStatusCondition(gs.Status.Conditions, v1alpha1.ConditionRefResolved)
		return c != nil && c.ObservedGeneration == gs.Generation && c.Reason == string(v1alpha1.ReasonPodRestartNeeded)
	})
	young := w.pod("line-1")
	young.writeSecretFile("git", "token-2", "S3CR3T-git")
	young.run(w.cluster.Kubeconfig())
	s := old.await("the agent reports the missing key", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonPodRestartNeeded })
	assert.Contains(t, s.Message, "spec.git.auth.token names key token-2 of Secret git")
	eventually(t, "another agent leads", func() bool { return strings.HasPrefix(holder(), "line-1_") }, holder)
	second := w.commit("two")
	young.await("the agent with the key follows", func(s v1alpha1.SyncReportStatus) bool { return s.Target == second && s.Generation == gs.Generation })
	assert.Equal(t, "one", old.title(), "the gateway without the key keeps its commit")
	assert.Less(t, a.stop(), grace)
}

// A rejected credential is retried once a minute. If the kubelet updates it, lead and agent retry at once.
func TestFixedCredential(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	first := w.commit("one")
	w.git.SetAuth(gitserver.Basic("git", "S3CR3T-git"))
	p.mountSecret("git", "token", "S3CR3T-wrong")
	w.gatewaySync(p, func(gs *v1alpha1.GatewaySync) { gs.Spec.Polling.Interval = "1h" })
	p.run(w.cluster.Kubeconfig())
	refused := func(gs *v1alpha1.GatewaySync) bool {
		c := meta.FindStatusCondition(gs.Status.Conditions, v1alpha1.ConditionRefResolved)
		return c != nil && c.Reason == string(v1alpha1.ReasonAuthFailed)
	}
	eventually(t, "the lead reports AuthFailed", func() bool {
		gs, err := kube.GatewaySyncs(w.clients.Dynamic, w.ns).Get(t.Context(), crName)
		return err == nil && refused(gs)
	}, func() string { return "" })
	p.mountSecret("git", "token", "S3CR3T-git")
	p.awaitSynced(first, "one")
}

func TestFixedCredentialWithoutLead(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	first := w.commit("one")
	w.git.SetAuth(gitserver.Basic("git", "S3CR3T-git"))
	p.mountSecret("git", "token", "S3CR3T-wrong")
	hour := int32(3600)
	gs := w.gatewaySync(p, func(gs *v1alpha1.GatewaySync) { gs.Spec.Sync.Defaults.SyncPeriod = &hour })
	w.lead(func(s *v1alpha1.SyncTargetSpec) { s.Generation, s.Commit = gs.Generation, first })
	p.start(func(c *Config) { c.SecretFiles = []string{filepath.Join(p.dir, "secrets", "git", "..data")} })
	p.await("the agent reports AuthFailed", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonAuthFailed })
	p.mountSecret("git", "token", "S3CR3T-git")
	p.awaitSynced(first, "one")
}
