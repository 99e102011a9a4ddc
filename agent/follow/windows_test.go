package follow

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/agent/audit"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/gateway/simulator"
)

// neverOpen adds a maintenance window that allows no sync.
func neverOpen(gs *v1alpha1.GatewaySync) {
	gs.Spec.Deployment = &v1alpha1.DeploymentSpec{Windows: []v1alpha1.MaintenanceWindow{
		{Name: "never", Kind: v1alpha1.WindowDeny, Schedule: "* * * * *", Duration: "1h"}}}
}

// C20: a request counts as a rollback only if the commit ran on this gateway, as its manifest says, and on every gateway, as the status says.
func TestRollbackPassesClosedWindow(t *testing.T) {
	w, p, first := synced(t)
	second := p.follows("two")
	gs := w.edit(neverOpen)
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
		neverOpen(gs)
	})
	w.lead(targetCommit(first))
	assert.Contains(t, p.start().opens(), "Applied", "the first sync does not wait")
	p.agent.end()

	second := w.moves("two")
	p.recreate()
	assert.Contains(t, p.start().opens(), "Held: "+second[:7]+" waits")
	// The gateway never starts here, so the agent soon reports that it waits for it.
	s := p.await("the old commit", func(s v1alpha1.SyncReportStatus) bool {
		return s.Commit == first && strings.Contains(s.Message, second[:7])
	})
	assert.Contains(t, []v1alpha1.Reason{v1alpha1.ReasonMaintenanceWindow, v1alpha1.ReasonWaitingForGateway}, s.Reason)
	assert.Equal(t, "one", p.title())
}

// While the target waits for its window, the report about a commit that the gateway does not load names that commit, not the target.
func TestClosedWindowLoadsEarlierCommit(t *testing.T) {
	w, p, _ := synced(t)
	require.NoError(t, p.gw.Faults.Add(simulator.Fault{Route: "POST /data/api/v1/scan/projects", Status: http.StatusBadRequest}))
	failed := func(commit string) func(v1alpha1.SyncReportStatus) bool {
		return func(s v1alpha1.SyncReportStatus) bool {
			return s.Phase == v1alpha1.GatewayError && s.Reason == v1alpha1.ReasonScanFailed && s.Target == commit
		}
	}
	second := w.moves("two")
	assert.Equal(t, second, p.await("a failed scan", failed(second)).Commit)

	gs := w.edit(neverOpen)
	third := w.commit("three")
	target := w.lead(targetCommit(third), generation(gs.Generation))
	s := p.await("a failed scan in a closed window", failed(third))
	assert.Equal(t, second, s.Commit)
	assert.Equal(t, target.Spec.Revision, s.Revision)
	assert.Contains(t, s.Message, "load "+second[:7]+" before "+third[:7])

	p.gw.Faults.Clear()
	s = p.await("a closed window", held(v1alpha1.ReasonMaintenanceWindow))
	assert.Equal(t, second, s.Commit)
	assert.Equal(t, "two", p.title())
}

