package follow

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/audit"
	"stoker.io/stoker/api/v1alpha1"
)

// A gateway keeps its commit while no window allows another one.
func TestClosedWindow(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	first := w.commit("one")
	w.gatewaySync(p, func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Deployment = &v1alpha1.DeploymentSpec{Windows: []v1alpha1.MaintenanceWindow{
			{Name: "never", Kind: v1alpha1.WindowDeny, Schedule: "* * * * *", Duration: "1h"}}}
	})
	w.lead(targetCommit(first))
	p.start()
	p.awaitSynced(first, "one")

	second := w.commit("two")
	w.lead(targetCommit(second), func(s *v1alpha1.SyncTargetSpec) { s.RequestedAt = "2026-11-24T12:00:00Z" })
	s := p.await("a closed window", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonMaintenanceWindow })
	assert.Equal(t, v1alpha1.GatewayHeld, s.Phase)
	assert.Equal(t, first, s.Commit)
	assert.Equal(t, second, s.Target)
	assert.Equal(t, "2026-11-24T12:00:00Z", s.HandledRequest)
	assert.Contains(t, s.Message, "no time is known at which syncs are allowed (maintenance window never)")
	assert.Equal(t, "one", p.title())

	w.annotate(v1alpha1.AnnotationRequestedRef, second)
	w.lead(targetCommit(second), func(s *v1alpha1.SyncTargetSpec) { s.Ref, s.RefName = second, "" })
	p.await("a request without an approval waits", func(s v1alpha1.SyncReportStatus) bool {
		return s.Reason == v1alpha1.ReasonMaintenanceWindow && s.Ref == second
	})
}

// C20: a request counts as a rollback only if the commit ran on this gateway, as its manifest says, and on every gateway, as the status says.
func TestRollbackPassesClosedWindow(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	first := w.commit("one")
	w.gatewaySync(p)
	w.lead(targetCommit(first))
	p.start()
	p.awaitSynced(first, "one")
	second := w.commit("two")
	w.lead(targetCommit(second))
	p.awaitSynced(second, "two")
	gs := w.edit(func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Deployment = &v1alpha1.DeploymentSpec{Windows: []v1alpha1.MaintenanceWindow{
			{Name: "never", Kind: v1alpha1.WindowDeny, Schedule: "* * * * *", Duration: "1h"}}}
	})
	w.ran(second)
	third := w.commit("three")
	w.annotate(v1alpha1.AnnotationRequestedBy, "cli")
	w.annotate(v1alpha1.AnnotationRequestedFor, "ticket 7")
	w.annotate(v1alpha1.AnnotationRequestedUnless, second)
	waits := func(commit, what string) {
		t.Helper()
		w.annotate(v1alpha1.AnnotationRequestedRef, commit)
		target := w.lead(targetCommit(commit), generation(gs.Generation), func(s *v1alpha1.SyncTargetSpec) { s.Ref, s.RefName = commit, "" })
		p.await(what, func(s v1alpha1.SyncReportStatus) bool {
			return held(v1alpha1.ReasonMaintenanceWindow)(s) && s.Revision == target.Spec.Revision
		})
		assert.Equal(t, "two", p.title())
	}
	waits(third, "a commit that ran nowhere")
	waits(first, "the status does not list the commit")
	w.ran(third)
	waits(third, "the commit never ran on this gateway")
	w.ran(first)
	w.annotate(v1alpha1.AnnotationRequestedRef, first)
	w.lead(targetCommit(first), func(s *v1alpha1.SyncTargetSpec) { s.Ref = first })
	p.awaitSynced(first, "one")
	record := p.audit()
	require.Len(t, record, 3)
	assert.Equal(t, audit.Request{}, record[1].Request)
	assert.Equal(t, audit.Request{By: "cli", For: "ticket 7"}, record[2].Request)
	assert.Equal(t, []string{second, first, "line-0", "site"}, []string{record[2].From.String(), record[2].To.String(), record[2].Gateway, record[2].GatewaySync})

	gs = w.edit(func(gs *v1alpha1.GatewaySync) {
		gs.Annotations = nil
		gs.Spec.Deployment.Windows[0].Gateways = []string{"area-*"}
	})
	w.lead(targetCommit(third), generation(gs.Generation), func(s *v1alpha1.SyncTargetSpec) { s.Ref, s.RefName = "main", "refs/heads/main" })
	p.awaitSynced(third, "three")
	record = p.audit()
	require.Len(t, record, 4)
	assert.Equal(t, audit.Request{}, record[3].Request, "a change of the branch is not a request")
}

