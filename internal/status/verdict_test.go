package status

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/internal/failure"
)

// While the desired ref does not exist, no gateway counts as ready, whatever it runs.
func TestMissingRefIsNotReady(t *testing.T) {
	s := newScene(t, 3)
	assert.Equal(t, "3/3", s.write().GatewaysReady)
	s.Ref = Ref{Polled: true, Desired: desiredref.Desired{Ref: "v9"}, Err: failure.New(v1alpha1.ReasonRefNotFound, "v9 is neither a branch nor a tag")}
	st := s.write()
	assert.Equal(t, "0/3", st.GatewaysReady)
	assert.Zero(t, s.last.Synced, "the metrics must not count the gateways as synced")
	assert.Equal(t, v1alpha1.GatewaySynced, st.DiscoveredGateways[0].SyncStatus, "the row must name the commit that runs")
}

// A requested dry run runs once. No work is pending that could miss a deadline.
func TestDryRunHasNoDeadline(t *testing.T) {
	s := newScene(t, 1)
	s.fails(0, v1alpha1.ReasonDryRun, "dry run, nothing was written: 1 file added")
	s.report(0).Phase = v1alpha1.GatewayPending
	s.write()
	shows(t, s.after(2*v1alpha1.DefaultProgressDeadline).write(), "Ready=False/DryRun Stalled=")
	assert.Empty(t, s.sent())
}

// A wait that the spec plans has no deadline. The work begins when the window does.
func TestMaintenanceWindowHasNoDeadline(t *testing.T) {
	waiting := func(t *testing.T) *scene {
		s := synced(t, 2)
		s.moves(commitB)
		s.takes(0)
		s.fails(1, v1alpha1.ReasonMaintenanceWindow, "bbbbbbb waits: syncs are allowed at 2026-01-02T22:00:00Z (maintenance window nights)")
		return s
	}
	t.Run("all other gateways synced", func(t *testing.T) {
		s := waiting(t)
		s.write()
		st := s.after(2 * v1alpha1.DefaultProgressDeadline).write()
		shows(t, st, "Ready=False/MaintenanceWindow")
		assert.Contains(t, messageOf(st, v1alpha1.ConditionReady), "nights")
		shows(t, st, "Reconciling=True/MaintenanceWindow Stalled=")
		assert.Equal(t, v1alpha1.OutcomeHeld, st.Outcome.Phase)
		assert.True(t, s.last.Again.IsZero() || s.last.Again.After(s.Now.Add(time.Minute)))

		s.report(1).Phase, s.report(1).Reason = v1alpha1.GatewaySyncing, v1alpha1.ReasonProgressing
		shows(t, s.write(), "Reconciling=True/Progressing", "the deadline must start when the window opens")
		shows(t, s.after(v1alpha1.DefaultProgressDeadline-time.Second).write(), "Stalled=")
		shows(t, s.after(2*time.Second).write(), "Stalled=True/ProgressDeadlineExceeded")
	})
	t.Run("another gateway is late", func(t *testing.T) {
		s := waiting(t)
		s.fails(0, v1alpha1.ReasonGatewayUnreachable, "refused")
		shows(t, s.write(), "Ready=False/GatewayUnreachable", "the window must not hide the failure")
		shows(t, s.after(2*v1alpha1.DefaultProgressDeadline).write(), "Stalled=True/ProgressDeadlineExceeded")
	})
}

// The tag of a request moves after all gateways took the requested commit. They run it, so the fleet stays ready, with a warning.
func TestTagMovedAfterSync(t *testing.T) {
	s := synced(t, 2)
	s.Ref.Err = failure.New(v1alpha1.ReasonRefMoved, "v2 is at bbbbbbb, but was requested at aaaaaaa")
	st := s.write()
	shows(t, st, "Ready=True/Synced RefResolved=False/RefMoved Stalled=")
	assert.Equal(t, "Synced; git: RefMoved", st.Summary)
	assert.Equal(t, v1alpha1.OutcomeSucceeded, st.Outcome.Phase)

	s.fails(1, v1alpha1.ReasonWaitingForGateway, "starts")
	st = s.write()
	shows(t, st, "Ready=False/RefMoved", "a gateway does not have the requested commit")
	assert.Equal(t, v1alpha1.OutcomeFailed, st.Outcome.Phase)
}

