package v1alpha1

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAbsenceSince(t *testing.T) {
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	is := func(kind string, status metav1.ConditionStatus, reason Reason, minutesAgo time.Duration) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: string(reason), LastTransitionTime: metav1.NewTime(noon.Add(-minutesAgo * time.Minute))}
	}
	gone := []metav1.Condition{is(ConditionReady, "Unknown", ReasonProgressDeadlineExceeded, 60), is(ConditionStalled, "True", ReasonProgressDeadlineExceeded, 50)}
	for _, c := range []struct {
		name     string
		given    []metav1.Condition
		change   func(*GatewaySync)
		asked    string
		since    time.Duration // before noon
		work     time.Duration // before the absence
		deadline time.Duration
		late     bool
		over     bool
	}{
		{name: "nobody was away"},
		{name: "they were at work", given: []metav1.Condition{is(ConditionReady, "False", ReasonProgressing, 3), is(ConditionReconciling, "True", ReasonProgressing, 3)}, work: 3 * time.Minute},
		{name: "they are away for a while", given: []metav1.Condition{is(ConditionReady, "Unknown", ReasonAgentsAway, 1), is(ConditionReconciling, "True", ReasonAgentsAway, 1)},
			since: time.Minute},
		{name: "they are away for a while, and were at work before", given: []metav1.Condition{is(ConditionReady, "Unknown", ReasonAgentsAway, 1), is(ConditionReconciling, "True", ReasonAgentsAway, 9)},
			since: time.Minute, work: 8 * time.Minute},
		{name: "and the deadline of that is over", given: []metav1.Condition{is(ConditionReady, "Unknown", ReasonAgentsAway, 1), is(ConditionReconciling, "True", ReasonAgentsAway, 10)},
			since: time.Minute, work: 9 * time.Minute, late: true},
		{name: "it was over when they went", given: []metav1.Condition{is(ConditionReady, "False", ReasonProgressDeadlineExceeded, 60), is(ConditionStalled, "True", ReasonProgressDeadlineExceeded, 50)},
			late: true},
		{name: "and they are away for a while", given: []metav1.Condition{is(ConditionReady, "Unknown", ReasonProgressDeadlineExceeded, 1), is(ConditionStalled, "True", ReasonProgressDeadlineExceeded, 50)},
			since: time.Minute, late: true},
		{name: "there were no gateways, for an hour", given: []metav1.Condition{is(ConditionReady, "Unknown", ReasonNoGateways, 60)}},
		{name: "and then there were some, which went", given: []metav1.Condition{is(ConditionReady, "Unknown", ReasonAgentsAway, 60), is(ConditionReconciling, "True", ReasonAgentsAway, 1)},
			since: time.Minute},
		{name: "something else stalled them", given: []metav1.Condition{is(ConditionReady, "False", ReasonRefNotFound, 60), is(ConditionStalled, "True", ReasonRefNotFound, 60)}},
		{name: "a request does not move the deadline", given: []metav1.Condition{is(ConditionReady, "Unknown", ReasonAgentsAway, 1), is(ConditionReconciling, "True", ReasonAgentsAway, 9)},
			asked: "new", since: time.Minute, work: 8 * time.Minute},
		{name: "a new spec does", given: []metav1.Condition{is(ConditionReady, "Unknown", ReasonAgentsAway, 60), is(ConditionReconciling, "True", ReasonAgentsAway, 60)},
			change: func(gs *GatewaySync) { gs.Generation++ }},
		{name: "the clock of whoever wrote it is ahead", given: []metav1.Condition{is(ConditionReady, "Unknown", ReasonAgentsAway, -60), is(ConditionReconciling, "True", ReasonAgentsAway, -60)}},
		{name: "they are away for as long as it takes", given: []metav1.Condition{is(ConditionReady, "Unknown", ReasonAgentsAway, 10), is(ConditionReconciling, "True", ReasonAgentsAway, 10)},
			since: 10 * time.Minute, late: true, over: true},
		{name: "the spec has another deadline", given: []metav1.Condition{is(ConditionReady, "Unknown", ReasonAgentsAway, 10), is(ConditionReconciling, "True", ReasonAgentsAway, 10)},
			change: func(gs *GatewaySync) { gs.Spec.ProgressDeadline = "1h" }, since: 10 * time.Minute, deadline: time.Hour},
		{name: "it was over before", given: gone, since: time.Hour, late: true, over: true},
		{name: "it was over before, with this request", given: gone, change: func(gs *GatewaySync) { gs.Status.LastHandledRequest = "old" },
			asked: "old", since: time.Hour, late: true, over: true},
		{name: "it was over before, and somebody asks again", given: gone, change: func(gs *GatewaySync) { gs.Status.LastHandledRequest = "old" }, asked: "new"},
		{name: "it was over when they went, with this request", given: []metav1.Condition{is(ConditionReady, "False", ReasonProgressDeadlineExceeded, 60), is(ConditionStalled, "True", ReasonProgressDeadlineExceeded, 50)},
			change: func(gs *GatewaySync) { gs.Status.Target = &TargetStatus{RequestedAt: "old"} }, asked: "old", late: true},
		{name: "it was over when they went, and somebody asks again", given: []metav1.Condition{is(ConditionReady, "False", ReasonProgressDeadlineExceeded, 60), is(ConditionStalled, "True", ReasonProgressDeadlineExceeded, 50)},
			change: func(gs *GatewaySync) { gs.Status.Target = &TargetStatus{RequestedAt: "old"} }, asked: "new"},
	} {
		gs := &GatewaySync{}
		gs.Generation, gs.Status.ObservedGeneration = 2, 2
		gs.Status.Conditions = c.given
		if c.change != nil {
			c.change(gs)
		}
		a := Absent(gs, c.asked, noon)
		since, limit := noon.Add(-c.since), max(c.deadline, DefaultProgressDeadline)
		assert.Equal(t, Absence{Since: since, Until: since.Add(limit), Over: c.over, Work: since.Add(-c.work), Late: c.late}, a, c.name)
	}
}

func TestAbsenceContinues(t *testing.T) {
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	a := Absence{Since: noon, Work: noon.Add(-time.Minute), Late: true}
	since, late := a.Begun(true)
	assert.Equal(t, a.Work, since)
	assert.True(t, late)
	since, late = a.Begun(false)
	assert.Equal(t, a.Since, since)
	assert.False(t, late)
}

func TestNoGateways(t *testing.T) {
	assert.True(t, Absence{}.Gone(0, 0), "there never were")
	assert.False(t, Absence{}.Gone(1, 0), "they come back")
	assert.True(t, Absence{Over: true}.Gone(1, 0), "they do not")
	assert.False(t, Absence{}.Gone(0, 1))
	assert.False(t, Absence{Over: true}.Gone(1, 1), "a node that is lost leaves pods that never end")
}