// A gateway that is restarted while its windows are closed starts with its old commit, even if its start waits for the target's.
func TestClosedWindowBeforeStart(t *testing.T) {
	w := onSharedCluster(t)
	p := w.stopped("line-0")
	first := w.commit("one")
	w.gatewaySync(p, func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Sync.Defaults.Startup = v1alpha1.StartupWait
		gs.Spec.Deployment = &v1alpha1.DeploymentSpec{Windows: []v1alpha1.MaintenanceWindow{
			{Name: "never", Kind: v1alpha1.WindowDeny, Schedule: "* * * * *", Duration: "1h"}}}
	})
	w.lead(targetCommit(first))
	assert.Contains(t, p.start().opens(), "Applied", "the first sync does not wait")
	p.agent.end()

	second := w.commit("two")
	w.lead(targetCommit(second))
	p.recreate()
	assert.Contains(t, p.start().opens(), "Held: "+second[:7]+" waits")
	// The gateway never starts here, so the agent soon reports that it waits for it.
	s := p.await("the old commit", func(s v1alpha1.SyncReportStatus) bool {
		return s.Commit == first && strings.Contains(s.Message, second[:7])
	})
	assert.Contains(t, []v1alpha1.Reason{v1alpha1.ReasonMaintenanceWindow, v1alpha1.ReasonWaitingForGateway}, s.Reason)
	assert.Equal(t, "one", p.title())
}

// C19: a SyncTarget opens no window, and an approval of another commit does not count.
func TestWindowApproval(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0")
	first := w.commit("one")
	w.gatewaySync(p, func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Deployment = &v1alpha1.DeploymentSpec{Windows: []v1alpha1.MaintenanceWindow{
			{Name: "never", Kind: v1alpha1.WindowDeny, Schedule: "* * * * *", Duration: "1h"}}}
	})
	w.lead(targetCommit(first))
	p.start()
	p.awaitSynced(first, "one")

	second := w.commit("two")
	waits := func(what string) {
		t.Helper()
		target := w.lead(targetCommit(second), func(s *v1alpha1.SyncTargetSpec) { s.RequestedAt = what })
		p.await(what, func(s v1alpha1.SyncReportStatus) bool {
			return held(v1alpha1.ReasonMaintenanceWindow)(s) && s.Revision == target.Spec.Revision
		})
		assert.Equal(t, "one", p.title())
	}
	waits("no approval")
	w.annotate(v1alpha1.AnnotationApproved, v1alpha1.WindowApproval+"@"+first+",dev@"+second)
	waits("an approval of another commit")
	w.annotate(v1alpha1.AnnotationApproved, v1alpha1.WindowApproval+"@"+second+" ann")
	w.lead()
	p.awaitSynced(second, "two")
	record := p.audit()
	assert.Equal(t, []string{"", "window by ann"}, []string{record[0].ApprovedBy, record[len(record)-1].ApprovedBy})
	third := w.commit("three")
	w.lead(targetCommit(third))
	p.await("the next commit waits", func(s v1alpha1.SyncReportStatus) bool {
		return held(v1alpha1.ReasonMaintenanceWindow)(s) && s.Target == third
	})
	assert.Equal(t, "two", p.title())
}

// An approval does not change the order of a gateway without windows.
func TestGatewayWithoutWindows(t *testing.T) {
	windows := []v1alpha1.MaintenanceWindow{{Name: "nights", Schedule: "0 22 * * *", Duration: "8h", Gateways: []string{"area-*"}}}
	assert.False(t, hasWindow(windows, "line-0", "line-0"))
	assert.True(t, hasWindow(append(windows, v1alpha1.MaintenanceWindow{Name: "a", Schedule: "0 22 * * *", Duration: "8h"}), "line-0", "line-0"))
}

// audit returns the audit record as the agent serves it.
func (p *pod) audit() []audit.Entry {
	p.w.t.Helper()
	r, err := http.Get(p.agent.http.URL + "/state/audit")
	require.NoError(p.w.t, err)
	defer r.Body.Close()
	var list []audit.Entry
	for d := json.NewDecoder(r.Body); d.More(); {
		var a audit.Entry
		require.NoError(p.w.t, d.Decode(&a))
		list = append(list, a)
	}
	return list
}