// A gateway that crashes again and again must not read like one that starts slowly.
func TestCrashingGatewayInMessage(t *testing.T) {
	s := newScene(t, 1)
	s.fails(0, v1alpha1.ReasonWaitingForGateway, "port 8088 is closed")
	s.report(0).Phase = v1alpha1.GatewayApplied
	s.Pods[0].Stuck = "container gateway keeps crashing: 5 restarts, the last exit was 137 (OOMKilled)"
	st := s.write()
	assert.Equal(t, "port 8088 is closed; container gateway keeps crashing: 5 restarts, the last exit was 137 (OOMKilled)", st.DiscoveredGateways[0].Message)
	s.takes(0)
	assert.NotContains(t, s.write().DiscoveredGateways[0].Message, "crashing")
}

// An earlier pod of the same name may have used another volume. Its report says nothing about the current pod.
func TestReportBelongsToPod(t *testing.T) {
	for name, c := range map[string]struct {
		owners []metav1.OwnerReference
		ready  string
	}{
		"own pod":         {[]metav1.OwnerReference{{Kind: "Pod", UID: "uid-gw-0"}}, "True/Synced"},
		"two owners":      {[]metav1.OwnerReference{{Kind: "Fleet", UID: "f"}, {Kind: "Pod", UID: "uid-gw-0"}}, "True/Synced"},
		"an earlier pod":  {[]metav1.OwnerReference{{Kind: "Pod", UID: "uid-earlier"}}, "False/Progressing"},
		"no owner":        {nil, "False/Progressing"},
		"another kind":    {[]metav1.OwnerReference{{Kind: "Fleet", UID: "uid-gw-0"}}, "False/Progressing"},
		"pod without UID": {[]metav1.OwnerReference{{Kind: "Pod"}}, "False/Progressing"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, 1)
			s.Reports[0].OwnerReferences = c.owners
			st := s.write()
			assert.Equal(t, c.ready, condition(st, v1alpha1.ConditionReady))
			if c.ready != "True/Synced" {
				assert.Equal(t, "its agent has not reported yet", st.DiscoveredGateways[0].Message)
				assert.Empty(t, st.DiscoveredGateways[0].SyncedCommit)
			}
		})
	}
}

// The agent has its gateway name from its environment, and delivered files contain that name.
func TestRenamedPodKeepsGateway(t *testing.T) {
	s := synced(t, 2)
	s.Pods[0].Annotations[v1alpha1.AnnotationGatewayName] = "gw-1"
	st := s.write()
	shows(t, st, "Ready=True/Synced")
	require.Len(t, st.DiscoveredGateways, 2)
	assert.Equal(t, "gw-0", st.DiscoveredGateways[0].Name)
	assert.Equal(t, "gw-0-0", st.DiscoveredGateways[0].PodName)
	assert.Equal(t, "its pod asks for the name gw-1, which takes effect when it is recreated", st.DiscoveredGateways[0].Message)
	assert.Empty(t, st.DiscoveredGateways[1].Message)
	assert.Empty(t, s.sent())

	s.report(0).Gateway = "gw-1" // the pod was recreated
	shows(t, s.write(), "Ready=False/DuplicateGateway")
}

// An agent that was added to its pod by hand has a gateway name of its own.
func TestHandWrittenAgentIdentity(t *testing.T) {
	s := newScene(t, 1)
	s.Pods[0].Labels, s.report(0).Gateway = nil, "press"
	st := s.write()
	require.Len(t, st.DiscoveredGateways, 1)
	assert.Equal(t, "press", st.DiscoveredGateways[0].Name)
	assert.Empty(t, st.DiscoveredGateways[0].Message)
}

// The ref moves to B and back to A, while the agent's report of B is delayed: the disk still holds B.
func TestStaleReportOfSameCommit(t *testing.T) {
	s := newScene(t, 1)
	shows(t, s.write(), "Ready=True/Synced")
	s.moves(commitB)
	shows(t, s.write(), "Ready=False/Progressing")
	s.moves(commitA)
	st := s.write()
	shows(t, st, "Ready=False/Progressing")
	assert.Equal(t, "0/1", st.GatewaysReady)
	assert.Equal(t, v1alpha1.GatewayPending, st.DiscoveredGateways[0].SyncStatus)
	s.takes(0)
	shows(t, s.write(), "Ready=True/Synced")
}

