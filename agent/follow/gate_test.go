package follow

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/agent/loop"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/sync"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// staged returns a gateway that runs its first commit, in the second of three steps.
func (w *world) staged(change ...func(*v1alpha1.GatewaySync)) (*pod, string) {
	w.t.Helper()
	p := w.pod("line-0")
	first := w.commit("one")
	w.gatewaySync(p, append([]func(*v1alpha1.GatewaySync){func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Deployment = &v1alpha1.DeploymentSpec{Stages: []v1alpha1.Stage{{Name: "dev", Gateways: []string{"dev-*"}}, {Name: "line", Gateways: []string{"line-*"}}}}
	}}, change...)...)
	w.ran(first)
	w.lead(targetCommit(first), rollout(3, 3, ""))
	p.start()
	p.awaitSynced(first, "one")
	return p, first
}

// ran writes the status of a fleet that ran a commit.
func (w *world) ran(commit string) {
	w.t.Helper()
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"lastGood": v1alpha1.CommitRecord{Ref: "main", Commit: commit, At: metav1.Now()}}})
	require.NoError(w.t, err)
	_, err = kube.GatewaySyncs(w.clients.Dynamic, w.ns).Patch(w.t.Context(), crName, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	require.NoError(w.t, err)
}

// rollout sets the rollout of a target, as the lead does.
func rollout(steps, open int32, from string, change ...func(*v1alpha1.TargetRollout)) func(*v1alpha1.SyncTargetSpec) {
	return func(s *v1alpha1.SyncTargetSpec) {
		s.Format, s.Rollout = v1alpha1.TargetFormat, &v1alpha1.TargetRollout{Steps: steps, Open: open, Done: open == steps}
		if from != "" {
			s.Rollout.From = &v1alpha1.TargetCommit{Ref: "main", RefName: "refs/heads/main", Commit: from}
		}
		for _, c := range change {
			c(s.Rollout)
		}
	}
}

func rollingBack(r *v1alpha1.TargetRollout) { r.Back, r.Failed = true, "stage line: line-0 ScanFailed" }

func held(reason v1alpha1.Reason) func(v1alpha1.SyncReportStatus) bool {
	return func(s v1alpha1.SyncReportStatus) bool { return s.Phase == v1alpha1.GatewayHeld && s.Reason == reason }
}

// A gateway of a closed step keeps its commit and its spec, repairs drift, and follows when its step opens. A restart changes nothing.
func TestClosedStep(t *testing.T) {
	w := onSharedCluster(t)
	p, first := w.staged()
	second := w.commit("two")
	gs := w.edit(func(gs *v1alpha1.GatewaySync) {
		profile := gs.Spec.Sync.Profiles["default"]
		profile.Mappings[0].Source = "other/projects"
	})
	w.lead(targetCommit(second), generation(gs.Generation), rollout(3, 1, first))
	s := p.await("a closed gate", held(v1alpha1.ReasonGateClosed))
	assert.Equal(t, first, s.Commit)
	assert.Equal(t, second, s.Target)
	assert.Contains(t, s.Message, "1 of 3 steps are open, and this gateway is in step 2")
	assert.Equal(t, "one", p.title())

	p.agent.end()
	p.start()
	p.await("a closed gate after a restart", held(v1alpha1.ReasonGateClosed))
	code, why := p.agent.get("/startupz")
	assert.Equal(t, 200, code, why)
	assert.Equal(t, "one", p.title())

	w.lead(rollout(3, 2, first))
	p.awaitSynced(second, "two of other")
}

