package status

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/failure"
)

// rolls sets how far the rollout of the target is, as the lead does. Its phase begins now.
func (s *scene) rolls(phase v1alpha1.RolloutPhase, step int32, stage, message string) {
	at := metav1.NewTime(s.Now)
	s.Rollout = &v1alpha1.RolloutStatus{Commit: s.Target.Commit, From: commitA, Step: step, Steps: 3, Stage: stage, Phase: phase, Since: &at, Message: message}
}

// closed makes gateways report that their steps are not open.
func (s *scene) closed(gateways ...int) {
	for _, i := range gateways {
		s.fails(i, v1alpha1.ReasonGateClosed, "bbbbbbb waits")
		s.report(i).Commit = commitA
	}
}

// canary returns a fleet that runs commitA, and whose first gateway may follow commitB.
func canary(t *testing.T) *scene {
	s := synced(t, 3)
	s.moves(commitB)
	s.closed(1, 2)
	return s
}

// The Event of a stage names the approval that opened it.
func TestStageOpenedNamesApproval(t *testing.T) {
	for name, approved := range map[string]string{"approved": "; approved as dev@" + commitB, "without an approval": ""} {
		t.Run(name, func(t *testing.T) {
			s := canary(t)
			if approved != "" {
				s.GatewaySync = s.GatewaySync.DeepCopy()
				s.GatewaySync.Annotations = map[string]string{v1alpha1.AnnotationApproved: "dev@" + commitB}
			}
			s.rolls(v1alpha1.RolloutProgressing, 1, "dev", "as it is")
			s.write()
			var notes []string
			for _, e := range s.events {
				if e.Reason == v1alpha1.EventStageOpened {
					notes = append(notes, e.Note)
				}
			}
			assert.Equal(t, []string{"stage dev: its gateways may follow bbbbbbb" + approved}, notes)
		})
	}
}

// Ready is true only after the last step, and planned waits are not late.
func TestRolloutVerdict(t *testing.T) {
	for name, c := range map[string]struct {
		phase   v1alpha1.RolloutPhase
		ready   string
		outcome v1alpha1.OutcomePhase
		stalled string // after twice the deadline
		event   string
	}{
		"planning": {v1alpha1.RolloutPlanning, "False/Progressing", v1alpha1.OutcomeProgressing, "True/ProgressDeadlineExceeded", ""},
		"soaking":  {v1alpha1.RolloutSoaking, "False/RolloutSoaking", v1alpha1.OutcomeProgressing, "", "g:site:StageOpened"},
		"waiting":  {v1alpha1.RolloutWaiting, "False/ApprovalNeeded", v1alpha1.OutcomeHeld, "", "w:site:SyncHeld"},
		"aborted":  {v1alpha1.RolloutAborted, "False/CanaryStageFailed", v1alpha1.OutcomeFailed, "True/CanaryStageFailed", "w:site:CanaryStageFailed"},
	} {
		t.Run(name, func(t *testing.T) {
			s := canary(t)
			s.takes(0)
			s.rolls(c.phase, 1, "dev", "as it is")
			st := s.write()
			assert.Equal(t, c.ready, condition(st, v1alpha1.ConditionReady))
			assert.Contains(t, messageOf(st, v1alpha1.ConditionReady), "as it is")
			assert.Equal(t, c.outcome, st.Outcome.Phase)
			assert.EqualValues(t, 1, st.Outcome.Synced)
			assert.Equal(t, commitA, st.LastGood.Commit)
			assert.Equal(t, v1alpha1.GatewayHeld, st.DiscoveredGateways[1].SyncStatus)
			assert.Equal(t, v1alpha1.ReasonGateClosed, st.DiscoveredGateways[1].Reason)
			var events []string
			for _, e := range s.events {
				kind := map[bool]string{true: "w:", false: "g:"}[e.Warning]
				if e.Pod == nil && (e.Reason == v1alpha1.EventStageOpened || e.Reason == v1alpha1.EventSyncHeld || e.Reason == v1alpha1.EventCanaryStageFailed) {
					events = append(events, kind+"site:"+e.Reason)
				}
			}
			if c.event == "" {
				assert.Empty(t, events)
			} else {
				assert.Equal(t, []string{c.event}, events, "one Event, and none for gateways of closed steps")
			}
			st = s.after(2 * v1alpha1.DefaultProgressDeadline).write()
			assert.Equal(t, c.stalled, condition(st, v1alpha1.ConditionStalled))
			for _, e := range s.events {
				assert.NotContains(t, []string{v1alpha1.EventStageOpened, v1alpha1.EventCanaryStageFailed}, e.Reason, "the Event must not be repeated")
			}
		})
	}
}

