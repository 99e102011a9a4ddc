package verb

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
)

// done is a fleet of three that runs A as asked at t1.
func done() *v1alpha1.GatewaySync {
	gs := plant("main")
	gs.Generation = 4
	gs.Annotations = map[string]string{v1alpha1.AnnotationRequestedAt: "t1"}
	st := &gs.Status
	st.ObservedGeneration, st.LastHandledRequest, st.GatewaysReady = 4, "t1", "3/3"
	st.Target = &v1alpha1.TargetStatus{Ref: "main", Commit: commitA, RequestedAt: "t1"}
	for i := range 3 {
		st.DiscoveredGateways = append(st.DiscoveredGateways, v1alpha1.DiscoveredGateway{
			Name: fmt.Sprintf("line-%d", i), PodName: fmt.Sprintf("pod-%d", i), SyncStatus: v1alpha1.GatewaySynced, Reason: v1alpha1.ReasonSynced, SyncedCommit: commitA,
		})
	}
	set(gs, v1alpha1.ConditionReady, "True", v1alpha1.ReasonSynced)
	set(gs, v1alpha1.ConditionRefResolved, "True", v1alpha1.ReasonRefResolved)
	set(gs, v1alpha1.ConditionProfilesValid, "True", v1alpha1.ReasonProfilesValid)
	return gs
}

func set(gs *v1alpha1.GatewaySync, condition string, status metav1.ConditionStatus, reason v1alpha1.Reason) {
	c := metav1.Condition{Type: condition, Status: status, Reason: string(reason), Message: "as it is", ObservedGeneration: gs.Generation}
	for i := range gs.Status.Conditions {
		if gs.Status.Conditions[i].Type == condition {
			gs.Status.Conditions[i] = c
			return
		}
	}
	gs.Status.Conditions = append(gs.Status.Conditions, c)
}

// P4: Ready says True in all of them.
func TestReadyAloneIsNeverEnough(t *testing.T) {
	assert.Equal(t, Succeeded, Judge(done(), "main", nil).Phase)
	for name, change := range map[string]func(*v1alpha1.GatewaySync){
		"the spec moved on":               func(gs *v1alpha1.GatewaySync) { gs.Generation++ },
		"git was not asked since":         func(gs *v1alpha1.GatewaySync) { gs.Annotations[v1alpha1.AnnotationRequestedAt] = "t2" },
		"the request was not dealt with":  func(gs *v1alpha1.GatewaySync) { gs.Status.LastHandledRequest = "t0" },
		"the target is of another ref":    func(gs *v1alpha1.GatewaySync) { gs.Status.Target.Ref = "v1" },
		"the commit is not known":         func(gs *v1alpha1.GatewaySync) { gs.Status.Target.Commit = "" },
		"one gateway runs another commit": func(gs *v1alpha1.GatewaySync) { gs.Status.DiscoveredGateways[2].SyncedCommit = commitB },
		"one gateway is not verified":     func(gs *v1alpha1.GatewaySync) { gs.Status.DiscoveredGateways[0].SyncStatus = v1alpha1.GatewayApplied },
		"one gateway says nothing":        func(gs *v1alpha1.GatewaySync) { gs.Status.DiscoveredGateways[1].SyncStatus = "" },
		"there is no target":              func(gs *v1alpha1.GatewaySync) { gs.Status.Target = nil },
		"there is no gateway":             func(gs *v1alpha1.GatewaySync) { gs.Status.DiscoveredGateways, gs.Status.GatewaysReady = nil, "0/0" },
		"there are more than the rows say": func(gs *v1alpha1.GatewaySync) {
			gs.Status.DiscoveredGateways[0].SyncStatus, gs.Status.GatewaysReady = "Pending", "2004/2005"
		},
	} {
		gs := done()
		change(gs)
		assert.Equal(t, Progressing, Judge(gs, "main", nil).Phase, name)
	}
}