// C19: a SyncTarget that another pod forged opens no stage that needs an approval, and an approval of another commit does not count.
func TestStageApproval(t *testing.T) {
	w := onSharedCluster(t)
	p, first := w.staged(func(gs *v1alpha1.GatewaySync) { gs.Spec.Deployment.Stages[1].RequireApproval = true })
	second := w.commit("two")
	// sequence: one agent follows one forged target after the other
	for _, forged := range []func(*v1alpha1.SyncTargetSpec){rollout(3, 1, first), rollout(3, 2, first), rollout(3, 3, ""), func(s *v1alpha1.SyncTargetSpec) { s.Rollout = nil }} {
		target := w.lead(targetCommit(second), forged)
		s := p.await("an approval that is needed", func(s v1alpha1.SyncReportStatus) bool {
			return held(v1alpha1.ReasonApprovalNeeded)(s) && s.Revision == target.Spec.Revision
		})
		assert.Equal(t, first, s.Commit)
		assert.Equal(t, "one", p.title())
	}
	w.annotate(v1alpha1.AnnotationApproved, "line@"+first+",dev@"+second)
	w.ran(second)
	target := w.lead(rollout(3, 2, first))
	p.await("another approval", func(s v1alpha1.SyncReportStatus) bool {
		return held(v1alpha1.ReasonApprovalNeeded)(s) && s.Revision == target.Spec.Revision
	})
	assert.Equal(t, "one", p.title())
	w.annotate(v1alpha1.AnnotationApproved, "line@"+second)
	p.awaitSynced(second, "two")
}

func TestFollowerDryRun(t *testing.T) {
	w := onSharedCluster(t)
	p, first := w.staged(func(gs *v1alpha1.GatewaySync) { gs.Spec.Validation = &v1alpha1.ValidationSpec{DryRunBefore: true} })
	second := w.moves("two", rollout(3, 0, first))
	s := p.await("a dry run", func(s v1alpha1.SyncReportStatus) bool { return s.Planned != "" })
	assert.Equal(t, second, s.Planned)
	assert.Contains(t, s.Message, "1 ", "the number of files that would change")
	assert.Equal(t, v1alpha1.ReasonDryRun, s.Reason)
	assert.Equal(t, first, s.Commit)
	assert.Equal(t, "one", p.title())
	w.lead(rollout(3, 1, first))
	s = p.await("a closed gate", held(v1alpha1.ReasonGateClosed))
	assert.Empty(t, s.Planned)
	assert.Equal(t, "one", p.title())
	w.lead(rollout(3, 2, first))
	p.awaitSynced(second, "two")
}

func TestRolloutGoesBack(t *testing.T) {
	w := onSharedCluster(t)
	p, first := w.staged()
	second := w.moves("two", rollout(3, 2, first))
	p.awaitSynced(second, "two")
	third := w.commit("three")
	t.Run("the commit never ran on all gateways", func(t *testing.T) {
		w.lead(rollout(3, 2, third, rollingBack))
		p.await("a wrong origin", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonWaitingForLead })
		assert.Equal(t, "two", p.title())
	})
	target := w.lead(rollout(3, 2, first, rollingBack))
	s := p.await("a gateway that went back", func(s v1alpha1.SyncReportStatus) bool {
		return s.Reason == v1alpha1.ReasonRolledBack && s.Commit == first && s.Revision == target.Spec.Revision
	})
	assert.Equal(t, v1alpha1.GatewayError, s.Phase)
	assert.Equal(t, second, s.Target)
	assert.Equal(t, "one", p.title())
	p.agent.end()
	p.start()
	p.await("the rollback after a restart", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonRolledBack })
	assert.Equal(t, "one", p.title())
	w.lead(targetCommit(third), rollout(3, 2, first))
	p.awaitSynced(third, "three")
}