func TestDeadlinePerStep(t *testing.T) {
	s := canary(t)
	s.fails(0, v1alpha1.ReasonGatewayUnreachable, "refused")
	s.rolls(v1alpha1.RolloutProgressing, 1, "dev", "waits for gw-0")
	shows(t, s.write(), "Ready=False/GatewayUnreachable", "closed steps must not hide the failure")
	shows(t, s.after(v1alpha1.DefaultProgressDeadline-time.Second).write(), "Stalled=")

	s.takes(0)
	s.fails(1, v1alpha1.ReasonGatewayUnreachable, "refused")
	s.rolls(v1alpha1.RolloutProgressing, 2, "pilot", "waits for gw-1")
	began := meta.FindStatusCondition(s.write().Conditions, v1alpha1.ConditionReconciling)
	assert.WithinDuration(t, s.Now, began.LastTransitionTime.Time, 0, "the deadline of a step must begin when the step opens")
	shows(t, s.after(v1alpha1.DefaultProgressDeadline-time.Second).write(), "Stalled=", "the second step must have the whole deadline")
	st := s.after(2 * time.Second).write()
	shows(t, st, "Stalled=True/ProgressDeadlineExceeded")
	assert.Equal(t, v1alpha1.OutcomeFailed, st.Outcome.Phase)

	s.after(time.Second).takes(1)
	s.fails(2, v1alpha1.ReasonGatewayUnreachable, "refused")
	s.rolls(v1alpha1.RolloutProgressing, 3, "", "waits for gw-2")
	shows(t, s.write(), "Stalled=", "a step that opens late must have the whole deadline")
}

// A window is not a delay, whichever name the gateway of the open step has.
func TestOpenStepWaitsForWindow(t *testing.T) {
	for name, open := range map[string]int{"first": 0, "last": 2} {
		t.Run(name, func(t *testing.T) {
			s := canary(t)
			s.closed(0)
			s.fails(open, v1alpha1.ReasonMaintenanceWindow, "bbbbbbb waits: syncs are allowed at 22:00")
			s.report(open).Commit = commitA
			s.rolls(v1alpha1.RolloutProgressing, 1, "dev", "waits for a window")
			shows(t, s.write(), "Ready=False/MaintenanceWindow")
			st := s.after(2 * v1alpha1.DefaultProgressDeadline).write()
			shows(t, st, "Stalled=")
			assert.Equal(t, v1alpha1.OutcomeProgressing, st.Outcome.Phase)
		})
	}
}