func TestOfAVeryLargeFleetTheRowsThatAreLeftOutCount(t *testing.T) {
	gs := done()
	gs.Status.GatewaysReady = "2005/2005"
	v := Judge(gs, "main", nil)
	assert.Equal(t, Succeeded, v.Phase)
	assert.Equal(t, Count{Total: 2005, Synced: 2005}, v.Gateways)

	gs.Status.GatewaysReady = "1000/2005" // of those that are not synced some are left out, too
	v = Judge(gs, "main", nil)
	assert.Equal(t, Progressing, v.Phase)
	assert.Equal(t, Count{Total: 2005, Synced: 1003}, v.Gateways)
	gs.Status.GatewaysReady = "2005/2005"
	gs.Annotations[v1alpha1.AnnotationRequestedAt] = "t2" // what the status counts was before
	assert.Equal(t, Count{Total: 2005}, Judge(gs, "main", nil).Gateways)
}

// What the rows say, and how many are synced, was before: nobody is there who says so.
func TestOfAVeryLargeFleetWhoseAgentsAreAwayNoneIsSynced(t *testing.T) {
	gs := done()
	gs.Status.GatewaysReady = "0/2005"
	for i := range gs.Status.DiscoveredGateways {
		gs.Status.DiscoveredGateways[i].SyncStatus = v1alpha1.GatewayPending
	}
	set(gs, v1alpha1.ConditionReady, "Unknown", v1alpha1.ReasonAgentsAway)
	assert.Equal(t, Count{Total: 2005}, Judge(gs, "main", nil).Gateways)
}

// All is well with the gateways, and yet they do not run what the spec says: whoever looks has to be told.
func TestAFleetThatRunsWhatARollbackWentBackToSaysWhatIsHeldOff(t *testing.T) {
	for unless, want := range map[string]string{
		"BB" + commitB[2:]: "RolledBack: main is held off at bbbbbbb: 3 of 3 gateways run aaaaaaa",
		"":                 "3 of 3 gateways run aaaaaaa",
		"not a commit":     "3 of 3 gateways run aaaaaaa",
	} {
		gs := done()
		gs.Annotations[v1alpha1.AnnotationRequestedRef], gs.Annotations[v1alpha1.AnnotationRequestedUnless] = commitA, unless
		gs.Status.Target.Ref = commitA
		v := Judge(gs, "", nil)
		assert.Equal(t, Succeeded, v.Phase, unless)
		assert.Equal(t, v1alpha1.ReasonSynced, v.Reason, unless)
		assert.Equal(t, want, v.Message, unless)
		gs.Spec.Git.Ref, gs.Annotations[v1alpha1.AnnotationRequestedOver] = "release", commitA+"@main"
		assert.NotContains(t, Judge(gs, "", nil).Message, "held off", "git says another ref, and the rollback has lapsed")
	}
}

// Of a GatewaySync that was applied where no agent runs and the injector is away, the status says nothing: its pods may be there.
func TestThatThereAreNoGatewaysIsSaidOnlyByWhoHasLooked(t *testing.T) {
	gs := plant("main")
	gs.Generation = 1
	v := Judge(gs, "main", nil)
	assert.Equal(t, Progressing, v.Phase)
	assert.Equal(t, v1alpha1.ReasonWaitingForLead, v.Reason)
	assert.Equal(t, "nobody has looked at it yet: neither an agent nor the injector", v.Message)
	gs.Status.ObservedGeneration = 1
	assert.Equal(t, v1alpha1.ReasonNoGateways, Judge(gs, "main", nil).Reason)
	gs.Generation = 2
	v = Judge(gs, "main", nil)
	assert.Equal(t, v1alpha1.ReasonWaitingForLead, v.Reason)
	assert.Equal(t, "the status does not speak of today's spec yet", v.Message)
}

func TestANumberOfGatewaysWithoutOneOfThemIsNone(t *testing.T) {
	gs := done()
	gs.Status.DiscoveredGateways, gs.Status.GatewaysReady = nil, "5/5"
	v := Judge(gs, "main", nil)
	assert.Equal(t, Progressing, v.Phase)
	assert.Equal(t, v1alpha1.ReasonNoGateways, v.Reason)
	assert.Equal(t, Count{}, v.Gateways)
}