// What ran everywhere is admitted from the history of another ref, too.
func TestRolloutGoesBackWithoutItsRef(t *testing.T) {
	for name, allowed := range map[string][]string{"the branch was deleted": nil, "the branch is not allowed": {"release"}} {
		t.Run(name, func(t *testing.T) {
			w := onSharedCluster(t)
			p, first := w.staged()
			second := w.commit("two")
			w.repo.Branch("release", second)
			gs := w.edit(func(gs *v1alpha1.GatewaySync) { gs.Spec.Git.Ref, gs.Spec.Git.AllowedRefs = "release", allowed })
			if allowed == nil {
				w.repo.DeleteBranch("main")
			}
			w.lead(targetCommit(second), generation(gs.Generation), rollout(3, 2, first), func(s *v1alpha1.SyncTargetSpec) { s.Ref, s.RefName = "release", "refs/heads/release" })
			p.awaitSynced(second, "two")
			w.lead(rollout(3, 2, first, rollingBack))
			p.await("a gateway that went back", func(s v1alpha1.SyncReportStatus) bool {
				return s.Reason == v1alpha1.ReasonRolledBack && s.Commit == first
			})
			assert.Equal(t, "one", p.title())
		})
	}
}

// C3: a gateway whose profile allows only dry runs does not go back, and its agent does not spin.
func TestRolloutGoesBackInDryRun(t *testing.T) {
	w := onSharedCluster(t)
	p, first := w.staged()
	second := w.moves("two", rollout(3, 2, first))
	p.awaitSynced(second, "two")
	gs := w.edit(func(gs *v1alpha1.GatewaySync) { gs.Spec.Sync.Defaults.DryRun = new(true) })
	p.agent.end()
	var iterations atomic.Int32
	p.start(func(c *Config) { c.OnState = func(loop.State) { iterations.Add(1) } })
	w.lead(generation(gs.Generation), rollout(3, 2, first, rollingBack))
	p.await("a dry run", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonDryRun })
	iterations.Store(0)
	time.Sleep(time.Second)
	assert.Less(t, iterations.Load(), int32(10))
	assert.Equal(t, "two", p.title())
}

// The mass deletion guard does not hold a rollout that goes back; an open Designer session does.
func TestRolloutGoesBackFromAddedProject(t *testing.T) {
	w := onSharedCluster(t)
	p, first := w.staged(func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Sync.Defaults.DesignerSessionPolicy, gs.Spec.Sync.Defaults.DesignerSessionScope = v1alpha1.DesignerWait, v1alpha1.DesignerScopeGateway
	})
	second := w.repo.Commit("two", gitserver.Write("gw/projects/line/project.json", fmt.Sprintf(project, "two")),
		gitserver.Write("gw/projects/added/project.json", fmt.Sprintf(project, "added")))
	w.lead(targetCommit(second), rollout(3, 2, first))
	p.awaitSynced(second, "two")
	designer, err := p.gw.Designers.Open("ann", "line")
	require.NoError(t, err)
	w.lead(rollout(3, 2, first, rollingBack))
	s := p.await("a Designer", func(s v1alpha1.SyncReportStatus) bool {
		return held(v1alpha1.ReasonDesignerSessionActive)(s) && s.Target == second
	})
	assert.Equal(t, second, s.Commit)
	require.NoError(t, p.gw.Designers.Close(designer))
	p.await("a gateway that went back", func(s v1alpha1.SyncReportStatus) bool {
		return s.Reason == v1alpha1.ReasonRolledBack && s.Commit == first
	})
	assert.Equal(t, "one", p.title())
	assert.NoFileExists(t, filepath.Join(p.data, "projects/added/project.json"))
}

func aborted(r *v1alpha1.TargetRollout) { r.Failed = "stage line: line-1 ScanFailed" }

// An aborted rollout reaches no other gateway, also if a changed spec puts it into an open step.
func TestAbortedRollout(t *testing.T) {
	w := onSharedCluster(t)
	p, first := w.staged()
	w.moves("two", rollout(3, 2, first, aborted))
	s := p.await("an aborted rollout", held(v1alpha1.ReasonGateClosed))
	assert.Equal(t, first, s.Commit)
	assert.Contains(t, s.Message, "aborted")
	assert.Equal(t, "one", p.title())
	third := w.moves("three", rollout(3, 2, first))
	p.awaitSynced(third, "three")
	w.lead(rollout(3, 2, first, aborted))
	p.agent.end()
	p.start()
	p.awaitSynced(third, "three")
}

