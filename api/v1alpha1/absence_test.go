package v1alpha1

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAbsenceIsCountedFromWhatTheStatusSays(t *testing.T) {
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	is := func(kind string, status metav1.ConditionStatus, reason Reason, at time.Time) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: string(reason), LastTransitionTime: metav1.NewTime(at)}
	}
	for _, c := range []struct {
		name     string
		given    func(*GatewaySync)
		asked    string
		since    time.Duration // before noon
		deadline time.Duration
		over     bool
	}{
		{name: "nobody was away", given: func(*GatewaySync) {}},
		{name: "they were at work", given: func(gs *GatewaySync) {
			gs.Status.Conditions = []metav1.Condition{is(ConditionReconciling, "True", ReasonProgressing, noon.Add(-time.Hour))}
		}},
		{name: "they are away for a while", given: func(gs *GatewaySync) {
			gs.Status.Conditions = []metav1.Condition{is(ConditionReconciling, "True", ReasonAgentsAway, noon.Add(-time.Minute))}
		}, since: time.Minute},
		{name: "a request does not move the deadline", given: func(gs *GatewaySync) {
			gs.Status.Conditions = []metav1.Condition{is(ConditionReconciling, "True", ReasonAgentsAway, noon.Add(-time.Minute))}
		}, asked: "new", since: time.Minute},
		{name: "a new spec does", given: func(gs *GatewaySync) {
			gs.Generation++
			gs.Status.Conditions = []metav1.Condition{is(ConditionReconciling, "True", ReasonAgentsAway, noon.Add(-time.Hour))}
		}},
		{name: "the clock of whoever wrote it is ahead", given: func(gs *GatewaySync) {
			gs.Status.Conditions = []metav1.Condition{is(ConditionReconciling, "True", ReasonAgentsAway, noon.Add(time.Hour))}
		}},
		{name: "they are away for as long as it takes", given: func(gs *GatewaySync) {
			gs.Status.Conditions = []metav1.Condition{is(ConditionReconciling, "True", ReasonAgentsAway, noon.Add(-10*time.Minute))}
		}, since: 10 * time.Minute, over: true},
		{name: "the spec has another deadline", given: func(gs *GatewaySync) {
			gs.Spec.ProgressDeadline = "1h"
			gs.Status.Conditions = []metav1.Condition{is(ConditionReconciling, "True", ReasonAgentsAway, noon.Add(-10*time.Minute))}
		}, since: 10 * time.Minute, deadline: time.Hour},
		{name: "it was over before", given: func(gs *GatewaySync) {
			gs.Status.Conditions = []metav1.Condition{is(ConditionReady, "Unknown", ReasonProgressDeadlineExceeded, noon.Add(-time.Hour))}
		}, over: true},
		{name: "it was over before, with this request", given: func(gs *GatewaySync) {
			gs.Status.LastHandledRequest = "old"
			gs.Status.Conditions = []metav1.Condition{is(ConditionReady, "Unknown", ReasonProgressDeadlineExceeded, noon.Add(-time.Hour))}
		}, asked: "old", over: true},
		{name: "it was over before, and somebody asks again", given: func(gs *GatewaySync) {
			gs.Status.LastHandledRequest = "old"
			gs.Status.Conditions = []metav1.Condition{is(ConditionReady, "Unknown", ReasonProgressDeadlineExceeded, noon.Add(-time.Hour))}
		}, asked: "new"},
		{name: "agents that were there were late", given: func(gs *GatewaySync) {
			gs.Status.Conditions = []metav1.Condition{is(ConditionReady, "False", ReasonProgressDeadlineExceeded, noon.Add(-time.Hour))}
		}},
	} {
		gs := &GatewaySync{}
		gs.Generation, gs.Status.ObservedGeneration = 2, 2
		c.given(gs)
		a := Absent(gs, c.asked, noon)
		limit := max(c.deadline, DefaultProgressDeadline)
		assert.Equal(t, Absence{Since: noon.Add(-c.since), Until: noon.Add(limit - c.since), Over: c.over}, a, c.name)
	}
}

func TestThereAreNoGatewaysOnlyWithoutPodsAndWithoutHope(t *testing.T) {
	assert.True(t, Absence{}.Gone(0, 0), "there never were")
	assert.False(t, Absence{}.Gone(1, 0), "they come back")
	assert.True(t, Absence{Over: true}.Gone(1, 0), "they do not")
	assert.False(t, Absence{}.Gone(0, 1))
	assert.False(t, Absence{Over: true}.Gone(1, 1), "a node that is lost leaves pods that never end")
}
