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
}

func TestPausedIsHeldUnlessItIsThereAlready(t *testing.T) {
	gs := done()
	gs.Annotations[v1alpha1.AnnotationPaused] = "true"
	assert.Equal(t, Succeeded, Judge(gs, "main", nil).Phase)
	gs.Status.DiscoveredGateways[0].SyncedCommit = commitB
	assert.Equal(t, Held, Judge(gs, "main", nil).Phase)
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
