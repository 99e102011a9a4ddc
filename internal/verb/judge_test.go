package verb

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
)

// done returns a fleet of three that runs commit A for the request t1.
func done() *v1alpha1.GatewaySync {
	gs := plant("main")
	gs.Generation = 4
	gs.Annotations = map[string]string{v1alpha1.AnnotationRequestedAt: "t1"}
	st := &gs.Status
	st.ConfirmedAt = &metav1.Time{Time: noon}
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

// P4: the condition Ready is True in all cases.
func TestReadyAloneIsNeverEnough(t *testing.T) {
	assert.Equal(t, Succeeded, Judge(done(), "main", Evidence{Now: noon}).Phase)
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
		assert.Equal(t, Progressing, Judge(gs, "main", Evidence{Now: noon}).Phase, name)
	}
}

// led returns the SyncTarget of a lead. The API server recorded the last renewal of the lock at the given time before noon.
func led(ago time.Duration) *v1alpha1.SyncTarget {
	t := &v1alpha1.SyncTarget{}
	// The clock of the lead's node must not matter.
	t.Spec.Lead = v1alpha1.LeadRecord{Holder: "line-0_1", DurationSeconds: 15, Renewed: &metav1.MicroTime{Time: noon.Add(-time.Hour)}}
	t.ManagedFields = []metav1.ManagedFieldsEntry{
		{Manager: "stoker-agent", Time: &metav1.Time{Time: noon.Add(-ago)}, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:lead":{"f:renewed":{}}}}`)},
		{Manager: "kubectl", Time: &metav1.Time{Time: noon}, FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{}}}`)},
	}
	return t
}

// P6: the rows report success, but no agent runs that would correct them.
func TestAFleetThatNoAgentLeadsIsNotDone(t *testing.T) {
	released := led(time.Second)
	released.Spec.Lead.Holder = ""
	for name, c := range map[string]struct {
		confirmed time.Duration
		target    *v1alpha1.SyncTarget
		done      bool
	}{
		"the lock was not read, and the status is young": {v1alpha1.ConfirmedFor, nil, true},
		"the lock was not read, and the status is old":   {v1alpha1.ConfirmedFor + time.Second, nil, false},
		"the lock is renewed":                            {time.Minute, led(14 * time.Second), true},
		"the lock is renewed, and the status stays old":  {time.Hour, led(0), false},
		"the lock is not renewed":                        {time.Minute, led(16 * time.Second), false},
		"the lock was released":                          {time.Second, released, false},
		"there is no SyncTarget":                         {time.Second, &v1alpha1.SyncTarget{}, false},
		"the lead's clock is ahead":                      {-v1alpha1.ConfirmedFor, nil, true},
		"the status is of the future":                    {-v1alpha1.ConfirmedFor - time.Second, nil, false},
		"the status is of the far future":                {-70000 * time.Hour, led(0), false},
		"the lock is of the future":                      {time.Minute, led(-time.Hour), false},
	} {
		t.Run(name, func(t *testing.T) {
			gs := done()
			gs.Status.ConfirmedAt = &metav1.Time{Time: noon.Add(-c.confirmed)}
			v := Judge(gs, "main", Evidence{Now: noon, Target: c.target})
			if c.done {
				assert.Equal(t, Succeeded, v.Phase)
				return
			}
			assert.Equal(t, Progressing, v.Phase)
			assert.Equal(t, v1alpha1.ReasonAgentsAway, v.Reason)
			assert.Equal(t, Count{Total: 3}, v.Gateways)
			if c.confirmed < 0 {
				assert.Contains(t, v.Message, "no agent leads, so", "since when is not known")
				assert.Zero(t, v.Since)
			} else {
				assert.Contains(t, v.Message, "no agent leads since 20")
				assert.False(t, v.Since.After(noon))
			}
			gs.Spec.Paused = true
			assert.Equal(t, Progressing, Judge(gs, "main", Evidence{Now: noon, Target: c.target}).Phase, "nor does it wait for a person")
		})
	}
	t.Run("it was never confirmed", func(t *testing.T) {
		gs := done()
		gs.Status.ConfirmedAt = nil
		v := Judge(gs, "main", Evidence{Now: noon})
		assert.Equal(t, Progressing, v.Phase)
		assert.Contains(t, v.Message, "no agent leads, so")
	})
	t.Run("what failed stays a failure", func(t *testing.T) {
		gs := done()
		gs.Status.ConfirmedAt = nil
		gs.Status.DiscoveredGateways[0].SyncStatus, gs.Status.DiscoveredGateways[0].Reason = v1alpha1.GatewayError, v1alpha1.ReasonTemplateFailed
		assert.Equal(t, Failed, Judge(gs, "main", Evidence{Now: noon}).Phase)
	})
	t.Run("nothing to sync needs no agent", func(t *testing.T) {
		gs := done()
		gs.Status.ConfirmedAt, gs.Status.DiscoveredGateways = nil, nil
		assert.Equal(t, v1alpha1.ReasonNoGateways, Judge(gs, "main", Evidence{Now: noon}).Reason)
	})
}

// The message must name the missing gateway, not one that is done.
func TestAnOpenRequestNamesTheGatewayThatIsMissing(t *testing.T) {
	open := func() *v1alpha1.GatewaySync {
		gs := done()
		gs.Status.LastHandledRequest = "t0"
		return gs
	}
	t.Run("its row is behind", func(t *testing.T) {
		gs := open()
		g := &gs.Status.DiscoveredGateways[2]
		g.SyncStatus, g.Reason, g.Message = v1alpha1.GatewaySyncing, v1alpha1.ReasonProgressing, "fetching"
		v := Judge(gs, "main", Evidence{Now: noon})
		assert.Equal(t, "2 of 3 gateways run main at aaaaaaa; line-2 (pod pod-2) Syncing/Progressing: fetching", v.Message)
		assert.False(t, v.open)
	})
	t.Run("its report tells", func(t *testing.T) {
		v := Judge(open(), "main", Evidence{Now: noon})
		assert.Equal(t, Progressing, v.Phase)
		assert.Equal(t, "3 of 3 gateways run main at aaaaaaa; not all of them have dealt with the request yet", v.Message)
		assert.True(t, v.open)
		handled := &v1alpha1.SyncReport{Status: v1alpha1.SyncReportStatus{HandledRequest: "t1"}}
		v = Judge(open(), "main", Evidence{Now: noon, Reports: map[string]*v1alpha1.SyncReport{"pod-0": handled, "pod-1": handled}})
		assert.Equal(t, Progressing, v.Phase)
		assert.Equal(t, "3 of 3 gateways run main at aaaaaaa; line-2 (pod pod-2) Pending/Progressing: has not dealt with the request yet", v.Message)
	})
}

func TestOfAVeryLargeFleetTheRowsThatAreLeftOutCount(t *testing.T) {
	gs := done()
	gs.Status.GatewaysReady = "2005/2005"
	v := Judge(gs, "main", Evidence{Now: noon})
	assert.Equal(t, Succeeded, v.Phase)
	assert.Equal(t, Count{Total: 2005, Synced: 2005}, v.Gateways)

	gs.Status.GatewaysReady = "1000/2005" // the omitted rows include gateways that are not synced
	v = Judge(gs, "main", Evidence{Now: noon})
	assert.Equal(t, Progressing, v.Phase)
	assert.Equal(t, Count{Total: 2005, Synced: 1003}, v.Gateways)
	gs.Status.GatewaysReady = "2005/2005"
	gs.Annotations[v1alpha1.AnnotationRequestedAt] = "t2" // the count is older than this request
	assert.Equal(t, Count{Total: 2005}, Judge(gs, "main", Evidence{Now: noon}).Gateways)
}

// The rows and the count of synced gateways are outdated, because no agent is there to update them.
func TestOfAVeryLargeFleetWhoseAgentsAreAwayNoneIsSynced(t *testing.T) {
	gs := done()
	gs.Status.GatewaysReady = "0/2005"
	for i := range gs.Status.DiscoveredGateways {
		gs.Status.DiscoveredGateways[i].SyncStatus = v1alpha1.GatewayPending
	}
	set(gs, v1alpha1.ConditionReady, "Unknown", v1alpha1.ReasonAgentsAway)
	assert.Equal(t, Count{Total: 2005}, Judge(gs, "main", Evidence{Now: noon}).Gateways)
}

// All gateways are healthy but do not run what the spec says. The message must tell the operator which commit is held off.
func TestAFleetThatRunsWhatARollbackWentBackToSaysWhatIsHeldOff(t *testing.T) {
	for unless, want := range map[string]string{
		"BB" + commitB[2:]: "RolledBack: main is held off at bbbbbbb: 3 of 3 gateways run aaaaaaa",
		"":                 "3 of 3 gateways run aaaaaaa",
		"not a commit":     "3 of 3 gateways run aaaaaaa",
	} {
		gs := done()
		gs.Annotations[v1alpha1.AnnotationRequestedRef], gs.Annotations[v1alpha1.AnnotationRequestedUnless] = commitA, unless
		gs.Status.Target.Ref = commitA
		v := Judge(gs, "", Evidence{Now: noon})
		assert.Equal(t, Succeeded, v.Phase, unless)
		assert.Equal(t, v1alpha1.ReasonSynced, v.Reason, unless)
		assert.Equal(t, want, v.Message, unless)
		gs.Spec.Git.Ref, gs.Annotations[v1alpha1.AnnotationRequestedOver] = "release", commitA+"@main"
		assert.NotContains(t, Judge(gs, "", Evidence{Now: noon}).Message, "held off", "git says another ref, and the rollback has lapsed")
	}
}

// While neither an agent nor the injector has seen a GatewaySync, its status is empty. Its pods may exist all the same.
func TestThatThereAreNoGatewaysIsSaidOnlyByWhoHasLooked(t *testing.T) {
	gs := plant("main")
	gs.Generation = 1
	v := Judge(gs, "main", Evidence{Now: noon})
	assert.Equal(t, Progressing, v.Phase)
	assert.Equal(t, v1alpha1.ReasonWaitingForLead, v.Reason)
	assert.Equal(t, "nobody has looked at it yet: neither an agent nor the injector", v.Message)
	gs.Status.ObservedGeneration = 1
	assert.Equal(t, v1alpha1.ReasonNoGateways, Judge(gs, "main", Evidence{Now: noon}).Reason)
	gs.Generation = 2
	v = Judge(gs, "main", Evidence{Now: noon})
	assert.Equal(t, v1alpha1.ReasonWaitingForLead, v.Reason)
	assert.Equal(t, "the status does not speak of today's spec yet", v.Message)
}

func TestANumberOfGatewaysWithoutOneOfThemIsNone(t *testing.T) {
	gs := done()
	gs.Status.DiscoveredGateways, gs.Status.GatewaysReady = nil, "5/5"
	v := Judge(gs, "main", Evidence{Now: noon})
	assert.Equal(t, Progressing, v.Phase)
	assert.Equal(t, v1alpha1.ReasonNoGateways, v.Reason)
	assert.Equal(t, Count{}, v.Gateways)
}

func TestAStandbyCountsAsSynced(t *testing.T) {
	gs := done()
	gs.Status.DiscoveredGateways[1].SyncStatus = v1alpha1.GatewayStandby
	assert.Equal(t, Succeeded, Judge(gs, "", Evidence{Now: noon}).Phase)
}

func TestAnotherDesiredRefSupersedesAndANewCommitOfTheSameDoesNot(t *testing.T) {
	gs := done()
	gs.Annotations[v1alpha1.AnnotationRequestedRef] = "v9"
	gs.Annotations[v1alpha1.AnnotationRequestedBy] = "kargo"
	v := Judge(gs, "main", Evidence{Now: noon})
	assert.Equal(t, Overtaken, v.Phase)
	assert.Contains(t, v.Message, "v9 (asked for by kargo)")
	gs = done()
	gs.Status.Target.Commit = commitB
	assert.Equal(t, Progressing, Judge(gs, "main", Evidence{Now: noon}).Phase)
}

func TestAFailureCountsOnceItIsAboutThisRequest(t *testing.T) {
	gs := done()
	g := &gs.Status.DiscoveredGateways[1]
	g.SyncStatus, g.Reason, g.Message = v1alpha1.GatewayError, v1alpha1.ReasonConfigSyntaxError, "a.json: line 3"
	v := Judge(gs, "main", Evidence{Now: noon})
	assert.Equal(t, Failed, v.Phase)
	assert.Equal(t, v1alpha1.ReasonConfigSyntaxError, v.Reason)
	assert.Contains(t, v.Message, "line-1 (pod pod-1): a.json: line 3")
	assert.Equal(t, Count{Total: 3, Synced: 2, Failed: 1}, v.Gateways)

	gs.Status.LastHandledRequest = "t0"
	assert.Equal(t, Progressing, Judge(gs, "main", Evidence{Now: noon}).Phase, "what failed before may succeed now")
	reports := map[string]*v1alpha1.SyncReport{"pod-1": {Status: v1alpha1.SyncReportStatus{HandledRequest: "t0"}}}
	assert.Equal(t, Progressing, Judge(gs, "main", Evidence{Now: noon, Reports: reports}).Phase)
	reports["pod-1"].Status.HandledRequest = "t1"
	assert.Equal(t, Failed, Judge(gs, "main", Evidence{Now: noon, Reports: reports}).Phase, "it has dealt with the request, whatever the others do")
}

// No request can fix this: an agent without a credential cannot start.
func TestAPodThatHasToBeStartedAgainIsAFailureAtOnce(t *testing.T) {
	gs := done()
	gs.Status.LastHandledRequest = "t0"
	gs.Status.DiscoveredGateways[1].SyncStatus, gs.Status.DiscoveredGateways[1].Reason = v1alpha1.GatewayError, v1alpha1.ReasonPodRestartNeeded
	assert.Equal(t, Failed, Judge(gs, "main", Evidence{Now: noon}).Phase)
}

func TestWhatIsTriedAgainIsNoFailure(t *testing.T) {
	for _, reason := range []v1alpha1.Reason{v1alpha1.ReasonGatewayUnreachable, v1alpha1.ReasonMissingSidecar, "SomethingNew"} {
		gs := done()
		gs.Status.DiscoveredGateways[0].SyncStatus, gs.Status.DiscoveredGateways[0].Reason = v1alpha1.GatewayError, reason
		v := Judge(gs, "main", Evidence{Now: noon})
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
		assert.Equal(t, Failed, Judge(gs, "main", Evidence{Now: noon}).Phase, condition)
		gs.Generation++
		assert.Equal(t, Progressing, Judge(gs, "main", Evidence{Now: noon}).Phase, "that was another spec")
	}
	gs := done()
	set(gs, v1alpha1.ConditionRefResolved, "False", v1alpha1.ReasonRefNotFound)
	gs.Annotations[v1alpha1.AnnotationRequestedAt] = "t2"
	assert.Equal(t, Progressing, Judge(gs, "main", Evidence{Now: noon}).Phase, "git was not asked since")
	gs = done()
	gs.Status.DiscoveredGateways[0].SyncStatus = v1alpha1.GatewayPending
	set(gs, v1alpha1.ConditionStalled, "True", v1alpha1.ReasonProgressDeadlineExceeded)
	assert.Equal(t, Failed, Judge(gs, "main", Evidence{Now: noon}).Phase)
	gs.Annotations[v1alpha1.AnnotationRequestedRef] = "v9" // set by kubectl annotate, without the other annotations
	assert.Equal(t, Progressing, Judge(gs, "v9", Evidence{Now: noon}).Phase, "that deadline was of another ref")
}

func TestPausedIsHeldUnlessItIsThereAlready(t *testing.T) {
	gs := done()
	gs.Annotations[v1alpha1.AnnotationPaused] = "true"
	assert.Equal(t, Succeeded, Judge(gs, "main", Evidence{Now: noon}).Phase)
	gs.Status.DiscoveredGateways[0].SyncedCommit = commitB
	assert.Equal(t, Held, Judge(gs, "main", Evidence{Now: noon}).Phase)
}

// With designerSessionPolicy fail, the agent reports Error in place of Held.
func TestAGatewayThatIsNotToWaitForAPersonFailsOnceItHasDealtWithTheRequest(t *testing.T) {
	gs := done()
	g := &gs.Status.DiscoveredGateways[1]
	g.SyncStatus, g.Reason, g.Message = v1alpha1.GatewayError, v1alpha1.ReasonDesignerSessionActive, "maria edits line"
	v := Judge(gs, "main", Evidence{Now: noon})
	assert.Equal(t, Failed, v.Phase)
	assert.Equal(t, v1alpha1.ReasonDesignerSessionActive, v.Reason)
	assert.Equal(t, "line-1 (pod pod-1): maria edits line", v.Message)
	assert.Equal(t, Count{Total: 3, Synced: 2, Failed: 1}, v.Gateways)
	gs.Status.LastHandledRequest = "t0"
	v = Judge(gs, "main", Evidence{Now: noon, Reports: map[string]*v1alpha1.SyncReport{
		"pod-0": {Status: v1alpha1.SyncReportStatus{HandledRequest: "t1"}}, "pod-2": {Status: v1alpha1.SyncReportStatus{HandledRequest: "t1"}}}})
	assert.Equal(t, Progressing, v.Phase, "of the request before")
	assert.False(t, v.Waits)
	gs.Status.LastHandledRequest, g.SyncStatus = "t1", v1alpha1.GatewayHeld
	v = Judge(gs, "main", Evidence{Now: noon})
	assert.Equal(t, Progressing, v.Phase)
	assert.True(t, v.Waits)
}

func TestItWaitsForPeopleWhereNothingElseIsMissing(t *testing.T) {
	gs := done()
	for i, reason := range []v1alpha1.Reason{v1alpha1.ReasonDesignerSessionActive, v1alpha1.ReasonPaused} {
		gs.Status.DiscoveredGateways[i].SyncStatus, gs.Status.DiscoveredGateways[i].Reason = v1alpha1.GatewayHeld, reason
	}
	v := Judge(gs, "main", Evidence{Now: noon})
	assert.True(t, v.Waits)
	assert.Equal(t, v1alpha1.ReasonDesignerSessionActive, v.Reason)
	gs.Status.DiscoveredGateways[2].SyncStatus, gs.Status.DiscoveredGateways[2].Reason = v1alpha1.GatewayPending, v1alpha1.ReasonProgressing
	assert.False(t, Judge(gs, "main", Evidence{Now: noon}).Waits)
}

func TestARequestThatIsNoRefFails(t *testing.T) {
	gs := done()
	gs.Annotations[v1alpha1.AnnotationRequestedRef] = "a b"
	assert.Equal(t, Failed, Judge(gs, "", Evidence{Now: noon}).Phase)
}

// The rows are from the last lead, and no agent can confirm them.
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
		v := Judge(gs, "main", Evidence{Now: noon})
		assert.Equal(t, Progressing, v.Phase, name)
		assert.Equal(t, v1alpha1.ReasonAgentsAway, v.Reason, name)
		assert.Equal(t, "as it is", v.Message, name)
		assert.False(t, v.Waits, name)
		assert.Equal(t, Overtaken, Judge(gs, "v2", Evidence{Now: noon}).Phase, name)
	}
	gs := done()
	set(gs, v1alpha1.ConditionReady, "Unknown", v1alpha1.ReasonAgentsAway)
	set(gs, v1alpha1.ConditionProfilesValid, "False", v1alpha1.ReasonProfilesInvalid)
	assert.Equal(t, Failed, Judge(gs, "main", Evidence{Now: noon}).Phase, "no agent mends that")
}

// This is the final status that upkeep writes. The rows are from the last lead.
func TestAFleetWhoseAgentsStayAwayIsNotThere(t *testing.T) {
	gs := done()
	gs.Annotations[v1alpha1.AnnotationRequestedAt], gs.Status.LastHandledRequest = "t2", "t2"
	gs.Status.Target.RequestedAt = "t2"
	assert.Equal(t, Succeeded, Judge(gs, "main", Evidence{Now: noon}).Phase)
	set(gs, v1alpha1.ConditionReady, "Unknown", v1alpha1.ReasonProgressDeadlineExceeded)
	set(gs, v1alpha1.ConditionStalled, "True", v1alpha1.ReasonProgressDeadlineExceeded)
	v := Judge(gs, "main", Evidence{Now: noon})
	assert.Equal(t, Failed, v.Phase)
	assert.Equal(t, v1alpha1.ReasonProgressDeadlineExceeded, v.Reason)

	gs.Spec.Git.Ref = "v2" // changed after the agents left, so no agent can report it
	v = Judge(gs, "", Evidence{Now: noon})
	assert.Equal(t, Failed, v.Phase)
	assert.Equal(t, v1alpha1.ReasonProgressDeadlineExceeded, v.Reason)
	gs.Generation++
	assert.Equal(t, Progressing, Judge(gs, "", Evidence{Now: noon}).Phase, "and nobody has looked at it yet")
}

// Judge must return a valid verdict for any object, and success must include every gateway.
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
		v := Judge(gs, ref, Evidence{Now: noon})
		require.Contains(t, []Phase{Progressing, Succeeded, Failed, Held, Overtaken}, v.Phase)
		require.Equal(t, v, Judge(gs, ref, Evidence{Now: noon}))
		if v.Phase == Succeeded {
			require.Positive(t, v.Gateways.Total)
			require.Equal(t, v.Gateways.Total, v.Gateways.Synced)
			require.Empty(t, v.Behind)
			require.Equal(t, gs.Generation, gs.Status.ObservedGeneration)
		}
		_, _, _ = rollback(gs, ref) // must not panic
	})
}
