package status

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
)

// A pause changes no file: what ran before still runs, and no Event is due.
func TestPausedFleetStaysReady(t *testing.T) {
	s := newScene(t, 3)
	s.write()
	// sequence: each step changes the fleet of the step before
	for _, paused := range []bool{true, false, true} {
		s.annotates(paused)
		st := s.write()
		assert.Equal(t, "False/Paused", condition(st, v1alpha1.ConditionReady), "no agent has confirmed the pause yet")
		for i := range s.Reports {
			assert.Empty(t, s.told())
			s.hears(i)
			st = s.write()
		}
		assert.Empty(t, s.told())
		want := "True/Synced"
		if paused {
			want = "True/Paused"
		}
		assert.Equal(t, want, condition(st, v1alpha1.ConditionReady))
		assert.Equal(t, "True/Synced", condition(st, v1alpha1.ConditionAllGatewaysSynced))
		assert.Equal(t, "3/3", st.GatewaysReady)
		assert.Equal(t, v1alpha1.Reason(want[len("True/"):]), st.DiscoveredGateways[0].Reason)
	}

	s.moves(commitB)
	s.hears(0)
	st := s.write()
	assert.Equal(t, "False/Paused", condition(st, v1alpha1.ConditionReady))
	assert.Contains(t, messageOf(st, v1alpha1.ConditionReady), "paused; 0 of 3 gateways run main at bbbbbbb")
	assert.Equal(t, commitA, st.LastGood.Commit)
	s.annotates(false)
	for i := range s.Reports {
		s.takes(i)
	}
	st = s.write()
	assert.Equal(t, "True/Synced", condition(st, v1alpha1.ConditionReady))
	assert.Equal(t, commitB, st.LastGood.Commit)
	assert.Equal(t, []string{"gw-0-0: SyncCompleted", "gw-1-0: SyncCompleted", "gw-2-0: SyncCompleted", "SyncCompleted"}, s.told())
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
			s := newScene(t, 2)
			s.write()
			const at = "2026-01-02T12:00:01.000000001Z"
			s.Ref.Desired.RequestedAt, s.Ref.Answered, s.Target.RequestedAt, s.report(0).HandledRequest = at, at, at, at
			r := s.report(1)
			r.Phase, r.Reason, r.Message, r.Paused = c.phase, c.reason, "port 8088 is closed", true
			for range 3 {
				st := s.write()
				assert.Empty(t, s.told(), "a pause must not send Events")
				assert.Equal(t, "False/Paused", condition(st, v1alpha1.ConditionReady))
				assert.Contains(t, messageOf(st, v1alpha1.ConditionReady), "1 of 2 gateways run main at aaaaaaa; gw-1 (pod gw-1-0): paused; "+string(c.reason)+": port 8088 is closed")
				assert.Empty(t, condition(st, v1alpha1.ConditionReconciling))
				assert.Empty(t, condition(st, v1alpha1.ConditionStalled))
				assert.Equal(t, v1alpha1.GatewayHeld, st.DiscoveredGateways[1].SyncStatus)
				assert.Equal(t, v1alpha1.ReasonPaused, st.DiscoveredGateways[1].Reason)
				assert.Equal(t, commitA, st.DiscoveredGateways[1].SyncedCommit)
				assert.Equal(t, at, st.LastHandledRequest, "a request counts as handled while the fleet is paused")
				s.after(v1alpha1.DefaultProgressDeadline)
			}

			r.Paused = false
			st := s.write()
			assert.Equal(t, "True/"+string(c.reason), condition(st, v1alpha1.ConditionReconciling))
			assert.WithinDuration(t, s.Now.Add(v1alpha1.DefaultProgressDeadline), s.last.Again, 0, "the deadline must start at the resume")
			s.takes(1)
			assert.Equal(t, "True/Synced", condition(s.after(time.Minute).write(), v1alpha1.ConditionReady))
		})
	}
}

// A sync that already changes files ends after the pause. Until then, a user must not repair the gateway by hand.
func TestSyncDuringPause(t *testing.T) {
	s := newScene(t, 2)
	s.write()
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
	assert.Equal(t, "False/Paused", condition(st, v1alpha1.ConditionReady))
	assert.Empty(t, condition(st, v1alpha1.ConditionStalled))
	s.hears(0)
	assert.Equal(t, v1alpha1.ReasonPaused, s.write().DiscoveredGateways[0].Reason)
}

func TestInvalidSpecOfPausedGateway(t *testing.T) {
	s := newScene(t, 1)
	s.fails(0, v1alpha1.ReasonProfileNotFound, "profile x does not exist")
	s.report(0).Paused = true
	assert.Equal(t, "True/ProfileNotFound", condition(s.write(), v1alpha1.ConditionStalled))
}

// Nothing waits for a paused gateway, so a key that it refuses is not a failure until a user resumes it.
func TestRefusedKeyOfPausedGateway(t *testing.T) {
	s := newScene(t, 1)
	s.fails(0, v1alpha1.ReasonGatewayForbidden, "the gateway rejects the API key")
	s.report(0).Paused = true
	st := s.write()
	assert.Equal(t, "False/Paused", condition(st, v1alpha1.ConditionReady))
	assert.Equal(t, v1alpha1.OutcomePaused, st.Outcome.Phase)
	s.report(0).Paused = false
	assert.Equal(t, "True/GatewayForbidden", condition(s.write(), v1alpha1.ConditionStalled))
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

	// Each sync counts for a single gateway whose clock is always ahead.
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
	st = s.after(v1alpha1.DefaultProgressDeadline).write()
	assert.Equal(t, "True/ProgressDeadlineExceeded", condition(st, v1alpha1.ConditionStalled), "the deadline must not depend on the earlier clock")
}
