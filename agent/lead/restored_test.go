package lead

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/gitserver"
)

func copied(t *testing.T, from, to string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "cp", "-a", from, to).CombinedOutput()
	require.NoError(t, err, string(out))
}

// The backup has Ready for an old commit. The lead has seen resource versions that do not exist any more.
func TestLeadAfterEtcdRestore(t *testing.T) {
	t.Parallel()
	s := newSiteIn(t, kubetest.Control(t, kubetest.Private()), 2)
	agent := s.candidate("gw-0")
	s.takesAll(s.first, "gw-0", "gw-1")
	s.untilReady("True/Synced")

	etcd := filepath.Join(filepath.Dir(s.cluster.Kubeconfig()), "etcd")
	backup := filepath.Join(t.TempDir(), "etcd")
	down := func(do func()) {
		s.cluster.Stop(t, kubetest.APIServer)
		s.cluster.Stop(t, kubetest.Etcd)
		do()
		s.cluster.Start(t, kubetest.Etcd)
		s.cluster.Start(t, kubetest.APIServer)
	}
	down(func() { copied(t, etcd, backup) })
	second := s.Commit("second", gitserver.Write("projects/a/project.json", `{"title":"b"}`))
	s.takesAll(second, "gw-0", "gw-1")
	s.until("the second commit", func(gs *v1alpha1.GatewaySync) bool {
		return gs.Status.LastGood.Commit == second && condition(&gs.Status, v1alpha1.ConditionReady) == "True/Synced"
	})
	for i := range 60 {
		_, err := s.admin.Core.CoreV1().ConfigMaps(s.ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("x", i)}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	s.takes("gw-0", "gw-1")
	s.annotate("example.com/last", "write")
	version := func() int {
		n, err := strconv.Atoi(s.sync().ResourceVersion)
		require.NoError(t, err)
		return n
	}
	at := version()
	down(func() {
		require.NoError(t, os.RemoveAll(etcd))
		copied(t, backup, etcd)
	})
	require.Less(t, version(), at)
	writes := agent.wire.count("PATCH status")

	third := s.Commit("third", gitserver.Write("projects/a/project.json", `{"title":"c"}`))
	s.untilTarget(third)
	s.until("Ready is false", func(gs *v1alpha1.GatewaySync) bool {
		return gs.Status.Target.Commit == third && condition(&gs.Status, v1alpha1.ConditionReady) == "False/Progressing"
	})
	s.takes("gw-0", "gw-1")
	gs := s.untilReady("True/Synced")
	assert.Equal(t, third, gs.Status.LastGood.Commit)
	assert.Less(t, agent.wire.count("PATCH status")-writes, 20, "rejected writes back off")
	assert.Less(t, version(), at, "the resource versions are still older")
}

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
