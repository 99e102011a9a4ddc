package status

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
)

// asks requests a poll of git, which finds a commit.
func (s *scene) asks(at, commit string) {
	s.Ref.Desired.RequestedAt, s.Ref.Answered, s.Target.RequestedAt = at, at, at
	s.moves(commit)
}

// Agents that return with the commit that ran before have synced nothing, so no Event reports them.
func TestReturningAgentsSendNoEvents(t *testing.T) {
	s := newScene(t, 2)
	s.write()
	pods := s.Pods
	s.ends(0, true)
	s.ends(1, true)
	st := s.after(time.Minute).write()
	require.Equal(t, "Unknown/AgentsAway", condition(st, v1alpha1.ConditionReady))
	s.Pods = nil
	for i, p := range pods {
		p.UID, p.Ended, p.Ending = types.UID("next-"+p.Name), false, false
		s.Pods = append(s.Pods, p)
		s.Reports[i].OwnerReferences[0].UID = p.UID
	}
	st = s.after(time.Minute).write()
	assert.Equal(t, "True/Synced", condition(st, v1alpha1.ConditionReady))
	assert.Empty(t, s.told())
}

// A rollout restarts the only pod while a request is pending. A wave must not pass before the gateway is back.
func TestRequestDuringRestart(t *testing.T) {
	s := newScene(t, 1)
	s.write()
	s.ends(0, true)
	s.asks("t1", commitB)
	st := s.after(time.Minute).write()
	assert.Equal(t, "Unknown/AgentsAway", condition(st, v1alpha1.ConditionReady))
	assert.Equal(t, "True/AgentsAway", condition(st, v1alpha1.ConditionReconciling))
	assert.Empty(t, st.LastHandledRequest)
	assert.Equal(t, "0/1", st.GatewaysReady)
	require.Len(t, st.DiscoveredGateways, 1)
	row := st.DiscoveredGateways[0]
	assert.Equal(t, "Pending/AgentsAway its pod ends", string(row.SyncStatus)+"/"+string(row.Reason)+" "+row.Message)
	assert.Equal(t, commitA, row.SyncedCommit, "the row keeps the commit on the disk")
	assert.Equal(t, commitA, st.LastGood.Commit)
	assert.Empty(t, s.told()[1:], "the only Event must be that of the new commit")
	began := s.Now
	assert.WithinDuration(t, began.Add(v1alpha1.DefaultProgressDeadline), s.last.Again, 0)

	// The pod is gone, and its successor does not exist yet.
	pod := s.Pods[0]
	s.Pods = nil
	st = s.after(time.Minute).write()
	assert.Equal(t, "Unknown/AgentsAway", condition(st, v1alpha1.ConditionReady))
	assert.Equal(t, "its pod is gone", st.DiscoveredGateways[0].Message)
	assert.WithinDuration(t, began.Add(v1alpha1.DefaultProgressDeadline), s.last.Again, 0)

	pod.UID, pod.Ended, pod.Ending = "next", false, false
	s.Pods = append(s.Pods, pod)
	st = s.after(time.Minute).write()
	assert.Equal(t, "False/Progressing", condition(st, v1alpha1.ConditionReady))
	assert.Empty(t, st.LastHandledRequest)
	s.Reports[0].OwnerReferences[0].UID = "next"
	s.takes(0)
	st = s.write()
	assert.Equal(t, "True/Synced", condition(st, v1alpha1.ConditionReady))
	assert.Equal(t, "t1", st.LastHandledRequest)
	assert.Equal(t, []string{"gw-0-0: SyncCompleted", "SyncCompleted"}, s.told())
}

func TestLostGateways(t *testing.T) {
	for _, c := range []struct {
		name   string
		given  func(*scene)
		ready  string
		rows   int
		stalls string
	}{
		{name: "deleted workload", given: func(s *scene) { s.Pods = nil }, ready: "Unknown/NoGateways"},
		{name: "ended pods", given: func(s *scene) { s.Pods[0].Ending, s.Pods[1].Ending = false, false }, ready: "Unknown/NoGateways"},
		{name: "lost node with a terminating pod", given: func(s *scene) { s.Pods = s.Pods[:1] },
			ready: "Unknown/ProgressDeadlineExceeded", rows: 2, stalls: "True/ProgressDeadlineExceeded"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t, 2)
			s.write()
			s.ends(0, true)
			s.ends(1, true)
			s.asks("t1", commitA)
			s.write()
			c.given(s)
			st := s.after(v1alpha1.DefaultProgressDeadline - time.Second).write()
			assert.Equal(t, "Unknown/AgentsAway", condition(st, v1alpha1.ConditionReady))
			assert.Empty(t, st.LastHandledRequest)
			assert.Len(t, st.DiscoveredGateways, 2)

			st = s.after(time.Second).write()
			assert.Equal(t, c.ready, condition(st, v1alpha1.ConditionReady))
			assert.Equal(t, c.stalls, condition(st, v1alpha1.ConditionStalled))
			assert.Empty(t, condition(st, v1alpha1.ConditionReconciling))
			assert.Len(t, st.DiscoveredGateways, c.rows)
			assert.Equal(t, "t1", st.LastHandledRequest, "the request must count as handled, so that its caller stops waiting")
			before := *st
			assert.Equal(t, before, *s.after(time.Hour).write())
		})
	}
}