// C19: a SyncTarget opens no window, and an approval of another commit does not count.
func TestWindowApproval(t *testing.T) {
	w, p, first := synced(t, neverOpen)

	second := w.commit("two")
	waits := func(what string) {
		t.Helper()
		target := w.lead(targetCommit(second), func(s *v1alpha1.SyncTargetSpec) { s.RequestedAt = what })
		s := p.await(what, func(s v1alpha1.SyncReportStatus) bool {
			return held(v1alpha1.ReasonMaintenanceWindow)(s) && s.Revision == target.Spec.Revision
		})
		assert.Equal(t, []string{first, second, what}, []string{s.Commit, s.Target, s.HandledRequest})
		assert.Contains(t, s.Message, "no time is known at which syncs are allowed (maintenance window never)")
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
	third := w.moves("three")
	p.await("the next commit waits", func(s v1alpha1.SyncReportStatus) bool {
		return held(v1alpha1.ReasonMaintenanceWindow)(s) && s.Target == third
	})
	assert.Equal(t, "two", p.title())

	w.annotate(v1alpha1.AnnotationRequestedRef, third)
	w.lead(func(s *v1alpha1.SyncTargetSpec) { s.Ref, s.RefName = third, "" })
	p.await("a request without an approval waits", func(s v1alpha1.SyncReportStatus) bool {
		return s.Reason == v1alpha1.ReasonMaintenanceWindow && s.Ref == third
	})
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

// closedStep is a gateway that runs the second commit, has a snapshot from before it, and waits for the third.
type closedStep struct {
	*pod
	first, second, third string // commits
	snapshot             string
}

func (w *world) closedStep(change ...func(*v1alpha1.GatewaySync)) closedStep {
	w.t.Helper()
	p, first := w.staged(append(change, func(gs *v1alpha1.GatewaySync) { gs.Spec.Snapshots = &v1alpha1.SnapshotsSpec{Enabled: true} })...)
	second := w.moves("two", rollout(3, 3, ""))
	p.awaitSynced(second, "two")
	snapshot := p.await("a snapshot", func(s v1alpha1.SyncReportStatus) bool { return s.LastSnapshot != nil }).LastSnapshot.ID
	w.ran(second)
	third := w.moves("three", rollout(3, 1, second))
	p.await("a closed gate", held(v1alpha1.ReasonGateClosed))
	return closedStep{p, first, second, third, snapshot}
}

func (p *pod) restart() {
	p.agent.end()
	p.start()
}

// No gate holds a restore, and the restore does not happen again when the gate opens.
func TestClosedStepRestore(t *testing.T) {
	for name, c := range map[string]struct {
		restart bool
		change  func(*v1alpha1.GatewaySync)
	}{
		"without a restart":                    {},
		"after a restart, with other settings": {restart: true, change: func(gs *v1alpha1.GatewaySync) { gs.Spec.Sync.Profiles["default"].Mappings[0].Source = "other/projects" }},
	} {
		t.Run(name, func(t *testing.T) {
			w := onSharedCluster(t)
			p := w.closedStep()
			title := "three"
			if c.change != nil {
				w.lead(generation(w.edit(c.change).Generation))
				title = "three of other"
			}
			if c.restart {
				p.restart()
				p.await("a closed gate after a restart", held(v1alpha1.ReasonGateClosed))
				assert.Equal(t, "two", p.title())
			}
			w.restores(p.snapshot)
			back := func(s v1alpha1.SyncReportStatus) bool {
				return held(v1alpha1.ReasonGateClosed)(s) && s.Commit == p.first && assert.ObjectsAreEqual("one", p.title())
			}
			p.await("the restored gateway", back)
			// What the gate alone reports is shorter than 150 bytes.
			s := p.await("the outcome", func(s v1alpha1.SyncReportStatus) bool { return back(s) && len(s.Message) > 150 })
			assert.Contains(t, s.Message, "1 of 3 steps are open")
			assert.Contains(t, s.Message, "back at the snapshot "+p.snapshot)
			assert.Equal(t, p.third, s.Target)

			p.restart()
			s = p.await("the restored gateway after a restart", func(s v1alpha1.SyncReportStatus) bool { return back(s) && len(s.Message) > 150 })
			assert.Contains(t, s.Message, p.second[:7]+" is blocked")
			w.lead(rollout(3, 2, p.second))
			p.awaitSynced(p.third, title)
		})
	}
}

// After its dry run, a gateway repairs and restores the commit that it keeps, and still reports what the dry run found.
func TestDryRunHoldsNothingElse(t *testing.T) {
	w := onSharedCluster(t)
	p, first := w.staged(func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Snapshots, gs.Spec.Sync.Defaults.DriftPolicy = &v1alpha1.SnapshotsSpec{Enabled: true}, v1alpha1.DriftRepair
		gs.Spec.Validation = &v1alpha1.ValidationSpec{DryRunBefore: true}
	})
	second := w.moves("two", rollout(3, 3, ""))
	p.awaitSynced(second, "two")
	snapshot := p.await("a snapshot", func(s v1alpha1.SyncReportStatus) bool { return s.LastSnapshot != nil }).LastSnapshot.ID
	w.ran(second)
	third := w.moves("three", rollout(3, 0, second))
	planned := func(s v1alpha1.SyncReportStatus) bool {
		return s.Phase == v1alpha1.GatewayPending && s.Reason == v1alpha1.ReasonDryRun && s.Planned == third
	}
	p.await("a dry run", planned)
	p.edits("by hand")
	eventually(t, "a repair", func() bool { return p.title() == "two" })
	s := p.await("the dry run after the repair", planned)
	assert.Equal(t, second, s.Commit)

	w.restores(snapshot)
	p.await("the restored gateway", func(s v1alpha1.SyncReportStatus) bool { return planned(s) && s.Commit == first })
	assert.Equal(t, "one", p.title())
	w.lead(rollout(3, 0, second, aborted))
	s = p.await("an aborted rollout", held(v1alpha1.ReasonGateClosed))
	assert.Contains(t, s.Message, "aborted")
	assert.Empty(t, s.Planned)
	w.lead(rollout(3, 2, second))
	p.awaitSynced(third, "three")
}

// A forced sync of a closed gateway verifies the commit that it keeps, and does not happen again when the gate opens.
func TestClosedStepForcedSync(t *testing.T) {
	for name, restart := range map[string]bool{"without a restart": false, "after a restart": true} {
		t.Run(name, func(t *testing.T) {
			w := onSharedCluster(t)
			p := w.closedStep()
			if restart {
				p.restart()
				p.await("a closed gate after a restart", held(v1alpha1.ReasonGateClosed))
			}
			p.edits("by hand")
			w.annotate(v1alpha1.AnnotationForceSync, "now")
			w.lead()
			s := p.await("a forced sync", func(s v1alpha1.SyncReportStatus) bool { return s.HandledForceSync == "now" })
			assert.Equal(t, v1alpha1.ReasonGateClosed, s.Reason)
			assert.Equal(t, p.second, s.Commit)
			assert.Equal(t, "two", p.title())
			w.lead(rollout(3, 2, p.second))
			p.awaitSynced(p.third, "three")
		})
	}
}

// A sync that waits is canceled when its step closes. A forced sync does not take its commit either.
func TestClosedStepOfWaitingSync(t *testing.T) {
	w := onSharedCluster(t)
	p, first := w.staged(func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Sync.Defaults.DesignerSessionPolicy, gs.Spec.Sync.Defaults.DesignerSessionScope = v1alpha1.DesignerWait, v1alpha1.DesignerScopeGateway
	})
	designer, err := p.gw.Designers.Open("ann", "line")
	require.NoError(t, err)
	w.lead(targetCommit(w.commit("two")), rollout(3, 2, first))
	p.await("a Designer", held(v1alpha1.ReasonDesignerSessionActive))
	w.annotate(v1alpha1.AnnotationForceSync, "now")
	w.lead(rollout(3, 1, first))
	p.await("a closed gate", held(v1alpha1.ReasonGateClosed))
	require.NoError(t, p.gw.Designers.Close(designer))
	p.await("a forced sync", func(s v1alpha1.SyncReportStatus) bool { return s.HandledForceSync == "now" })
	assert.Never(t, func() bool { return p.title() != "one" }, 7*time.Second, 100*time.Millisecond, "a waiting sync tries again every 5 seconds")
}