// Until the target carries a retry, Current reports false, so that no reader takes the failed outcome for that of the retry.
func TestRetryReplacesFailedRollout(t *testing.T) {
	s := canary(t)
	s.fails(0, v1alpha1.ReasonScanFailed, "no answer")
	s.rolls(v1alpha1.RolloutAborted, 1, "dev", "stage dev: gw-0 ScanFailed")
	s.write()
	require.True(t, desiredref.Current(s.GatewaySync))
	require.Equal(t, v1alpha1.OutcomeFailed, s.GatewaySync.Status.Outcome.Phase)
	s.GatewaySync.Annotations = map[string]string{v1alpha1.AnnotationRetry: annotation.RetryValue(commitB, s.Now)}
	assert.False(t, desiredref.Current(s.GatewaySync))
	s.write()
	assert.False(t, desiredref.Current(s.GatewaySync), "the request is not answered until the target is written")

	s.tells(func(target *v1alpha1.SyncTargetSpec) { target.Requests = annotation.Hash(s.GatewaySync) })
	s.rolls(v1alpha1.RolloutProgressing, 1, "dev", "begins again")
	st := s.write()
	assert.True(t, desiredref.Current(s.GatewaySync))
	assert.Equal(t, v1alpha1.OutcomeProgressing, st.Outcome.Phase)
}

func TestLastStepSoaks(t *testing.T) {
	s := canary(t)
	s.takes(0, 1, 2)
	s.rolls(v1alpha1.RolloutSoaking, 3, "prod", "stage prod waits")
	st := s.write()
	shows(t, st, "Ready=False/RolloutSoaking")
	assert.Equal(t, commitA, st.LastGood.Commit)
	s.rolls(v1alpha1.RolloutDone, 3, "", "all steps are open")
	st = s.write()
	require.Equal(t, "True/Synced", condition(st, v1alpha1.ConditionReady))
	assert.Equal(t, commitB, st.LastGood.Commit)
	assert.Equal(t, v1alpha1.OutcomeSucceeded, st.Outcome.Phase)
}

// While the last step soaks, all gateways run the target, but the rollout is not done: whatever else happens then, AllGatewaysSynced stays
// False, and LastGood is the commit before.
func TestLastStepSoaksDuringFailures(t *testing.T) {
	for name, c := range map[string]struct {
		happens    func(*scene)
		ready, all string
		outcome    v1alpha1.OutcomePhase
	}{
		"git cannot be reached": {func(s *scene) { s.Ref.Err = failure.New(v1alpha1.ReasonGitUnreachable, "refused") },
			"False/RolloutSoaking", "False/RolloutSoaking", v1alpha1.OutcomeProgressing},
		"the ref is gone": {func(s *scene) { s.Ref.Err = failure.New(v1alpha1.ReasonRefNotFound, "no such ref") },
			"False/RefNotFound", "False/RolloutSoaking", v1alpha1.OutcomeFailed},
		"syncing is paused": {func(s *scene) { s.pauses(true); s.rolls(v1alpha1.RolloutSoaking, 3, "prod", "syncing is paused") },
			"False/Paused", "False/Paused", v1alpha1.OutcomePaused},
		"its health check fails, and syncing is paused": {func(s *scene) { s.pauses(true); s.rolls(v1alpha1.RolloutAborted, 3, "prod", "the health check failed") },
			"False/CanaryStageFailed", "False/CanaryStageFailed", v1alpha1.OutcomeFailed},
	} {
		t.Run(name, func(t *testing.T) {
			s := canary(t)
			s.takes(0, 1, 2)
			s.rolls(v1alpha1.RolloutSoaking, 3, "prod", "stage prod waits")
			s.write()
			c.happens(s)
			st := s.write()
			assert.Equal(t, c.ready, condition(st, v1alpha1.ConditionReady))
			assert.Equal(t, c.all, condition(st, v1alpha1.ConditionAllGatewaysSynced))
			assert.Equal(t, c.outcome, st.Outcome.Phase)
			assert.Equal(t, commitA, st.LastGood.Commit)
		})
	}
}