// A new gateway gets a commit at once, although the gate of its step is closed.
func TestClosedStepOfNewGateway(t *testing.T) {
	for name, c := range map[string]struct{ known, aborted bool }{
		"runs the last commit of the fleet":           {known: true},
		"runs the target of a new fleet":              {},
		"does not run a commit of an aborted rollout": {known: true, aborted: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := onSharedCluster(t)
			p := w.pod("line-0")
			first := w.commit("one")
			w.gatewaySync(p, func(gs *v1alpha1.GatewaySync) {
				gs.Spec.Deployment = &v1alpha1.DeploymentSpec{Stages: []v1alpha1.Stage{{Name: "dev", Gateways: []string{"dev-*"}}, {Name: "line", Gateways: []string{"line-*"}, RequireApproval: true}}}
			})
			second := w.commit("two")
			if !c.known {
				w.lead(targetCommit(second), rollout(3, 1, ""))
				p.start()
				p.await("the target", func(s v1alpha1.SyncReportStatus) bool { return s.Commit == second })
				assert.Equal(t, "two", p.title())
				return
			}
			w.ran(first)
			reason := v1alpha1.ReasonApprovalNeeded
			if c.aborted {
				reason = v1alpha1.ReasonGateClosed
				w.lead(targetCommit(second), rollout(3, 2, first, aborted))
			} else {
				w.lead(targetCommit(second), rollout(3, 1, first))
			}
			p.start()
			s := p.await("a closed gate", held(reason))
			assert.Equal(t, first, s.Commit)
			assert.Equal(t, "one", p.title())
		})
	}
}

// C13: the agent does not follow an impossible rollout.
func TestHostileRollout(t *testing.T) {
	for name, r := range map[string]v1alpha1.TargetRollout{
		"no steps":                   {},
		"negative open steps":        {Steps: 3, Open: -1},
		"more open steps than steps": {Steps: 3, Open: 4},
		"invalid commit":             {Steps: 3, From: &v1alpha1.TargetCommit{Commit: "HEAD"}},
		"option as ref":              {Steps: 3, From: &v1alpha1.TargetCommit{Commit: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", Ref: "--upload-pack=sh"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseRollout(&r)
			assert.Error(t, err)
		})
	}
}

// P9: a gateway does not take a commit whose ref has moved since it was requested. One that has it keeps it.
func TestTargetWhoseRefMoved(t *testing.T) {
	w, p, first := synced(t)
	second := w.commit("two")
	moved := func(s *v1alpha1.SyncTargetSpec) {
		s.Problem = &v1alpha1.TargetProblem{Generation: s.Generation, Reason: v1alpha1.ReasonRefMoved, Message: "v2 is at 3333333"}
	}
	w.lead(targetCommit(second), moved)
	s := p.await("a ref that moved", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonRefMoved })
	assert.Equal(t, first, s.Commit)
	assert.Equal(t, second, s.Target)
	assert.Contains(t, s.Message, second[:7]+" was not taken before its ref moved: v2 is at 3333333")
	assert.Equal(t, "one", p.title())
	w.lead(func(s *v1alpha1.SyncTargetSpec) { s.Problem = nil })
	p.awaitSynced(second, "two")
	target := w.lead(moved, func(s *v1alpha1.SyncTargetSpec) { s.RequestedAt = "2026-11-24T12:00:00Z" })
	s = p.await("the commit is there already", func(s v1alpha1.SyncReportStatus) bool { return s.Revision == target.Spec.Revision })
	assert.Equal(t, v1alpha1.GatewaySynced, s.Phase)
}