func TestReturningGatewaysGetNewDeadline(t *testing.T) {
	s := newScene(t, 1)
	s.write()
	s.ends(0, true)
	s.write()
	st := s.after(time.Hour).write()
	assert.Equal(t, "Unknown/ProgressDeadlineExceeded", condition(st, v1alpha1.ConditionReady))
	s.ends(0, false)
	s.Pods[0].UID = "next"
	st = s.write()
	assert.Equal(t, "False/Progressing", condition(st, v1alpha1.ConditionReady))
	assert.WithinDuration(t, s.Now.Add(v1alpha1.DefaultProgressDeadline), s.last.Again, 0)
}

// The deadline of pending work does not restart when gateways disappear. Whether they are gone for good depends only on how
// long they are away.
func TestGatewaysGoneAtDeadline(t *testing.T) {
	s := newScene(t, 1)
	s.write()
	s.asks("t1", commitB)
	s.write()
	began := s.Now
	st := s.after(v1alpha1.DefaultProgressDeadline - time.Second).write()
	require.Equal(t, "False/Progressing", condition(st, v1alpha1.ConditionReady))
	pods := s.Pods
	s.Pods = nil
	went := s.Now
	st = s.write()
	assert.Equal(t, "Unknown/AgentsAway", condition(st, v1alpha1.ConditionReady))
	assert.WithinDuration(t, began, meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReconciling).LastTransitionTime.Time, 0)
	assert.WithinDuration(t, began.Add(v1alpha1.DefaultProgressDeadline), s.last.Again, 0)
	st = s.after(time.Second).write()
	assert.Equal(t, "Unknown/ProgressDeadlineExceeded", condition(st, v1alpha1.ConditionReady))
	assert.Equal(t, "True/ProgressDeadlineExceeded", condition(st, v1alpha1.ConditionStalled))
	assert.Equal(t, "t1", st.LastHandledRequest, "the request must be abandoned at the deadline")
	assert.Len(t, st.DiscoveredGateways, 1)
	assert.Equal(t, []string{"SyncFailed"}, s.told())
	assert.WithinDuration(t, went.Add(v1alpha1.DefaultProgressDeadline), s.last.Again, 0, "the next check must be when the gateways may be gone")

	s.Pods = pods
	st = s.after(time.Minute).write()
	assert.Equal(t, "False/ProgressDeadlineExceeded", condition(st, v1alpha1.ConditionReady), "a short absence must not make the fleet empty")
	assert.Empty(t, st.LastHandledRequest, "no gateway has handled the request")
	assert.Empty(t, s.told())
	s.Pods = nil
	went = s.Now
	s.write()
	st = s.after(v1alpha1.DefaultProgressDeadline - time.Second).write()
	assert.Equal(t, "Unknown/ProgressDeadlineExceeded", condition(st, v1alpha1.ConditionReady))
	assert.WithinDuration(t, went.Add(v1alpha1.DefaultProgressDeadline), s.last.Again, 0)
	st = s.after(time.Second).write()
	assert.Equal(t, "Unknown/NoGateways", condition(st, v1alpha1.ConditionReady))
}

// No caller waits for such a request any longer. Otherwise agents that come and go would restart the wait each time.
func TestAbandonedRequestUntilPoll(t *testing.T) {
	s := newScene(t, 1)
	s.write()
	s.moves(commitB)
	s.write()
	s.Ref.Desired.RequestedAt = "t1"
	pods := s.Pods
	s.Pods = nil
	s.after(v1alpha1.DefaultProgressDeadline - time.Minute).write()
	st := s.after(time.Minute).write()
	require.Equal(t, "Unknown/ProgressDeadlineExceeded", condition(st, v1alpha1.ConditionReady))
	require.Equal(t, "t1", st.LastHandledRequest)
	s.Pods = pods
	st = s.after(time.Minute).write()
	assert.Equal(t, "False/ProgressDeadlineExceeded", condition(st, v1alpha1.ConditionReady))
	assert.Equal(t, "t1", st.LastHandledRequest)
	s.asks("t1", commitB)
	st = s.write()
	assert.Equal(t, "False/Progressing", condition(st, v1alpha1.ConditionReady), "the request must be in progress after git has answered")
	assert.Empty(t, st.LastHandledRequest, "no gateway has handled the request")
	s.takes(0)
	assert.Equal(t, "t1", s.write().LastHandledRequest)
}