func TestApproval(t *testing.T) {
	stage := &v1alpha1.Approval{Commit: commitB, Stage: "prod"}
	window := &v1alpha1.Approval{Commit: commitB, Window: true}
	windows := func(s *scene) {
		s.GatewaySync.Spec.Deployment.Windows = []v1alpha1.MaintenanceWindow{{Name: "nights", Schedule: "0 22 * * *", Duration: "8h"}}
	}
	done := func(s *scene) {
		s.takes(0, 1, 2)
		s.rolls(v1alpha1.RolloutDone, 3, "", "all steps are open")
	}
	for name, c := range map[string]struct {
		arrange func(*scene)
		want    *v1alpha1.Approval
	}{
		"a stage waits": {func(s *scene) { s.rolls(v1alpha1.RolloutWaiting, 1, "prod", "waits") }, stage},
		"a stage soaks": {func(s *scene) { s.rolls(v1alpha1.RolloutSoaking, 1, "dev", "waits") }, nil},
		"done":          {done, nil},
		"a stage that got requireApproval after the rollout": {func(s *scene) {
			done(s)
			s.fails(2, v1alpha1.ReasonApprovalNeeded, "waits")
		}, stage},
		"a rollout of another commit": {func(s *scene) {
			s.rolls(v1alpha1.RolloutWaiting, 1, "prod", "waits")
			s.Rollout.Commit = commitA
		}, nil},
		"an unresolved ref": {func(s *scene) {
			s.rolls(v1alpha1.RolloutWaiting, 1, "prod", "waits")
			s.Ref.Desired.Ref = "release"
		}, nil},
		"a window": {func(s *scene) {
			windows(s)
			s.fails(1, v1alpha1.ReasonMaintenanceWindow, "waits")
		}, window},
		"a window before other settings of the commit": {func(s *scene) {
			windows(s)
			done(s)
			s.fails(1, v1alpha1.ReasonMaintenanceWindow, "waits")
			s.report(1).Commit = commitB
		}, window},
		"a window, before a gateway is up": {func(s *scene) {
			windows(s)
			s.Pods, s.Reports = nil, nil
			s.GatewaySync.Status.DiscoveredGateways = nil
		}, window},
		"a window, and all run it": {func(s *scene) {
			windows(s)
			done(s)
		}, nil},
		"a window that is approved": {func(s *scene) {
			windows(s)
			s.GatewaySync.Annotations = map[string]string{v1alpha1.AnnotationApproved: "window@" + commitB}
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := canary(t)
			s.GatewaySync = s.GatewaySync.DeepCopy()
			s.GatewaySync.Spec.Deployment = &v1alpha1.DeploymentSpec{Stages: []v1alpha1.Stage{
				{Name: "dev", Gateways: []string{"gw-0", "gw-1"}}, {Name: "prod", Gateways: []string{"*"}, RequireApproval: true}}}
			c.arrange(s)
			assert.Equal(t, c.want, s.write().Approval)
		})
	}
}

// A gateway that a commit breaks is often restarted. A rollout waits until its pod is gone.
func TestStandingsOfTerminatingPods(t *testing.T) {
	s := newScene(t, 2)
	s.ends(0, true)
	list := Standings(s.Seen)
	require.Len(t, list, 2)
	assert.Equal(t, Standing{Name: "gw-0", Pod: "gw-0-0", Label: list[0].Label, Phase: v1alpha1.GatewayPending, Reason: v1alpha1.ReasonProgressing,
		Message: "its pod is terminating", Commit: commitA}, list[0])
	assert.True(t, list[1].Synced)
	s.Pods[0].Ending = false
	assert.Len(t, Standings(s.Seen), 1, "the pod has ended")
}

// A gateway may fail to load a commit before the target, or one to which it went back.
func TestStandingsOfFailures(t *testing.T) {
	s := newScene(t, 2)
	s.moves(commitB)
	s.fails(0, v1alpha1.ReasonScanFailed, "load aaaaaaa before bbbbbbb")
	s.fails(1, v1alpha1.ReasonScanFailed, "rolled back")
	s.report(0).Commit, s.report(1).Commit, s.report(1).AutoRollback = commitA, commitA, commitB
	list := Standings(s.Seen)
	require.Len(t, list, 2)
	assert.Equal(t, Standing{Name: "gw-0", Pod: "gw-0-0", Label: list[0].Label, Phase: v1alpha1.GatewayError, Reason: v1alpha1.ReasonScanFailed,
		Message: "load aaaaaaa before bbbbbbb", Commit: commitA}, list[0])
	assert.Equal(t, commitA, list[1].Commit)
	assert.Equal(t, commitB, list[1].AutoRollback)
}

