package follow

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/internal/kube"
)

// Without stages, windows, snapshots and the like, a report has none of their fields, and a sync costs two writes of it.
func TestPlainReportHasNoNewFields(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	first := w.commit("one")
	w.gatewaySync(p)
	w.lead(targetCommit(first))
	p.start()
	p.awaitSynced(first, "one")
	reports := w.clients.Dynamic.Resource(kube.SyncReport.Resource()).Namespace(w.ns)
	before, err := reports.Get(t.Context(), p.name, metav1.GetOptions{})
	require.NoError(t, err)
	second := w.commit("two")
	w.lead(targetCommit(second))
	p.awaitSynced(second, "two")
	after, err := reports.Get(t.Context(), p.name, metav1.GetOptions{})
	require.NoError(t, err)
	assert.LessOrEqual(t, after.GetGeneration()-before.GetGeneration(), int64(2), "one write for Syncing, one for Synced")
	status, _ := after.Object["status"].(map[string]any)
	assert.Equal(t, []string{"agentVersion", "commit", "drift", "duration", "files", "format", "gateway", "generation", "message", "phase", "profile", "projects", "reason", "ref",
		"revision", "scan", "started", "syncHistory", "target", "term"}, slices.Sorted(maps.Keys(status)))
}
