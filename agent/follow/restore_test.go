package follow

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
)

// A snapshot is reported, restored on request, and held until another commit is the target.
func TestFollowerRestoresASnapshot(t *testing.T) {
	w := shared(t)
	p := w.pod("line-0")
	first := w.commit("one")
	w.gatewaySync(p, func(gs *v1alpha1.GatewaySync) { gs.Spec.Snapshots = &v1alpha1.SnapshotsSpec{Enabled: true} })
	w.lead(at(first))
	p.start()
	p.synced(first, "one")
	assert.Nil(t, p.report().Status.LastSnapshot)
	second := w.commit("two")
	w.lead(at(second))
	p.synced(second, "two")
	s := p.await("a snapshot", func(s v1alpha1.SyncReportStatus) bool { return s.LastSnapshot != nil })
	require.Equal(t, s.LastSnapshot.ID, v1alpha1.RestoresOn(s.LastSnapshot.ID, "line-0"))
	assert.NotEmpty(t, s.LastSnapshot.Size)

	value := v1alpha1.RestoreValue(s.LastSnapshot.ID, time.Now())
	w.annotate(v1alpha1.AnnotationRestore, value)
	w.lead(at(second), func(s *v1alpha1.SyncTargetSpec) { s.Restore = value })
	s = p.await("back", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonRolledBack })
	assert.Equal(t, "one", p.title())
	assert.Equal(t, first, s.Commit)
	assert.Equal(t, second, s.Target)
	assert.Equal(t, v1alpha1.GatewayError, s.Phase)
	require.NoError(t, testutil.GatherAndCompare(p.agent.reg, strings.NewReader(`# HELP stoker_rollback_triggered_total Rollbacks: by a request for the whole fleet, which its lead counts, or by a snapshot of the gateway.
# TYPE stoker_rollback_triggered_total counter
stoker_rollback_triggered_total{by="snapshot"} 1
`), "stoker_rollback_triggered_total"))

	third := w.commit("three")
	w.lead(at(third), func(s *v1alpha1.SyncTargetSpec) { s.Restore = value })
	p.synced(third, "three")
}