// A dry run counts only for what it planned.
func TestPlannedDryRun(t *testing.T) {
	in := instruction{}
	in.Commit, in.Ref, in.Generation = plan.ID{1}, "main", 2
	settings, labels := effective.Settings{Profile: "a", DryRun: true}, map[string]string{"area": "1"}
	p := &planned{of: inputs{in: in, profile: settings, facts: plan.Facts{Labels: labels}}, message: "dry run"}
	settings.DryRun, settings.Paused = false, true // neither changes the plan
	require.NotNil(t, p.outcome(in, settings, labels))
	assert.Equal(t, v1alpha1.ReasonDryRun, p.outcome(in, settings, labels).Reason)
	assert.Nil(t, (*planned)(nil).outcome(in, settings, labels))
	for name, change := range map[string]func(*instruction, *effective.Settings, map[string]string){
		"another commit":      func(in *instruction, _ *effective.Settings, _ map[string]string) { in.Commit = plan.ID{2} },
		"another ref":         func(in *instruction, _ *effective.Settings, _ map[string]string) { in.Ref = "v1" },
		"another generation":  func(in *instruction, _ *effective.Settings, _ map[string]string) { in.Generation = 3 },
		"a retry":             func(in *instruction, _ *effective.Settings, _ map[string]string) { in.Retry = "now" },
		"another profile":     func(_ *instruction, s *effective.Settings, _ map[string]string) { s.Profile = "b" },
		"another label value": func(_ *instruction, _ *effective.Settings, l map[string]string) { l["area"] = "2" },
	} {
		t.Run(name, func(t *testing.T) {
			in, settings, labels := in, settings, map[string]string{"area": "1"}
			change(&in, &settings, labels)
			assert.Nil(t, p.outcome(in, settings, labels))
		})
	}
}

// C19: if the stages cannot be computed, a SyncTarget without a rollout must not open them.
func TestOversizedOrderHoldsGateway(t *testing.T) {
	w := onSharedCluster(t)
	p, first := w.staged()
	gs := w.edit(func(gs *v1alpha1.GatewaySync) {
		d := gs.Spec.Deployment
		for i := range 256 {
			d.SyncOrder = append(d.SyncOrder, v1alpha1.SyncOrderEntry{Name: fmt.Sprintf("gateway-%d", i)})
		}
		for i := range 40 {
			d.Stages[0].Gateways = append(d.Stages[0].Gateways, fmt.Sprintf("%s-%d-*", strings.Repeat("x", 240), i))
		}
	})
	w.lead(targetCommit(w.commit("two")), generation(gs.Generation), func(s *v1alpha1.SyncTargetSpec) { s.Rollout = nil })
	s := p.await("a gateway that stays", func(s v1alpha1.SyncReportStatus) bool { return s.Reason == v1alpha1.ReasonProfilesInvalid })
	assert.Contains(t, s.Message, "spec.deployment")
	assert.Equal(t, first, s.Commit)
	assert.Equal(t, "one", p.title())
}

// A dry run of the same target is recorded again if it was made with other labels.
func TestRecordDryRun(t *testing.T) {
	order := &loop.Order{}
	c := &currentOrder{order: order, dryRun: dryRun{on: true}, inputs: inputs{facts: plan.Facts{Labels: map[string]string{"area": "1"}}}}
	state := func(message string) loop.State {
		return loop.State{Of: order, Phase: v1alpha1.GatewayPending, Reason: v1alpha1.ReasonDryRun, Message: message,
			Report: &sync.Report{Phase: v1alpha1.GatewayPending, Reason: v1alpha1.ReasonDryRun, DryRun: true}}
	}
	require.True(t, c.recordDryRun(state("1 to add")))
	assert.False(t, c.recordDryRun(state("1 to add")), "it is known already")
	c.inputs.facts.Labels = map[string]string{"area": "2"}
	assert.True(t, c.recordDryRun(state("2 to add")))
	assert.Equal(t, "2 to add", c.planned.message)
}