func TestTerminatingPodsInStatus(t *testing.T) {
	moved := func(t *testing.T) *scene {
		s := newScene(t, 2)
		s.moves(commitB)
		s.takes(1)
		s.ends(0, true)
		return s
	}
	t.Run("one that does not run the target", func(t *testing.T) {
		st := moved(t).write()
		shows(t, st, "Ready=False/Progressing")
		assert.Contains(t, messageOf(st, v1alpha1.ConditionReady), "gw-0 (pod gw-0-0): its pod is terminating")
		shows(t, st, "AllGatewaysSynced=False/Progressing")
		assert.Nil(t, st.LastGood)
	})
	t.Run("one that another pod replaces", func(t *testing.T) {
		s := moved(t)
		p := s.Pods[0]
		p.Name, p.UID, p.Ended, p.Ending = "gw-0-next", "next", false, false
		s.Pods = append(s.Pods, p)
		r := s.Reports[1].DeepCopy()
		r.Name, r.OwnerReferences[0].UID, r.Status.Gateway = p.Name, p.UID, "gw-0"
		s.Reports = append(s.Reports, r)
		shows(t, s.write(), "Ready=True/Synced")
	})
}

func TestHistoryOfARow(t *testing.T) {
	for gateways, want := range map[int]int{1: 10, 32: 10, 33: 3, 100: 3, 101: 0} {
		t.Run(fmt.Sprint(gateways, " gateways"), func(t *testing.T) {
			s := newScene(t, gateways)
			for i := range gateways {
				for n := range 11 {
					s.report(i).SyncHistory = append(s.report(i).SyncHistory, v1alpha1.SyncRecord{Timestamp: metav1.NewTime(s.Now.Add(-time.Duration(n) * time.Hour)),
						Commit: commitA, Ref: "main", Result: v1alpha1.ReasonSynced, FilesChanged: int32(n)})
				}
			}
			rows := s.write().DiscoveredGateways
			require.Len(t, rows[0].SyncHistory, want)
			if want > 0 {
				assert.Zero(t, rows[0].SyncHistory[0].FilesChanged, "newest first")
			}
		})
	}
	t.Run("values that the API server rejects", func(t *testing.T) {
		s := newScene(t, 1)
		good := v1alpha1.SyncRecord{Timestamp: metav1.NewTime(s.Now), Commit: commitA, Result: v1alpha1.ReasonSynced}
		for _, spoil := range []func(*v1alpha1.SyncRecord){ // setup: one record for each field
			func(r *v1alpha1.SyncRecord) { r.Timestamp = metav1.Time{} }, func(r *v1alpha1.SyncRecord) { r.Commit = "a" },
			func(r *v1alpha1.SyncRecord) { r.Ref = strings.Repeat("r", 256) }, func(r *v1alpha1.SyncRecord) { r.SnapshotID = "../x" },
			func(r *v1alpha1.SyncRecord) { r.Duration = strings.Repeat("1", 33) }, func(r *v1alpha1.SyncRecord) { r.Result = v1alpha1.Reason(strings.Repeat("x", 65)) },
		} {
			bad := good
			spoil(&bad)
			s.report(0).SyncHistory = append(s.report(0).SyncHistory, bad)
		}
		s.report(0).SyncHistory = append(s.report(0).SyncHistory, good)
		list := s.write().DiscoveredGateways[0].SyncHistory
		require.Len(t, list, 1)
		assert.Equal(t, commitA, list[0].Commit)
	})
}