// The injector gives up a request if there is no agent. Neither the next lead nor any gateway has dealt with that request.
func TestAbandonedRequestStays(t *testing.T) {
	for name, ready := range map[string]v1alpha1.Reason{"no agents": v1alpha1.ReasonNoGateways, "no answer by the deadline": v1alpha1.ReasonProgressDeadlineExceeded,
		"agents away": v1alpha1.ReasonAgentsAway} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, 2)
			s.write()
			st := &s.GatewaySync.Status
			st.LastHandledRequest = "t1"
			c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReady)
			c.Status, c.Reason = metav1.ConditionUnknown, string(ready)
			s.Ref.Desired.RequestedAt = "t1"
			st = s.write()
			assert.Empty(t, st.LastHandledRequest, "without an answer of git, the request is not handled")
			s.asks("t1", commitA)
			assert.Empty(t, s.write().LastHandledRequest)
			s.report(0).HandledRequest = "t1"
			assert.Empty(t, s.write().LastHandledRequest)
			s.report(1).HandledRequest = "t1"
			assert.Equal(t, "t1", s.write().LastHandledRequest)
			s.report(1).HandledRequest = ""
			assert.Equal(t, "t1", s.write().LastHandledRequest, "a restarted gateway must not reopen the request")
		})
	}
}

func (s *scene) tries(i int) {
	s.fails(i, v1alpha1.ReasonProgressing, "")
	s.report(i).Phase = v1alpha1.GatewaySyncing
}

// Each attempt takes more than a second, so that each is reported.
func TestRepeatedFailureIsOneEvent(t *testing.T) {
	for _, c := range []struct {
		reason, another v1alpha1.Reason
		event           string
	}{
		{v1alpha1.ReasonScanFailed, v1alpha1.ReasonVerificationFailed, "SyncFailed"},
		{v1alpha1.ReasonVerificationFailed, v1alpha1.ReasonTemplateFailed, "SyncFailed"},
		{v1alpha1.ReasonDesignerSessionActive, v1alpha1.ReasonScanFailed, "DesignerSessionActive"},
		{v1alpha1.ReasonMassDeletion, v1alpha1.ReasonScanFailed, "SyncHeld"},
	} {
		t.Run(string(c.reason), func(t *testing.T) {
			s := newScene(t, 1)
			s.write()
			s.moves(commitB)
			s.write()
			var told []string
			for range 5 {
				s.tries(0)
				s.after(time.Second).write()
				told = append(told, s.told()...)
				s.after(time.Second).fails(0, c.reason, "as before")
				s.write()
				told = append(told, s.told()...)
			}
			assert.Equal(t, []string{"gw-0-0: " + c.event, c.event}, told)

			s.tries(0)
			st := s.write()
			row := st.DiscoveredGateways[0]
			assert.Equal(t, v1alpha1.GatewaySyncing, row.SyncStatus)
			assert.Equal(t, c.reason, row.Reason)
			assert.Equal(t, "False/"+string(c.reason), condition(st, v1alpha1.ConditionReady), "a retry must not clear the failure")

			// Another lead knows only the status.
			s.fails(0, c.another, "something else")
			s.write()
			assert.Equal(t, []string{"gw-0-0: SyncFailed", "SyncFailed"}, s.told())
			s.tries(0)
			s.write()
			s.takes(0)
			s.write()
			assert.Equal(t, []string{"gw-0-0: SyncCompleted", "SyncCompleted"}, s.told())
			s.fails(0, c.reason, "once more")
			s.write()
			assert.Equal(t, []string{"gw-0-0: " + c.event, c.event}, s.told(), "a failure after a success needs an Event")
		})
	}
}

func TestNewCommitClearsFailure(t *testing.T) {
	s := newScene(t, 1)
	s.write()
	s.fails(0, v1alpha1.ReasonTemplateFailed, "x")
	s.write()
	s.moves(commitB)
	s.tries(0)
	st := s.write()
	assert.Equal(t, v1alpha1.ReasonProgressing, st.DiscoveredGateways[0].Reason)
	assert.Equal(t, "False/Progressing", condition(st, v1alpha1.ConditionReady))
	assert.Empty(t, condition(st, v1alpha1.ConditionStalled))
	s.fails(0, v1alpha1.ReasonTemplateFailed, "x")
	s.write()
	assert.Equal(t, []string{"gw-0-0: SyncFailed", "SyncFailed"}, s.told(), "a failure of another commit needs an Event")
}