// A gateway whose step is closed repairs drift, also after a restart of its agent.
func TestClosedStepRepairsDrift(t *testing.T) {
	w := onSharedCluster(t)
	p := w.closedStep(func(gs *v1alpha1.GatewaySync) { gs.Spec.Sync.Defaults.DriftPolicy = v1alpha1.DriftRepair })
	p.restart()
	p.await("a closed gate after a restart", held(v1alpha1.ReasonGateClosed))
	p.edits("by hand")
	eventually(t, "a repair", func() bool { return p.title() == "two" })
	assert.Equal(t, p.second, p.report().Status.Commit)
}

// F30: a gateway whose report names a commit is not new, whatever its volume says.
func TestClosedWindowWithoutManifest(t *testing.T) {
	w, p, first := synced(t, neverOpen)
	p.agent.end()

	w.moves("two")
	require.NoError(t, os.RemoveAll(filepath.Join(p.data, ".stoker")))
	p.start()
	s := p.await("a closed window", held(v1alpha1.ReasonMaintenanceWindow))
	assert.Equal(t, first, s.Commit)
	assert.Equal(t, "one", p.title())
}

// A gateway whose volume was lost gets its commit again before it starts, although no window allows another one.
func TestNewVolumeInClosedWindow(t *testing.T) {
	for name, pushed := range map[string]func(w *world, first string){
		"the branch moved on": func(*world, string) {},
		"only a tag has the commit": func(w *world, first string) {
			w.repo.Git("tag", "v1", first)
			w.repo.Git("update-ref", "refs/heads/main", w.repo.Git("commit-tree", "-m", "without history", first+"^{tree}"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := onSharedCluster(t)
			p := w.stopped("line-0")
			first := w.commit("one")
			w.gatewaySync(p, neverOpen)
			w.lead(targetCommit(first))
			assert.Contains(t, p.start().opens(), "Applied")
			p.await("the first commit", func(s v1alpha1.SyncReportStatus) bool { return s.Commit == first })
			p.agent.end()

			pushed(w, first)
			second := w.moves("two")
			for _, dir := range []string{".stoker", "projects"} {
				require.NoError(t, os.RemoveAll(filepath.Join(p.data, dir)))
			}
			p.recreate()
			p.start().opens()
			assert.Equal(t, "one", p.title())
			p.await("the target waits", func(s v1alpha1.SyncReportStatus) bool {
				return s.Commit == first && s.Target == second && !s.Phase.Synced()
			})
			assert.Equal(t, "one", p.title())
		})
	}
}

// An agent that ended between a sync and its report leaves a manifest that is ahead of the report. Also in a pod that began with a new volume,
// it goes on to the target.
func TestSyncBeforeItsReport(t *testing.T) {
	w := onSharedCluster(t)
	p := w.pod("line-0", func(o *simulator.Options) { o.Down = true })
	first := w.commit("one")
	w.gatewaySync(p, neverOpen)
	w.lead(targetCommit(first))
	p.start().opens()
	require.NoError(t, p.gw.Restart(0))
	p.awaitSynced(first, "one")
	before := p.report().Status
	second := w.commit("two")
	w.annotate(v1alpha1.AnnotationApproved, v1alpha1.WindowApproval+"@"+second+" ann")
	w.lead(targetCommit(second))
	p.awaitSynced(second, "two")
	p.agent.end()
	patch, err := json.Marshal(map[string]any{"status": before})
	require.NoError(t, err)
	_, err = kube.SyncReports(w.clients.Dynamic, w.ns).Patch(t.Context(), p.name, types.MergePatchType, patch, metav1.PatchOptions{})
	require.NoError(t, err)
	p.start()
	p.awaitSynced(second, "two")
	assert.NotContains(t, p.agent.log.String(), "commit="+first)
}

// A gateway that loses its volume while its rollout goes back starts with what it goes back to, although no window allows it: nothing else says
// what it ran.
func TestNewVolumeGoesBack(t *testing.T) {
	w := onSharedCluster(t)
	p, first := w.staged()
	second := w.commit("two")
	w.lead(targetCommit(second), rollout(3, 2, first))
	p.awaitSynced(second, "two")
	p.agent.end()
	gs := w.edit(func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Deployment.Windows = []v1alpha1.MaintenanceWindow{{Name: "never", Kind: v1alpha1.WindowDeny, Schedule: "* * * * *", Duration: "1h"}}
	})
	w.lead(generation(gs.Generation), rollout(3, 2, first, rollingBack))
	for _, dir := range []string{".stoker", "projects"} {
		require.NoError(t, os.RemoveAll(filepath.Join(p.data, dir)))
	}
	p.recreate()
	require.NoError(t, p.gw.SetState(simulator.Down))
	why := p.start().opens()
	assert.Equal(t, "one", p.title(), why)
}
