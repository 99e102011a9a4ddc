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
	s := synced(t, 2)
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
	shows(t, s.after(time.Minute).write(), "Ready=True/Synced")
	assert.Empty(t, s.sent())
}

// The only pod restarts while a request is pending. A wave of Argo CD that waits for the request must not end before the gateway is back.
func TestRequestDuringRestart(t *testing.T) {
	s := synced(t, 1)
	s.ends(0, true)
	s.asks("t1", commitB)
	st := s.after(time.Minute).write()
	shows(t, st, "Ready=Unknown/AgentsAway Reconciling=True/AgentsAway")
	assert.Empty(t, st.LastHandledRequest)
	assert.Equal(t, "0/1", st.GatewaysReady)
	require.Len(t, st.DiscoveredGateways, 1)
	row := st.DiscoveredGateways[0]
	assert.Equal(t, "Pending/AgentsAway its pod ends", string(row.SyncStatus)+"/"+string(row.Reason)+" "+row.Message)
	assert.Equal(t, commitA, row.SyncedCommit, "the row keeps the commit on the disk")
	assert.Equal(t, commitA, st.LastGood.Commit)
	assert.Empty(t, s.sent()[1:], "the only Event must be that of the new commit")
	began := s.Now
	assert.WithinDuration(t, began.Add(v1alpha1.DefaultProgressDeadline), s.last.Again, 0)

	// The pod is gone, and its successor does not exist yet.
	pod := s.Pods[0]
	s.Pods = nil
	st = s.after(time.Minute).write()
	shows(t, st, "Ready=Unknown/AgentsAway")
	assert.Equal(t, "its pod is gone", st.DiscoveredGateways[0].Message)
	assert.WithinDuration(t, began.Add(v1alpha1.DefaultProgressDeadline), s.last.Again, 0)

	pod.UID, pod.Ended, pod.Ending = "next", false, false
	s.Pods = append(s.Pods, pod)
	st = s.after(time.Minute).write()
	shows(t, st, "Ready=False/Progressing")
	assert.Empty(t, st.LastHandledRequest)
	s.Reports[0].OwnerReferences[0].UID = "next"
	s.takes(0)
	st = s.write()
	shows(t, st, "Ready=True/Synced")
	assert.Equal(t, "t1", st.LastHandledRequest)
	assert.Equal(t, []string{"gw-0-0: SyncCompleted", "SyncCompleted"}, s.sent())
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
			s := synced(t, 2)
			s.ends(0, true)
			s.ends(1, true)
			s.asks("t1", commitA)
			s.write()
			c.given(s)
			st := s.after(v1alpha1.DefaultProgressDeadline - time.Second).write()
			shows(t, st, "Ready=Unknown/AgentsAway")
			assert.Empty(t, st.LastHandledRequest)
			assert.Len(t, st.DiscoveredGateways, 2)

			st = s.after(time.Second).write()
			assert.Equal(t, c.ready, condition(st, v1alpha1.ConditionReady))
			assert.Equal(t, c.stalls, condition(st, v1alpha1.ConditionStalled))
			shows(t, st, "Reconciling=")
			assert.Len(t, st.DiscoveredGateways, c.rows)
			assert.Equal(t, "t1", st.LastHandledRequest, "the request must count as handled, so that its caller stops waiting")
			before := *st
			assert.Equal(t, before, *s.after(time.Hour).write())
		})
	}
}

func TestReturningGatewaysGetNewDeadline(t *testing.T) {
	s := synced(t, 1)
	s.ends(0, true)
	s.write()
	shows(t, s.after(time.Hour).write(), "Ready=Unknown/ProgressDeadlineExceeded")
	s.ends(0, false)
	s.Pods[0].UID = "next"
	shows(t, s.write(), "Ready=False/Progressing")
	assert.WithinDuration(t, s.Now.Add(v1alpha1.DefaultProgressDeadline), s.last.Again, 0)
}

// The deadline of pending work does not restart when gateways disappear. Whether they are gone for good depends only on how
// long they are away.
func TestGatewaysGoneAtDeadline(t *testing.T) {
	s := synced(t, 1)
	s.asks("t1", commitB)
	s.write()
	began := s.Now
	st := s.after(v1alpha1.DefaultProgressDeadline - time.Second).write()
	require.Equal(t, "False/Progressing", condition(st, v1alpha1.ConditionReady))
	pods := s.Pods
	s.Pods = nil
	went := s.Now
	st = s.write()
	shows(t, st, "Ready=Unknown/AgentsAway")
	assert.WithinDuration(t, began, meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReconciling).LastTransitionTime.Time, 0)
	assert.WithinDuration(t, began.Add(v1alpha1.DefaultProgressDeadline), s.last.Again, 0)
	st = s.after(time.Second).write()
	shows(t, st, "Ready=Unknown/ProgressDeadlineExceeded Stalled=True/ProgressDeadlineExceeded")
	assert.Equal(t, "t1", st.LastHandledRequest, "the request must be abandoned at the deadline")
	assert.Len(t, st.DiscoveredGateways, 1)
	assert.Equal(t, []string{"SyncFailed"}, s.sent())
	assert.WithinDuration(t, went.Add(v1alpha1.DefaultProgressDeadline), s.last.Again, 0, "the next check must be when the gateways may be gone")

	s.Pods = pods
	st = s.after(time.Minute).write()
	shows(t, st, "Ready=False/ProgressDeadlineExceeded", "a short absence must not make the fleet empty")
	assert.Empty(t, st.LastHandledRequest, "no gateway has handled the request")
	assert.Empty(t, s.sent())
	s.Pods = nil
	went = s.Now
	s.write()
	shows(t, s.after(v1alpha1.DefaultProgressDeadline-time.Second).write(), "Ready=Unknown/ProgressDeadlineExceeded")
	assert.WithinDuration(t, went.Add(v1alpha1.DefaultProgressDeadline), s.last.Again, 0)
	shows(t, s.after(time.Second).write(), "Ready=Unknown/NoGateways")
}

