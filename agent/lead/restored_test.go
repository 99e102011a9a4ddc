package lead

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