func TestAStandbyCountsAsSynced(t *testing.T) {
	gs := done()
	gs.Status.DiscoveredGateways[1].SyncStatus = v1alpha1.GatewayStandby
	assert.Equal(t, Succeeded, Judge(gs, "", nil).Phase)
}

func TestAnotherDesiredRefSupersedesAndANewCommitOfTheSameDoesNot(t *testing.T) {
	gs := done()
	gs.Annotations[v1alpha1.AnnotationRequestedRef] = "v9"
	gs.Annotations[v1alpha1.AnnotationRequestedBy] = "kargo"
	v := Judge(gs, "main", nil)
	assert.Equal(t, Overtaken, v.Phase)
	assert.Contains(t, v.Message, "v9 (asked for by kargo)")
	gs = done()
	gs.Status.Target.Commit = commitB
	assert.Equal(t, Progressing, Judge(gs, "main", nil).Phase)
}

func TestAFailureCountsOnceItIsAboutThisRequest(t *testing.T) {
	gs := done()
	g := &gs.Status.DiscoveredGateways[1]
	g.SyncStatus, g.Reason, g.Message = v1alpha1.GatewayError, v1alpha1.ReasonConfigSyntaxError, "a.json: line 3"
	v := Judge(gs, "main", nil)
	assert.Equal(t, Failed, v.Phase)
	assert.Equal(t, v1alpha1.ReasonConfigSyntaxError, v.Reason)
	assert.Contains(t, v.Message, "line-1: a.json: line 3")
	assert.Equal(t, Count{Total: 3, Synced: 2, Failed: 1}, v.Gateways)

	gs.Status.LastHandledRequest = "t0"
	assert.Equal(t, Progressing, Judge(gs, "main", nil).Phase, "what failed before may succeed now")
	reports := map[string]*v1alpha1.SyncReport{"pod-1": {Status: v1alpha1.SyncReportStatus{HandledRequest: "t0"}}}
	assert.Equal(t, Progressing, Judge(gs, "main", reports).Phase)
	reports["pod-1"].Status.HandledRequest = "t1"
	assert.Equal(t, Failed, Judge(gs, "main", reports).Phase, "it has dealt with the request, whatever the others do")
}

// Nothing that is asked for mends it: an agent that lacks a credential does not even begin.
func TestAPodThatHasToBeStartedAgainIsAFailureAtOnce(t *testing.T) {
	gs := done()
	gs.Status.LastHandledRequest = "t0"
	gs.Status.DiscoveredGateways[1].SyncStatus, gs.Status.DiscoveredGateways[1].Reason = v1alpha1.GatewayError, v1alpha1.ReasonPodRestartNeeded
	assert.Equal(t, Failed, Judge(gs, "main", nil).Phase)
}

func TestWhatIsTriedAgainIsNoFailure(t *testing.T) {
	for _, reason := range []v1alpha1.Reason{v1alpha1.ReasonGatewayUnreachable, v1alpha1.ReasonMissingSidecar, "SomethingNew"} {
		gs := done()
		gs.Status.DiscoveredGateways[0].SyncStatus, gs.Status.DiscoveredGateways[0].Reason = v1alpha1.GatewayError, reason
		v := Judge(gs, "main", nil)
		assert.Equal(t, Progressing, v.Phase, reason)
		assert.Equal(t, "line-0", v.Behind[0].Name)
	}
}

func TestTheFleetsOwnFailuresEndIt(t *testing.T) {
	for condition, reason := range map[string]v1alpha1.Reason{
		v1alpha1.ConditionProfilesValid: v1alpha1.ReasonProfilesInvalid, v1alpha1.ConditionRefResolved: v1alpha1.ReasonRefNotFound,
	} {
		gs := done()
		gs.Status.DiscoveredGateways[0].SyncStatus = v1alpha1.GatewayPending
		set(gs, condition, "False", reason)
		assert.Equal(t, Failed, Judge(gs, "main", nil).Phase, condition)
		gs.Generation++
		assert.Equal(t, Progressing, Judge(gs, "main", nil).Phase, "that was another spec")
	}
	gs := done()
	set(gs, v1alpha1.ConditionRefResolved, "False", v1alpha1.ReasonRefNotFound)
	gs.Annotations[v1alpha1.AnnotationRequestedAt] = "t2"
	assert.Equal(t, Progressing, Judge(gs, "main", nil).Phase, "git was not asked since")
	gs = done()
	gs.Status.DiscoveredGateways[0].SyncStatus = v1alpha1.GatewayPending
	set(gs, v1alpha1.ConditionStalled, "True", v1alpha1.ReasonProgressDeadlineExceeded)
	assert.Equal(t, Failed, Judge(gs, "main", nil).Phase)
	gs.Annotations[v1alpha1.AnnotationRequestedRef] = "v9" // kubectl annotate, and nothing else
	assert.Equal(t, Progressing, Judge(gs, "v9", nil).Phase, "that deadline was of another ref")
}