// An abandoned request counts as handled until git is polled for it. Otherwise agents that come and go would restart the wait each time.
func TestAbandonedRequestUntilPoll(t *testing.T) {
	s := synced(t, 1)
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
	shows(t, st, "Ready=False/ProgressDeadlineExceeded")
	assert.Equal(t, "t1", st.LastHandledRequest)
	s.asks("t1", commitB)
	st = s.write()
	shows(t, st, "Ready=False/Progressing", "the request must be in progress after git has answered")
	assert.Empty(t, st.LastHandledRequest, "no gateway has handled the request")
	s.takes(0)
	assert.Equal(t, "t1", s.write().LastHandledRequest)
}

// The injector gives up a request if there is no agent. When agents return, the request counts as handled only after every gateway has handled it.
func TestReturningAgentsReopenRequest(t *testing.T) {
	for name, ready := range map[string]v1alpha1.Reason{"no agents": v1alpha1.ReasonNoGateways, "no answer by the deadline": v1alpha1.ReasonProgressDeadlineExceeded,
		"agents away": v1alpha1.ReasonAgentsAway} {
		t.Run(name, func(t *testing.T) {
			s := synced(t, 2)
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

// tries makes a gateway report that it has begun another attempt.
func (s *scene) tries(i int) {
	s.fails(i, v1alpha1.ReasonProgressing, "")
	s.report(i).Phase = v1alpha1.GatewaySyncing
}

// Each attempt takes more than a second, so its beginning is reported, too.
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
			s := synced(t, 1)
			s.moves(commitB)
			s.write()
			var sent []string
			for range 5 {
				s.tries(0)
				s.after(time.Second).write()
				sent = append(sent, s.sent()...)
				s.after(time.Second).fails(0, c.reason, "as before")
				s.write()
				sent = append(sent, s.sent()...)
			}
			assert.Equal(t, []string{"gw-0-0: " + c.event, c.event}, sent)

			s.tries(0)
			st := s.write()
			row := st.DiscoveredGateways[0]
			assert.Equal(t, v1alpha1.GatewaySyncing, row.SyncStatus)
			assert.Equal(t, c.reason, row.Reason)
			assert.Equal(t, "False/"+string(c.reason), condition(st, v1alpha1.ConditionReady), "a retry must not clear the failure")

			// Another lead knows only the status.
			s.fails(0, c.another, "something else")
			s.write()
			assert.Equal(t, []string{"gw-0-0: SyncFailed", "SyncFailed"}, s.sent())
			s.tries(0)
			s.write()
			s.takes(0)
			s.write()
			assert.Equal(t, []string{"gw-0-0: SyncCompleted", "SyncCompleted"}, s.sent())
			s.fails(0, c.reason, "once more")
			s.write()
			assert.Equal(t, []string{"gw-0-0: " + c.event, c.event}, s.sent(), "a failure after a success needs an Event")
		})
	}
}

func TestNewCommitClearsFailure(t *testing.T) {
	s := synced(t, 1)
	s.fails(0, v1alpha1.ReasonTemplateFailed, "x")
	s.write()
	s.moves(commitB)
	s.tries(0)
	st := s.write()
	assert.Equal(t, v1alpha1.ReasonProgressing, st.DiscoveredGateways[0].Reason)
	shows(t, st, "Ready=False/Progressing Stalled=")
	s.fails(0, v1alpha1.ReasonTemplateFailed, "x")
	s.write()
	assert.Equal(t, []string{"gw-0-0: SyncFailed", "SyncFailed"}, s.sent(), "a failure of another commit needs an Event")
}