// A pause changes no file: what ran before still runs, and no Event is due.
func TestPausedFleetStaysReady(t *testing.T) {
	s := synced(t, 3)
	// sequence: each step changes the fleet of the step before
	for _, paused := range []bool{true, false, true} {
		s.annotates(paused)
		st := s.write()
		shows(t, st, "Ready=False/Paused", "no agent has confirmed the pause yet")
		for i := range s.Reports {
			assert.Empty(t, s.sent())
			s.hears(i)
			st = s.write()
		}
		assert.Empty(t, s.sent())
		want := "True/Synced"
		if paused {
			want = "True/Paused"
		}
		assert.Equal(t, want, condition(st, v1alpha1.ConditionReady))
		shows(t, st, "AllGatewaysSynced=True/Synced")
		assert.Equal(t, "3/3", st.GatewaysReady)
		assert.Equal(t, v1alpha1.Reason(want[len("True/"):]), st.DiscoveredGateways[0].Reason)
	}

	s.moves(commitB)
	s.hears(0)
	st := s.write()
	shows(t, st, "Ready=False/Paused")
	assert.Contains(t, messageOf(st, v1alpha1.ConditionReady), "paused; 0 of 3 gateways run main at bbbbbbb")
	assert.Equal(t, commitA, st.LastGood.Commit)
	s.annotates(false)
	s.takes(0, 1, 2)
	st = s.write()
	shows(t, st, "Ready=True/Synced")
	assert.Equal(t, commitB, st.LastGood.Commit)
	assert.Equal(t, []string{"gw-0-0: SyncCompleted", "gw-1-0: SyncCompleted", "gw-2-0: SyncCompleted", "SyncCompleted"}, s.sent())
}

// An operator pauses one profile for maintenance. Its gateway is stopped and cannot say what it runs.
func TestPausedUnreachableGateway(t *testing.T) {
	for _, c := range []struct {
		phase  v1alpha1.GatewaySyncState
		reason v1alpha1.Reason
	}{
		{v1alpha1.GatewayApplied, v1alpha1.ReasonWaitingForGateway},
		{v1alpha1.GatewayPending, v1alpha1.ReasonWaitingForCommissioning},
		{v1alpha1.GatewayError, v1alpha1.ReasonGatewayUnreachable},
	} {
		t.Run(string(c.reason), func(t *testing.T) {
			s := synced(t, 2)
			const at = "2026-01-02T12:00:01.000000001Z"
			s.Ref.Desired.RequestedAt, s.Ref.Answered, s.Target.RequestedAt, s.report(0).HandledRequest = at, at, at, at
			r := s.report(1)
			r.Phase, r.Reason, r.Message, r.Paused = c.phase, c.reason, "port 8088 is closed", true
			for range 3 {
				st := s.write()
				assert.Empty(t, s.sent(), "a pause must not send Events")
				shows(t, st, "Ready=False/Paused")
				assert.Contains(t, messageOf(st, v1alpha1.ConditionReady), "1 of 2 gateways run main at aaaaaaa; gw-1 (pod gw-1-0): paused; "+string(c.reason)+": port 8088 is closed")
				shows(t, st, "Reconciling= Stalled=")
				assert.Equal(t, v1alpha1.GatewayHeld, st.DiscoveredGateways[1].SyncStatus)
				assert.Equal(t, v1alpha1.ReasonPaused, st.DiscoveredGateways[1].Reason)
				assert.Equal(t, commitA, st.DiscoveredGateways[1].SyncedCommit)
				assert.Equal(t, at, st.LastHandledRequest, "a paused gateway must not keep a request open")
				s.after(v1alpha1.DefaultProgressDeadline)
			}

			r.Paused = false
			st := s.write()
			assert.Equal(t, "True/"+string(c.reason), condition(st, v1alpha1.ConditionReconciling))
			assert.WithinDuration(t, s.Now.Add(v1alpha1.DefaultProgressDeadline), s.last.Again, 0, "the deadline must start at the resume")
			s.takes(1)
			shows(t, s.after(time.Minute).write(), "Ready=True/Synced")
		})
	}
}

