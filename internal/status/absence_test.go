package status

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
)

func TestAbsenceSince(t *testing.T) {
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	is := func(kind string, status metav1.ConditionStatus, reason v1alpha1.Reason, minutesAgo time.Duration) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: string(reason), LastTransitionTime: metav1.NewTime(noon.Add(-minutesAgo * time.Minute))}
	}
	gone := []metav1.Condition{is(v1alpha1.ConditionReady, "Unknown", v1alpha1.ReasonProgressDeadlineExceeded, 60), is(v1alpha1.ConditionStalled, "True", v1alpha1.ReasonProgressDeadlineExceeded, 50)}
	for _, c := range []struct {
		name     string
		given    []metav1.Condition
		change   func(*v1alpha1.GatewaySync)
		asked    string
		since    time.Duration // before noon
		work     time.Duration // before the absence
		deadline time.Duration
		late     bool // the deadline of the work has passed
		over     bool // the deadline of the absence has passed
	}{
		{name: "no absence"},
		{name: "agents were working", given: []metav1.Condition{is(v1alpha1.ConditionReady, "False", v1alpha1.ReasonProgressing, 3), is(v1alpha1.ConditionReconciling, "True", v1alpha1.ReasonProgressing, 3)}, work: 3 * time.Minute},
		{name: "agents are away", given: []metav1.Condition{is(v1alpha1.ConditionReady, "Unknown", v1alpha1.ReasonAgentsAway, 1), is(v1alpha1.ConditionReconciling, "True", v1alpha1.ReasonAgentsAway, 1)},
			since: time.Minute},
		{name: "agents are away after work", given: []metav1.Condition{is(v1alpha1.ConditionReady, "Unknown", v1alpha1.ReasonAgentsAway, 1), is(v1alpha1.ConditionReconciling, "True", v1alpha1.ReasonAgentsAway, 9)},
			since: time.Minute, work: 8 * time.Minute},
		{name: "agents are away, work deadline over", given: []metav1.Condition{is(v1alpha1.ConditionReady, "Unknown", v1alpha1.ReasonAgentsAway, 1), is(v1alpha1.ConditionReconciling, "True", v1alpha1.ReasonAgentsAway, 10)},
			since: time.Minute, work: 9 * time.Minute, late: true},
		{name: "deadline over before absence", given: []metav1.Condition{is(v1alpha1.ConditionReady, "False", v1alpha1.ReasonProgressDeadlineExceeded, 60), is(v1alpha1.ConditionStalled, "True", v1alpha1.ReasonProgressDeadlineExceeded, 50)},
			late: true},
		{name: "deadline over, then agents away", given: []metav1.Condition{is(v1alpha1.ConditionReady, "Unknown", v1alpha1.ReasonProgressDeadlineExceeded, 1), is(v1alpha1.ConditionStalled, "True", v1alpha1.ReasonProgressDeadlineExceeded, 50)},
			since: time.Minute, late: true},
		{name: "no gateways for an hour", given: []metav1.Condition{is(v1alpha1.ConditionReady, "Unknown", v1alpha1.ReasonNoGateways, 60)}},
		{name: "no gateways, then agents away", given: []metav1.Condition{is(v1alpha1.ConditionReady, "Unknown", v1alpha1.ReasonAgentsAway, 60), is(v1alpha1.ConditionReconciling, "True", v1alpha1.ReasonAgentsAway, 1)},
			since: time.Minute},
		{name: "stalled for another reason", given: []metav1.Condition{is(v1alpha1.ConditionReady, "False", v1alpha1.ReasonRefNotFound, 60), is(v1alpha1.ConditionStalled, "True", v1alpha1.ReasonRefNotFound, 60)}},
		{name: "new request keeps the deadline", given: []metav1.Condition{is(v1alpha1.ConditionReady, "Unknown", v1alpha1.ReasonAgentsAway, 1), is(v1alpha1.ConditionReconciling, "True", v1alpha1.ReasonAgentsAway, 9)},
			asked: "new", since: time.Minute, work: 8 * time.Minute},
		{name: "new spec restarts the deadline", given: []metav1.Condition{is(v1alpha1.ConditionReady, "Unknown", v1alpha1.ReasonAgentsAway, 60), is(v1alpha1.ConditionReconciling, "True", v1alpha1.ReasonAgentsAway, 60)},
			change: func(gs *v1alpha1.GatewaySync) { gs.Generation++ }},
		{name: "condition time is in the future", given: []metav1.Condition{is(v1alpha1.ConditionReady, "Unknown", v1alpha1.ReasonAgentsAway, -60), is(v1alpha1.ConditionReconciling, "True", v1alpha1.ReasonAgentsAway, -60)}},
		{name: "agents are away until the deadline", given: []metav1.Condition{is(v1alpha1.ConditionReady, "Unknown", v1alpha1.ReasonAgentsAway, 10), is(v1alpha1.ConditionReconciling, "True", v1alpha1.ReasonAgentsAway, 10)},
			since: 10 * time.Minute, late: true, over: true},
		{name: "deadline in the spec", given: []metav1.Condition{is(v1alpha1.ConditionReady, "Unknown", v1alpha1.ReasonAgentsAway, 10), is(v1alpha1.ConditionReconciling, "True", v1alpha1.ReasonAgentsAway, 10)},
			change: func(gs *v1alpha1.GatewaySync) { gs.Spec.ProgressDeadline = "1h" }, since: 10 * time.Minute, deadline: time.Hour},
		{name: "absence deadline over", given: gone, since: time.Hour, late: true, over: true},
		{name: "absence deadline over, same request", given: gone, change: func(gs *v1alpha1.GatewaySync) { gs.Status.LastHandledRequest = "old" },
			asked: "old", since: time.Hour, late: true, over: true},
		{name: "absence deadline over, new request", given: gone, change: func(gs *v1alpha1.GatewaySync) { gs.Status.LastHandledRequest = "old" }, asked: "new"},
		{name: "deadline over before absence, same request", given: []metav1.Condition{is(v1alpha1.ConditionReady, "False", v1alpha1.ReasonProgressDeadlineExceeded, 60), is(v1alpha1.ConditionStalled, "True", v1alpha1.ReasonProgressDeadlineExceeded, 50)},
			change: func(gs *v1alpha1.GatewaySync) { gs.Status.Target = &v1alpha1.TargetStatus{RequestedAt: "old"} }, asked: "old", late: true},
		{name: "deadline over before absence, new request", given: []metav1.Condition{is(v1alpha1.ConditionReady, "False", v1alpha1.ReasonProgressDeadlineExceeded, 60), is(v1alpha1.ConditionStalled, "True", v1alpha1.ReasonProgressDeadlineExceeded, 50)},
			change: func(gs *v1alpha1.GatewaySync) { gs.Status.Target = &v1alpha1.TargetStatus{RequestedAt: "old"} }, asked: "new"},
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