func TestPausedIsHeldUnlessItIsThereAlready(t *testing.T) {
	gs := done()
	gs.Annotations[v1alpha1.AnnotationPaused] = "true"
	assert.Equal(t, Succeeded, Judge(gs, "main", nil).Phase)
	gs.Status.DiscoveredGateways[0].SyncedCommit = commitB
	assert.Equal(t, Held, Judge(gs, "main", nil).Phase)
}

// designerSessionPolicy fail: the agent says Error where it is Held with wait.
func TestAGatewayThatIsNotToWaitForAPersonFailsOnceItHasDealtWithTheRequest(t *testing.T) {
	gs := done()
	g := &gs.Status.DiscoveredGateways[1]
	g.SyncStatus, g.Reason, g.Message = v1alpha1.GatewayError, v1alpha1.ReasonDesignerSessionActive, "maria edits line"
	v := Judge(gs, "main", nil)
	assert.Equal(t, Failed, v.Phase)
	assert.Equal(t, v1alpha1.ReasonDesignerSessionActive, v.Reason)
	assert.Equal(t, "line-1: maria edits line", v.Message)
	assert.Equal(t, Count{Total: 3, Synced: 2, Failed: 1}, v.Gateways)
	gs.Status.LastHandledRequest = "t0"
	v = Judge(gs, "main", map[string]*v1alpha1.SyncReport{"pod-0": {Status: v1alpha1.SyncReportStatus{HandledRequest: "t1"}}, "pod-2": {Status: v1alpha1.SyncReportStatus{HandledRequest: "t1"}}})
	assert.Equal(t, Progressing, v.Phase, "of the request before")
	assert.False(t, v.Waits)
	gs.Status.LastHandledRequest, g.SyncStatus = "t1", v1alpha1.GatewayHeld
	v = Judge(gs, "main", nil)
	assert.Equal(t, Progressing, v.Phase)
	assert.True(t, v.Waits)
}

func TestItWaitsForPeopleWhereNothingElseIsMissing(t *testing.T) {
	gs := done()
	for i, reason := range []v1alpha1.Reason{v1alpha1.ReasonDesignerSessionActive, v1alpha1.ReasonPaused} {
		gs.Status.DiscoveredGateways[i].SyncStatus, gs.Status.DiscoveredGateways[i].Reason = v1alpha1.GatewayHeld, reason
	}
	v := Judge(gs, "main", nil)
	assert.True(t, v.Waits)
	assert.Equal(t, v1alpha1.ReasonDesignerSessionActive, v.Reason)
	gs.Status.DiscoveredGateways[2].SyncStatus, gs.Status.DiscoveredGateways[2].Reason = v1alpha1.GatewayPending, v1alpha1.ReasonProgressing
	assert.False(t, Judge(gs, "main", nil).Waits)
}

func TestARequestThatIsNoRefFails(t *testing.T) {
	gs := done()
	gs.Annotations[v1alpha1.AnnotationRequestedRef] = "a b"
	assert.Equal(t, Failed, Judge(gs, "", nil).Phase)
}

