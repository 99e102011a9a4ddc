package follow

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/internal/kube"
)

// A snapshot is reported, restored on request, and held until another commit is the target.
func TestFollowerRestore(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	first := w.commit("one")
	w.gatewaySync(p, func(gs *v1alpha1.GatewaySync) { gs.Spec.Snapshots = &v1alpha1.SnapshotsSpec{Enabled: true} })
	w.lead(targetCommit(first))
	p.start()
	p.awaitSynced(first, "one")
	assert.Nil(t, p.report().Status.LastSnapshot)
	second := w.commit("two")
	w.lead(targetCommit(second))
	p.awaitSynced(second, "two")
	s := p.await("a snapshot", func(s v1alpha1.SyncReportStatus) bool { return s.LastSnapshot != nil })
	require.Equal(t, s.LastSnapshot.ID, annotation.RestoresOn(s.LastSnapshot.ID, "line-0"))
	assert.NotEmpty(t, s.LastSnapshot.Size)

	value := annotation.RestoreValue(s.LastSnapshot.ID, time.Now())
	w.annotate(v1alpha1.AnnotationRestore, value)
	w.lead(targetCommit(second))
	s = p.await("back", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonRestored })
	assert.Equal(t, "one", p.title())
	assert.Equal(t, first, s.Commit)
	assert.Equal(t, second, s.Target)
	assert.Equal(t, v1alpha1.GatewayHeld, s.Phase)
	require.NoError(t, testutil.GatherAndCompare(p.agent.reg, strings.NewReader(`# HELP stoker_rollback_triggered_total Rollbacks: by a request for the whole fleet, which its lead counts, by a rollout for the gateways that it reached, by a snapshot of the gateway on request, or auto by the gateway itself.
# TYPE stoker_rollback_triggered_total counter
stoker_rollback_triggered_total{by="auto"} 0
stoker_rollback_triggered_total{by="request"} 0
stoker_rollback_triggered_total{by="rollout"} 0
stoker_rollback_triggered_total{by="snapshot"} 1
`), "stoker_rollback_triggered_total"))

	third := w.commit("three")
	w.lead(targetCommit(third))
	p.awaitSynced(third, "three")
}

// F21: the history of a gateway is in its report, and outlives the pod. The agent does not trust the record that it comes from.
func TestReportedHistory(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	first := w.commit("one")
	w.gatewaySync(p, func(gs *v1alpha1.GatewaySync) { gs.Spec.Snapshots = &v1alpha1.SnapshotsSpec{Enabled: true} })
	w.lead(targetCommit(first))
	p.start()
	p.awaitSynced(first, "one")
	second := w.commit("two")
	w.lead(targetCommit(second))
	p.awaitSynced(second, "two")
	s := p.await("both syncs", func(s v1alpha1.SyncReportStatus) bool { return len(s.SyncHistory) == 2 })
	is := s.SyncHistory[0]
	assert.Equal(t, second, is.Commit)
	assert.Equal(t, s.LastSnapshot.ID, is.SnapshotID)
	assert.Equal(t, v1alpha1.ReasonSynced, is.Result)
	assert.Positive(t, is.FilesChanged)
	assert.NotEmpty(t, is.Duration)
	assert.False(t, is.Timestamp.IsZero())
	assert.Empty(t, s.SyncHistory[1].SnapshotID, "the first sync has no snapshot")
	p.agent.end()

	record := filepath.Join(p.data, ".stoker", "audit.jsonl")
	raw, err := os.ReadFile(record)
	require.NoError(t, err)
	hostile := `{"schema":1,"gateway":"line-0","time":"0001-01-01T00:00:00Z","reason":"Synced"}` + "\n" + `{"schema":1,"gateway":"line-7"}` + "\nno JSON\n"
	require.NoError(t, os.WriteFile(record, append(raw, hostile...), 0o600))
	require.NoError(t, kube.SyncReports(w.clients.Dynamic, w.ns).Delete(t.Context(), "line-0", metav1.DeleteOptions{}))
	p.recreate()
	p.start()
	again := p.await("the same history", func(s v1alpha1.SyncReportStatus) bool { return len(s.SyncHistory) > 0 })
	assert.Equal(t, s.SyncHistory, again.SyncHistory)
}
