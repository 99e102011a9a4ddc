package follow

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
)

func TestFollowTargets(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	first := w.commit("one")
	gs := w.gatewaySync(p)
	a := p.start()
	s := p.await("WaitingForLead", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonWaitingForLead })
	assert.Equal(t, v1alpha1.GatewayPending, s.Phase)

	w.lead(targetCommit(first))
	s = p.awaitSynced(first, "one")
	assert.Equal(t, gs.Generation, s.Generation)
	assert.EqualValues(t, 1, s.Term)
	assert.Equal(t, "default", s.Profile)
	assert.Equal(t, "main", s.Ref)
	assert.Equal(t, v1alpha1.FileCounts{Added: 1}, s.Files)
	assert.Equal(t, []string{"line"}, s.Projects)
	assert.NotEmpty(t, s.Scan)
	r := p.report()
	assert.Equal(t, crName, r.Labels[v1alpha1.LabelCRName])
	require.Len(t, r.OwnerReferences, 1)
	assert.Equal(t, metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "line-0", UID: types.UID(p.uid)}, r.OwnerReferences[0])

	second := w.commit("two")
	w.lead(targetCommit(second))
	p.awaitSynced(second, "two")
	// Lock renewals, drift checks and gateway polls cause no writes.
	before := a.traffic.writes()
	for range 5 {
		w.lead(func(s *v1alpha1.SyncTargetSpec) { now := metav1.NowMicro(); s.Lead.Renewed = &now })
	}
	iterations := gathered(t, a, "stoker_reconcile_total")
	eventually(t, "two more iterations", func() bool { return gathered(t, a, "stoker_reconcile_total") >= iterations+2 })
	assert.Equal(t, before, a.traffic.writes())
	assert.Equal(t, 2, a.traffic.count("GET gatewaysyncs"), "once at the start, and once for each generation")
	assert.LessOrEqual(t, a.traffic.count("PUT syncreports")+a.traffic.count("POST syncreports"), 10)
}