// The rows are those of the last lead, and nobody is there to say whether they are still so.
func TestAFleetWhoseAgentsAreAwayIsOnItsWay(t *testing.T) {
	for name, change := range map[string]func(*v1alpha1.GatewaySync){
		"it ran what is wanted": func(*v1alpha1.GatewaySync) {},
		"one failed": func(gs *v1alpha1.GatewaySync) {
			gs.Status.DiscoveredGateways[0].SyncStatus, gs.Status.DiscoveredGateways[0].Reason = v1alpha1.GatewayError, v1alpha1.ReasonPodRestartNeeded
		},
		"it is paused": func(gs *v1alpha1.GatewaySync) {
			gs.Spec.Paused, gs.Status.DiscoveredGateways[0].SyncedCommit = true, commitB
		},
		"it was asked to look": func(gs *v1alpha1.GatewaySync) { gs.Annotations[v1alpha1.AnnotationRequestedAt] = "t2" },
	} {
		gs := done()
		change(gs)
		set(gs, v1alpha1.ConditionReady, "Unknown", v1alpha1.ReasonAgentsAway)
		v := Judge(gs, "main", nil)
		assert.Equal(t, Progressing, v.Phase, name)
		assert.Equal(t, v1alpha1.ReasonAgentsAway, v.Reason, name)
		assert.Equal(t, "as it is", v.Message, name)
		assert.False(t, v.Waits, name)
		assert.Equal(t, Overtaken, Judge(gs, "v2", nil).Phase, name)
	}
	gs := done()
	set(gs, v1alpha1.ConditionReady, "Unknown", v1alpha1.ReasonAgentsAway)
	set(gs, v1alpha1.ConditionProfilesValid, "False", v1alpha1.ReasonProfilesInvalid)
	assert.Equal(t, Failed, Judge(gs, "main", nil).Phase, "no agent mends that")
}

// What upkeep writes in the end: the rows are those of the last lead.
func TestAFleetWhoseAgentsStayAwayIsNotThere(t *testing.T) {
	gs := done()
	gs.Annotations[v1alpha1.AnnotationRequestedAt], gs.Status.LastHandledRequest = "t2", "t2"
	gs.Status.Target.RequestedAt = "t2"
	assert.Equal(t, Succeeded, Judge(gs, "main", nil).Phase)
	set(gs, v1alpha1.ConditionReady, "Unknown", v1alpha1.ReasonProgressDeadlineExceeded)
	set(gs, v1alpha1.ConditionStalled, "True", v1alpha1.ReasonProgressDeadlineExceeded)
	v := Judge(gs, "main", nil)
	assert.Equal(t, Failed, v.Phase)
	assert.Equal(t, v1alpha1.ReasonProgressDeadlineExceeded, v.Reason)

	gs.Spec.Git.Ref = "v2" // since they went: nobody is there who would write of it
	v = Judge(gs, "", nil)
	assert.Equal(t, Failed, v.Phase)
	assert.Equal(t, v1alpha1.ReasonProgressDeadlineExceeded, v.Reason)
	gs.Generation++
	assert.Equal(t, Progressing, Judge(gs, "", nil).Phase, "and nobody has looked at it yet")
}

// Whatever stands in the object: a verdict is total, and success always means every gateway.
func FuzzJudge(f *testing.F) {
	for _, gs := range []*v1alpha1.GatewaySync{done(), plant("main"), rolled()} {
		raw, err := json.Marshal(gs)
		require.NoError(f, err)
		f.Add(raw, "main", "")
		f.Add(raw, "", "a b")
	}
	f.Fuzz(func(t *testing.T, raw []byte, ref, requested string) {
		gs := &v1alpha1.GatewaySync{}
		if json.Unmarshal(raw, gs) != nil {
			return
		}
		if requested != "" {
			gs.Annotations = map[string]string{v1alpha1.AnnotationRequestedRef: requested}
		}
		v := Judge(gs, ref, nil)
		require.Contains(t, []Phase{Progressing, Succeeded, Failed, Held, Overtaken}, v.Phase)
		require.Equal(t, v, Judge(gs, ref, nil))
		if v.Phase == Succeeded {
			require.Positive(t, v.Gateways.Total)
			require.Equal(t, v.Gateways.Total, v.Gateways.Synced)
			require.Empty(t, v.Behind)
			require.Equal(t, gs.Generation, gs.Status.ObservedGeneration)
		}
		_, _, _ = rollback(gs, ref) // it must not panic
	})
}