// A sync that already changes files ends after the pause. Until then, a user must not repair the gateway by hand.
func TestSyncDuringPause(t *testing.T) {
	s := synced(t, 2)
	s.moves(commitB)
	s.hears(0)
	s.report(0).Phase, s.report(0).Reason, s.report(0).Message = v1alpha1.GatewaySyncing, v1alpha1.ReasonProgressing, "syncing to bbbbbbb"
	s.hears(1)
	s.write()
	s.annotates(true)
	s.hears(1)
	st := s.write()
	row := st.DiscoveredGateways[0]
	assert.Equal(t, v1alpha1.GatewaySyncing, row.SyncStatus)
	assert.Equal(t, "a sync that began before the pause is still running", row.Message)
	assert.Equal(t, v1alpha1.ReasonPaused, st.DiscoveredGateways[1].Reason)
	shows(t, st, "Ready=False/Paused Stalled=")
	s.hears(0)
	assert.Equal(t, v1alpha1.ReasonPaused, s.write().DiscoveredGateways[0].Reason)
}

// Nothing waits for a paused gateway, so a key that it refuses is not a failure until a user resumes it.
func TestRefusedKeyOfPausedGateway(t *testing.T) {
	s := newScene(t, 1)
	s.fails(0, v1alpha1.ReasonGatewayForbidden, "the gateway rejects the API key")
	s.report(0).Paused = true
	st := s.write()
	shows(t, st, "Ready=False/Paused")
	assert.Equal(t, v1alpha1.OutcomePaused, st.Outcome.Phase)
	s.report(0).Paused = false
	shows(t, s.write(), "Stalled=True/GatewayForbidden")
}

func TestFutureTimestamps(t *testing.T) {
	s := newScene(t, 2)
	future := metav1.NewTime(noon.AddDate(10, 0, 0))
	s.report(0).Started = &future
	st := s.write()
	assert.WithinDuration(t, noon.Add(-time.Minute), st.LastSyncTime.Time, 0, "the time of another gateway must count")

	s.moves(commitB)
	s.after(time.Minute).takes(0) // its clock is right by now
	st = s.write()
	assert.WithinDuration(t, s.Now, st.LastSyncTime.Time, 0)
	s.after(time.Minute).takes(1)
	assert.WithinDuration(t, s.Now, s.write().LastSyncTime.Time, 0)

	// If the clock of the only gateway is always ahead, each of its syncs counts.
	fast := func(t *testing.T, ahead time.Duration) *scene {
		s := newScene(t, 1)
		// sequence: each sync follows the one before
		for i, commit := range []string{commitB, commitA, commitB} {
			s.moves(commit)
			s.after(10 * time.Minute).takes(0)
			at := metav1.NewTime(s.Now.Add(ahead))
			s.report(0).Started = &at
			st := s.write()
			assert.WithinDuration(t, at.Time, st.LastSyncTime.Time, 0, "sync %d", i)
		}
		return s
	}
	for _, ahead := range []time.Duration{maxClockLead / 2, 2 * maxClockLead} {
		t.Run(ahead.String()+" ahead", func(t *testing.T) { fast(t, ahead) })
	}
	s = fast(t, time.Hour)
	right := metav1.NewTime(s.after(time.Minute).Now)
	s.moves(commitA)
	s.takes(0)
	assert.WithinDuration(t, right.Time, s.write().LastSyncTime.Time, 0, "after a correction of the clock, new times must count")
	s.moves(commitB)
	s.after(time.Minute).takes(0)
	earlier := metav1.NewTime(s.Now.Add(-time.Hour))
	s.report(0).Started = &earlier
	assert.WithinDuration(t, right.Time, s.write().LastSyncTime.Time, 0, "an earlier sync must not replace the last one")
}

func TestFutureStartTime(t *testing.T) {
	s := newScene(t, 1)
	s.moves(commitB)
	st := s.write()
	require.Equal(t, "True/Progressing", condition(st, v1alpha1.ConditionReconciling))
	meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReconciling).LastTransitionTime = metav1.NewTime(noon.AddDate(10, 0, 0))
	st = s.after(time.Minute).write()
	assert.WithinDuration(t, s.Now, meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReconciling).LastTransitionTime.Time, 0)
	assert.WithinDuration(t, s.Now.Add(v1alpha1.DefaultProgressDeadline), s.last.Again, 0)
	shows(t, s.after(v1alpha1.DefaultProgressDeadline).write(), "Stalled=True/ProgressDeadlineExceeded", "the deadline must not depend on the earlier clock")
}