// A snapshot is reported, and restored on request. The gateway keeps it until another commit is the target.
func TestFollowerRestore(t *testing.T) {
	w, p, first := synced(t, func(gs *v1alpha1.GatewaySync) { gs.Spec.Snapshots = &v1alpha1.SnapshotsSpec{Enabled: true} })
	assert.Nil(t, p.report().Status.LastSnapshot)
	second := p.follows("two")
	s := p.await("a snapshot", func(s v1alpha1.SyncReportStatus) bool { return s.LastSnapshot != nil })
	require.Equal(t, s.LastSnapshot.ID, annotation.RestoresOn(s.LastSnapshot.ID, "line-0"))
	assert.NotEmpty(t, s.LastSnapshot.Size)

	w.restores(s.LastSnapshot.ID)
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

	p.follows("three")
}

// A restore may leave a manifest that is not complete. After a restart of the pod, the snapshot still replaces the target, and is not
// the commit of a lost volume.
func TestRestoredVolumeIsIncomplete(t *testing.T) {
	w, p, first := synced(t, func(gs *v1alpha1.GatewaySync) { gs.Spec.Snapshots = &v1alpha1.SnapshotsSpec{Enabled: true} })
	second := p.follows("two")
	s := p.await("a snapshot", func(s v1alpha1.SyncReportStatus) bool { return s.LastSnapshot != nil })
	p.agent.end()
	d, err := disk.Open(p.data, disk.Options{})
	require.NoError(t, err)
	id, err := plan.ParseID(second)
	require.NoError(t, err)
	require.NoError(t, d.CorrectCommit(d.Manifest().Header().Ref, id))
	require.NoError(t, d.Close())
	w.restores(s.LastSnapshot.ID)
	p.start()
	restored := func(s v1alpha1.SyncReportStatus) bool {
		return s.Commit == first && s.Target == second && string(p.report().OwnerReferences[0].UID) == p.uid
	}
	p.await("the snapshot", restored)
	require.Equal(t, "one", p.title())
	p.agent.end()
	require.NoError(t, p.gw.SetState(simulator.Down))
	p.recreate()
	a := p.start()
	a.opens()
	a.iterates(2)
	assert.Equal(t, "one", p.title())
	p.await("the snapshot", restored)
}

// F21: the history of a gateway is in its report, and outlives the pod. The agent does not trust the record that it comes from.
func TestReportedHistory(t *testing.T) {
	w, p, _ := synced(t, func(gs *v1alpha1.GatewaySync) { gs.Spec.Snapshots = &v1alpha1.SnapshotsSpec{Enabled: true} })
	second := p.follows("two")
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

// Syncing was paused for a repair by hand, and resumes with other settings. They may be what protects the repair, but a closed gate keeps the old
// ones, which would overwrite it. So the gateway stays paused.
func TestResumeInClosedStepWithAnotherSpec(t *testing.T) {
	w := onSharedCluster(t)
	p, first := w.staged(func(gs *v1alpha1.GatewaySync) { gs.Spec.Sync.Defaults.DriftPolicy = v1alpha1.DriftRepair })
	paused := w.edit(func(gs *v1alpha1.GatewaySync) { gs.Spec.Paused = true }).Generation
	w.lead(generation(paused), func(s *v1alpha1.SyncTargetSpec) { s.Paused = true })
	p.await("Paused", func(s v1alpha1.SyncReportStatus) bool { return s.Paused && s.Generation == paused })
	p.edits("by hand")
	excludes := []string{"projects/**/project.json"}
	resumed := w.edit(func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Paused, gs.Spec.Sync.Defaults.ExcludePatterns = false, excludes
	}).Generation
	third := w.moves("three", rollout(3, 0, first), generation(resumed), func(s *v1alpha1.SyncTargetSpec) { s.Paused = false })
	assert.True(t, p.await("a closed gate", func(s v1alpha1.SyncReportStatus) bool { return s.Generation == resumed }).Paused)
	assert.Equal(t, "by hand", p.title())
	w.lead(rollout(3, 3, first))
	p.await("the new spec", func(s v1alpha1.SyncReportStatus) bool { return s.Phase.Synced() && s.Commit == third })
	assert.Equal(t, "by hand", p.title())
}