func TestAbsenceSince(t *testing.T) {
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	is := func(kind string, status metav1.ConditionStatus, reason v1alpha1.Reason, minutesAgo time.Duration) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: string(reason), LastTransitionTime: metav1.NewTime(noon.Add(-minutesAgo * time.Minute))}
	}
	away := func(ready, work time.Duration) []metav1.Condition {
		return []metav1.Condition{is(v1alpha1.ConditionReady, "Unknown", v1alpha1.ReasonAgentsAway, ready), is(v1alpha1.ConditionReconciling, "True", v1alpha1.ReasonAgentsAway, work)}
	}
	late := func(ready metav1.ConditionStatus, since time.Duration) []metav1.Condition {
		return []metav1.Condition{is(v1alpha1.ConditionReady, ready, v1alpha1.ReasonProgressDeadlineExceeded, since), is(v1alpha1.ConditionStalled, "True", v1alpha1.ReasonProgressDeadlineExceeded, 50)}
	}
	earlier := func(gs *v1alpha1.GatewaySync) { gs.Status.Target = &v1alpha1.TargetStatus{RequestedAt: "old"} }
	for _, c := range []struct {
		name     string
		given    []metav1.Condition
		change   func(*v1alpha1.GatewaySync)
		asked    string
		since    time.Duration // before noon
		work     time.Duration // before the absence
		deadline time.Duration // of the spec; 0 means the default
		late     bool          // the deadline of the work has passed
		over     bool          // the deadline of the absence has passed
	}{
		{name: "no absence"},
		{name: "agents were working", given: []metav1.Condition{is(v1alpha1.ConditionReady, "False", v1alpha1.ReasonProgressing, 3), is(v1alpha1.ConditionReconciling, "True", v1alpha1.ReasonProgressing, 3)}, work: 3 * time.Minute},
		{name: "agents are away", given: away(1, 1), since: time.Minute},
		{name: "agents are away after work", given: away(1, 9), since: time.Minute, work: 8 * time.Minute},
		{name: "agents are away, work deadline over", given: away(1, 10), since: time.Minute, work: 9 * time.Minute, late: true},
		{name: "deadline over before absence", given: late("False", 60), late: true},
		{name: "deadline over, then agents away", given: late("Unknown", 1), since: time.Minute, late: true},
		{name: "no gateways for an hour", given: []metav1.Condition{is(v1alpha1.ConditionReady, "Unknown", v1alpha1.ReasonNoGateways, 60)}},
		{name: "no gateways, then agents away", given: away(60, 1), since: time.Minute},
		{name: "stalled for another reason", given: []metav1.Condition{is(v1alpha1.ConditionReady, "False", v1alpha1.ReasonRefNotFound, 60), is(v1alpha1.ConditionStalled, "True", v1alpha1.ReasonRefNotFound, 60)}},
		{name: "new request keeps the deadline", given: away(1, 9), asked: "new", since: time.Minute, work: 8 * time.Minute},
		{name: "new spec restarts the deadline", given: away(60, 60), change: func(gs *v1alpha1.GatewaySync) { gs.Generation++ }},
		{name: "condition time is in the future", given: away(-60, -60)},
		{name: "agents are away until the deadline", given: away(10, 10), since: 10 * time.Minute, late: true, over: true},
		{name: "deadline in the spec", given: away(10, 10), change: func(gs *v1alpha1.GatewaySync) { gs.Spec.ProgressDeadline = "1h" }, since: 10 * time.Minute, deadline: time.Hour},
		{name: "absence deadline over", given: late("Unknown", 60), since: time.Hour, late: true, over: true},
		{name: "absence deadline over, same request", given: late("Unknown", 60), change: func(gs *v1alpha1.GatewaySync) { gs.Status.LastHandledRequest = "old" },
			asked: "old", since: time.Hour, late: true, over: true},
		{name: "absence deadline over, new request", given: late("Unknown", 60), change: func(gs *v1alpha1.GatewaySync) { gs.Status.LastHandledRequest = "old" }, asked: "new"},
		{name: "deadline over before absence, same request", given: late("False", 60), change: earlier, asked: "old", late: true},
		{name: "deadline over before absence, new request", given: late("False", 60), change: earlier, asked: "new"},
	} {
		t.Run(c.name, func(t *testing.T) {
			gs := &v1alpha1.GatewaySync{}
			gs.Generation, gs.Status.ObservedGeneration = 2, 2
			gs.Status.Conditions = c.given
			if c.change != nil {
				c.change(gs)
			}
			a := Absent(gs, c.asked, noon)
			since, limit := noon.Add(-c.since), max(c.deadline, v1alpha1.DefaultProgressDeadline)
			assert.Equal(t, Absence{Since: since, Until: since.Add(limit), Over: c.over, Work: since.Add(-c.work), Late: c.late}, a)
		})
	}
}

func TestAbsenceBegun(t *testing.T) {
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	a := Absence{Since: noon, Work: noon.Add(-time.Minute), Late: true}
	since, late := a.Begun(true)
	assert.Equal(t, a.Work, since)
	assert.True(t, late)
	since, late = a.Begun(false)
	assert.Equal(t, a.Since, since)
	assert.False(t, late)
}

func TestAbsenceGone(t *testing.T) {
	assert.True(t, Absence{}.Gone(0, 0), "a fleet that never had gateways has none now")
	assert.False(t, Absence{}.Gone(1, 0), "gateways may return before the deadline")
	assert.True(t, Absence{Over: true}.Gone(1, 0), "gateways are gone after the deadline")
	assert.False(t, Absence{}.Gone(0, 1))
	assert.False(t, Absence{Over: true}.Gone(1, 1), "pods of a lost node terminate forever, so their gateways still count")
}
